"""What the README shows is run; what it links to exists."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import Server, clean_environment, running
from tests.cli.test_epp_up import up

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:50051"  # where the README's server listens
HTTP = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


SHELL_LINES = [line for block in blocks("sh") for line in block.splitlines()]
UP_LINES = [line for line in SHELL_LINES if line.startswith(".venv/bin/weft up")]
CLIENT_LINES = [
    line for line in SHELL_LINES if line.startswith(".venv/bin/weft") and line not in UP_LINES
]
CURL_LINES = [line for line in SHELL_LINES if line.startswith("curl")]
MAKE_LINES = [line for line in SHELL_LINES if line.startswith("make")]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/architecture.md"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """What `make serve` starts, on another port."""
    with running() as started:
        yield started


def run(argv: list[str], server: Server) -> str:
    result = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env=clean_environment(WEFT_ADDRESS=server.address, WEFT_BASE_URL=server.http),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def to_server(text: str, server: Server) -> str:
    """What the README shows, with the ports of `server`."""
    return text.replace(ADDRESS, server.address).replace(HTTP, server.http)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("line", CURL_LINES)
def test_the_requests_of_the_readme_answer(server: Server, line: str):
    """As written but for the port; a curl of before --json is told what that stands for."""
    argv = shlex.split(to_server(line, server))
    place = argv.index("--json")
    header = ["--header", "content-type: application/json", "--data"]
    assert '"choices"' in run([*argv[:place], "--fail", *header, *argv[place + 1 :]], server)


@pytest.mark.parametrize("line", CLIENT_LINES)
def test_the_commands_of_the_readme_answer(server: Server, line: str):
    """Each, as written, against a server without arguments."""
    argv = [sys.executable, "-m", "weft.cli.main", *shlex.split(line)[1:]]
    assert run(argv, server).strip()


@pytest.mark.parametrize("source", blocks("python"), ids=lambda source: source.split()[1])
def test_the_programs_of_the_readme_answer(server: Server, source: str):
    """Each, as written but for the port."""
    assert run([sys.executable, "-c", to_server(source, server)], server).strip()


@pytest.mark.parametrize("line", UP_LINES)
def test_the_stack_of_the_readme_comes_up(line: str):
    """As written, but on free ports and with a small model."""
    with up(*shlex.split(line)[2:]) as stack:
        # Not always the last: each worker says by itself when it is ready.
        assert any(shown.startswith("  try") for shown in stack.lines)


def test_every_line_of_shell_is_known_here():
    """A new kind of command in the README needs a way to be tested."""
    assert sorted(UP_LINES + CLIENT_LINES + CURL_LINES + MAKE_LINES) == sorted(SHELL_LINES)


@pytest.mark.parametrize("line", MAKE_LINES)
def test_the_make_commands_of_the_readme_exist(line: str):
    """`make` would do something for each, and hand its arguments on."""
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", *shlex.split(line)[1:]],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    command = "weft serve" if "serve" in line else "pytest"
    arguments = shlex.split(line.partition("ARGS=")[2])
    assert command in planned
    assert all(argument in planned for argument in arguments)


def test_continuous_integration_runs_the_readmes_test_command():
    """What users are told to run is what is run on every change."""
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "make test" in SHELL_LINES
    assert script.index("make test") < script.index("make check")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str):
    """Every relative link names a file or a directory."""
    path = ROOT / document
    links = re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_target_is_in_the_contributors_table():
    """And nothing in the table is gone from the Makefile."""
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    table = re.findall(
        r"^\| `make ([\w-]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert phony is not None
    assert set(phony[1].split()) == {*table, "help"}
