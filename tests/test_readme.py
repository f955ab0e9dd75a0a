"""What the README shows is run; what it links to exists."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import clean_environment, running
from tests.cli.test_epp_up import up
from weft.rpc.methods import REFUSALS
from weft.text.prompts import REFUSED
from weft.web.admin import refused

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FEATURES = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
MORE_PROGRAMS = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
MAX_WORDS = 700
ADDRESS = "127.0.0.1:50051"  # where the README's server listens
HTTP = "http://127.0.0.1:8000"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


SHELL_LINES = [line for block in blocks(README, "sh") for line in block.splitlines()]
UP_LINES = [line for line in SHELL_LINES if line.startswith(".venv/bin/weft up")]
CLIENT_LINES = [
    line for line in SHELL_LINES if line.startswith(".venv/bin/weft") and line not in UP_LINES
]
PROGRAMS = blocks(README, "python") + blocks(MORE_PROGRAMS, "python")
INSTALL_LINES = [line for line in SHELL_LINES if " install " in line]
CURL_LINES = [line for line in SHELL_LINES if line.startswith("curl")]
MAKE_LINES = [line for line in SHELL_LINES if line.startswith("make")]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/features.md",
    "docs/programs.md",
]


@dataclass(frozen=True)
class Place:
    """Where what the README starts listens, on other ports than there."""

    address: str
    http: str


@pytest.fixture(scope="module", params=["serve", pytest.param("up", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """What `make serve` starts, and what the line with `weft up` does: as written, but on free ports."""
    if request.param == "serve":
        with running() as server:
            yield Place(server.address, server.http)
        return
    (line,) = UP_LINES
    with up(*shlex.split(line)[2:], model=None) as stack:
        # Not always the last: each worker says by itself when it is ready.
        assert any(shown.startswith("  try") for shown in stack.lines)
        yield Place(stack.address, f"http://{stack.address}")


def run(argv: list[str], place: Place) -> str:
    result = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env=clean_environment(WEFT_ADDRESS=place.address, WEFT_BASE_URL=place.http),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def to_place(text: str, place: Place) -> str:
    """What the README shows, with the ports that are listened on."""
    return text.replace(ADDRESS, place.address).replace(HTTP, place.http)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("line", CURL_LINES)
def test_the_requests_of_the_readme_answer(place: Place, line: str):
    """As written but for the port; a curl of before --json is told what that stands for."""
    argv = shlex.split(to_place(line, place))
    at = argv.index("--json")
    header = ["--header", "content-type: application/json", "--data"]
    assert '"choices"' in run([*argv[:at], "--fail", *header, *argv[at + 1 :]], place)


@pytest.mark.parametrize("line", CLIENT_LINES)
def test_the_commands_of_the_readme_answer(place: Place, line: str):
    """Each, as written, against a server without arguments."""
    argv = [sys.executable, "-m", "weft.cli.main", *shlex.split(line)[1:]]
    assert run(argv, place).strip()


@pytest.mark.parametrize("source", PROGRAMS, ids=lambda source: source.split()[2])
def test_the_programs_of_the_readme_answer(place: Place, source: str, tmp_path: Path):
    """Each, as written but for the port, by the command in its first line. An answer that is drawn may be empty."""
    interpreter, name = shlex.split(source.splitlines()[0].removeprefix("# "))
    assert interpreter == ".venv/bin/python"
    (tmp_path / name).write_text(to_place(source, place), encoding="utf-8")
    command = [sys.executable, str(tmp_path / name)]
    assert any(run(command, place).strip() for _ in range(3))


@pytest.mark.parametrize("line", INSTALL_LINES)
def test_the_packages_of_the_readme_are_those_that_are_tested_with(line: str):
    """The programs above import them; pyproject.toml says in which versions."""
    names = shlex.split(line.partition(" install ")[2])
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert all(find_spec(name) for name in names)
    assert set(names) <= {
        re.split(r"[^\w-]", one)[0] for one in groups["test"] if isinstance(one, str)
    }


def test_the_readme_stays_short():
    """A newcomer reads it whole; what is longer has a page of its own."""
    assert len(README.split()) <= MAX_WORDS


def test_what_is_not_there_yet_is_in_the_list_of_features():
    """Everything that is refused to everybody, and nothing that is not."""
    rows = FEATURES.partition("| not yet |")[2].partition("\n## ")[0].splitlines()
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    reference = (ROOT / "docs" / "reference" / "engine.md").read_text(encoding="utf-8")
    always = {name for name, (_, where) in REFUSALS.items() if where.startswith("always")}
    calls = set(re.findall(r"^\| `(\w+)` \| refused: ", reference, re.MULTILINE))
    paths = {f"{endpoint.method} {endpoint.path}" for endpoint in refused.ENDPOINTS}
    assert named == always | calls | paths | set(REFUSED)


def test_every_line_of_shell_is_known_here():
    """A new kind of command in the README needs a way to be tested."""
    known = UP_LINES + CLIENT_LINES + CURL_LINES + MAKE_LINES + INSTALL_LINES
    assert sorted(known) == sorted(SHELL_LINES)


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
