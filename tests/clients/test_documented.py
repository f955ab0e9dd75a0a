"""What docs/clients.md shows is run: each block with the client that its heading names."""

import re
from pathlib import Path

import httpx2
import pytest

from tests.cli.running import SMALL, Server, running
from tests.clients.environments import AGENTS, ENVIRONMENTS
from tests.clients.page import HTTP, SECTIONS, blocks, run_block, write_settings

# Whose package each heading is about.
BY_HEADING = {
    "Claude Code": "claude-code",
    "Codex": "codex",
    "aider": "aider",
    "LangChain": "langchain-openai",
    "LlamaIndex": "llama-index",
    "LiteLLM": "litellm",
}
# Room for what agents begin with, and an end to what a model that never learned one writes.
LONG = f"{SMALL}&max_len=200000"
AGENT_FLAGS = ("--tool-call-parser", "hermes", "--enable-auto-tool-choice")
BOUND = "- name: openai/local\n  extra_params: {max_tokens: 64}\n"


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
    write_settings(section, tmp_path)
    (tmp_path / ".aider.model.settings.yml").write_text(BOUND)
    before = answered(asked)
    for language in ("sh", "python"):
        for text in blocks(section, language):
            assert run_block(environment, language, text, tmp_path).strip()
    assert answered(asked) > before
