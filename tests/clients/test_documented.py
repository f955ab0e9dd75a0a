"""What docs/clients.md shows is run: each block with the client that its heading names."""

import os
import re
import subprocess
from pathlib import Path

import httpx2
import pytest

from tests.cli.running import SMALL, Server, clean_environment, running
from tests.clients.environments import AGENTS, ENVIRONMENTS, TREE, Environment

PAGE = (TREE / "docs" / "clients.md").read_text(encoding="utf-8")
HTTP = "http://127.0.0.1:8000"  # the page's server
# Whose package each heading is about.
BY_HEADING = {
    "Claude Code": "claude-code",
    "Codex": "codex",
    "aider": "aider",
    "LangChain": "langchain-openai",
    "LlamaIndex": "llama-index",
    "LiteLLM": "litellm",
}
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
# Room for what agents begin with, and an end to what a model that never learned one writes.
LONG = f"{SMALL}&max_len=200000"
AGENT_FLAGS = ("--tool-call-parser", "hermes", "--enable-auto-tool-choice")
BOUND = "- name: openai/local\n  extra_params: {max_tokens: 64}\n"


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def test_every_heading_has_its_client():
    """A client that is described and not run would be described wrongly before long."""
    names = {environment.name for environment in (*ENVIRONMENTS, *AGENTS)}
    assert SECTIONS.keys() == BY_HEADING.keys()
    assert set(BY_HEADING.values()) <= names
    assert all(blocks(section, "(?:sh|python)") for section in SECTIONS.values())


def answered(server: Server) -> float:
    """How many requests have had an answer."""
    shown = httpx2.get(f"{server.http}/metrics").text
    counts = re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", shown, re.MULTILINE)
    return sum(map(float, counts))


@pytest.fixture(scope="module")
def server():
    """One for agents; the libraries ask the toy, which knows when to stop."""
    flags = ("--served-model-name", "local", "--no-grpc")
    with running(LONG, *flags, *AGENT_FLAGS) as long, running("embedded:tiny", *flags) as tiny:
        yield {True: long, False: tiny}


def run_block(environment: Environment, language: str, text: str, home: Path) -> str:
    """What a block prints, in a directory of its own that is home too; no other host is reached."""
    nowhere = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    variables = clean_environment(
        HOME=str(home), NO_PROXY="127.0.0.1", **nowhere, PYTHONPATH="",
        PATH=f"{environment.programs}{os.pathsep}{os.environ['PATH']}",
        AIDER_YES_ALWAYS="true", AIDER_GIT="false", AIDER_CHECK_UPDATE="false",
        AIDER_ANALYTICS="false", LITELLM_LOCAL_MODEL_COST_MAP="True",
    )  # fmt: skip
    command = ["sh", "-ec", text] if language == "sh" else [str(environment.python), "-c", text]
    ended = subprocess.run(
        command, cwd=home, env=variables, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", timeout=600, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.clients
@pytest.mark.timeout(1800)  # the first time, an environment is made
@pytest.mark.parametrize("heading", BY_HEADING)
def test_what_the_page_shows_gets_an_answer(
    server: dict[bool, Server], heading: str, tmp_path: Path
):
    """As written but for the port, after an install as people make it."""
    (environment,) = (one for one in (*ENVIRONMENTS, *AGENTS) if one.name == BY_HEADING[heading])
    if environment.missing is not None:
        pytest.skip(f"{environment.missing} is not installed")
    environment.make()
    asked = server[environment in AGENTS]
    section = SECTIONS[heading].replace(HTTP, asked.http)
    for text in blocks(section, "toml"):
        (tmp_path / ".codex").mkdir()
        (tmp_path / ".codex" / "config.toml").write_text(text)
    (tmp_path / ".aider.model.settings.yml").write_text(BOUND)
    before = answered(asked)
    for language in ("sh", "python"):
        for text in blocks(section, language):
            assert run_block(environment, language, text, tmp_path).strip()
    assert answered(asked) > before
