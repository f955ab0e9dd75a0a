"""docs/clients.md as tests run it: its sections, their blocks, and a block in a process of its own."""

import os
import re
import subprocess
from pathlib import Path

from tests.cli.running import clean_environment
from tests.clients.environments import TREE, Environment

_PAGE = (TREE / "docs" / "clients.md").read_text(encoding="utf-8")
HTTP = "http://127.0.0.1:8000"  # the page's server
QUESTION = "What is in this directory?"  # the one that the page's agents are asked
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", _PAGE, re.MULTILINE | re.DOTALL))


def blocks(section: str, language: str) -> list[str]:
    """The code of a section in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def write_settings(section: str, home: Path) -> None:
    """Codex's settings, where the section has some."""
    for text in blocks(section, "toml"):
        (home / ".codex").mkdir()
        (home / ".codex" / "config.toml").write_text(text)


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
