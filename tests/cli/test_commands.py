"""The table of commands: what `--help` says of each, and that it is quick and true."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import WEFT, clean_environment
from weft.cli.commands import COMMANDS, Command, make_app
from weft.cli.main import run

HEAVY = """
import contextlib, io, json, sys
from weft.cli.main import run
heavy = {"numpy", "grpc", "tokenizers", "zmq", "huggingface_hub", "psutil", "uvloop", "yaml", "jinja2", "torch", "ssl",
    "uvicorn", "starlette", "prompt_toolkit", "prometheus_client", "weft.epp.server.server", "weft.web.http.server"}
for words in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        run([*words.split(), "--help"])
    ours = {name for name in sys.modules if name.startswith(("weft.engine", "weft.compute", "weft.text", "weft.model"))}
    print(json.dumps({"words": words, "shown": shown.getvalue(), "heavy": sorted(heavy & set(sys.modules) | ours)}))
"""
SHELLS = {
    # What each prints of "weft serve --max-mod" with the script in a file of its own.
    "bash": 'source weft.sh; COMP_WORDS=(weft serve --max-mod); COMP_CWORD=2; _weft; echo "${COMPREPLY[@]}"',
    "fish": 'source weft.sh; complete --do-complete "weft serve --max-mod"',
    "zsh": "autoload -U compinit; compinit -D; source weft.sh; whence -w _weft; grep -o -e --max-model-len weft.sh",
}
by_words = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)


@pytest.fixture(scope="module")
def help_by_words() -> dict[str, dict[str, Any]]:
    """What `--help` of each command shows, and the heavy modules that were imported until then."""
    result = subprocess.run(
        [sys.executable, "-c", HEAVY, *(command.words for command in COMMANDS)],
        capture_output=True, text=True, check=True, env=clean_environment(COLUMNS="200"),
    )  # fmt: skip
    assert result.stderr == ""
    return {one["words"]: one for one in map(json.loads, result.stdout.splitlines())}


@by_words
def test_help_is_quick_and_has_an_example(
    help_by_words: dict[str, dict[str, Any]], command: Command
):
    """What makes help slow is what it imports; an example and the exit status are what is looked up."""
    shown = help_by_words[command.words]["shown"]
    assert help_by_words[command.words]["heavy"] == []
    assert shown.startswith(f"{command.usage}\n")
    assert "Example" in shown
    assert all(example in shown for example in command.examples)
    assert "Exit status: 0" in shown


def test_help_is_printed_without_the_parser():
    """The parser and all flags take several times as long to import as a page to print."""
    code = """
import atexit, sys
from weft.cli.entry import main
sys.argv = ["weft", "serve", "--help"]
slow = {"cyclopts", "rich", "msgspec", "weft.cli.options", "weft.cli.main"}
atexit.register(lambda: print(sorted(slow & set(sys.modules)), file=sys.stderr))
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stderr == "[]\n"
    assert "--max-model-len" in result.stdout


def test_help_into_a_closed_pipe_says_nothing():
    """As with `| head`."""
    line = f"{shlex.quote(sys.executable)} -m weft.cli.entry serve --help | true"
    assert subprocess.run(["sh", "-c", line], capture_output=True, check=True).stderr == b""


@by_words
def test_examples_are_command_lines_that_are_taken(command: Command):
    """One that is refused would be worse than none."""
    for example in command.examples:
        words = shlex.split(example.partition(" > ")[0].partition(" < ")[0])
        words = words[words.index("weft") + 1 :]
        assert words[: len(command.words.split())] == command.words.split()
        app = make_app()
        app.config = ()  # the files that they name are not there
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_every_command_is_in_the_table():
    """None is reached that has no help, example and statuses."""
    listed = {name for name in make_app() if not name.startswith("-")}
    assert listed == {command.words.split()[0] for command in COMMANDS}


@pytest.mark.parametrize(
    ("argv", "there", "absent"),
    [
        (["serve", "--help=block"], ["--block-size", "--num-gpu-blocks-override"], "--port"),
        (["serve", "--help=Remote engines"], ["--remote-tls-ca"], "--port"),
        (["serve", "--help=gpu_memory"], ["--gpu-memory-utilization"], "--port"),
        (["serve", "--help=prompt_lookup"], ["--speculative-config"], "--port"),
        (["serve", "--port", "1", "--help=KEY"], ["--control-api-key"], "--block-size"),
        (["--help=memory"], ["plan"], "chat"),
        (["bench", "serve", "--help=goodput"], ["--goodput"], "--seed"),
    ],
)
def test_help_may_be_searched(capsys, argv: list[str], there: list[str], absent: str):
    """By name, help text or heading; names of vLLM are found too."""
    assert run(argv) == 0
    shown = capsys.readouterr().out
    assert [name for name in there if name not in shown] == []
    assert absent not in shown


def test_a_search_that_finds_nothing_has_status_1(capsys):
    """As grep."""
    assert run(["chat", "--help=zebra"]) == 1
    assert capsys.readouterr().err == 'error: no flag of weft chat has "zebra" in its help\n'


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["serve", "-m", "m", "-p", "1", "-c", "4k", "-t", "2"], "model", "m"),
        (["serve", "m", "-p", "1"], "port", 1),
        (["serve", "-c=4k"], "max_model_len", 4000),
        (["serve", "-t", "2"], "num_threads", 2),
    ],
)
def test_the_few_short_flags_of_serve(capsys, argv: list[str], name: str, value: object):
    """Beside vLLM's, which are longer or other letters."""
    assert run(["config", "show", "--json", *argv[1:]]) == 0
    settings = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)}
    assert settings[name] == value


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_our_command_lines(tmp_path: Path, shell: str):
    """With the shell itself, where there is one."""
    script = subprocess.run(
        [*WEFT, "completion", shell],
        capture_output=True, text=True, check=True, env=clean_environment(),
    ).stdout  # fmt: skip
    assert "--max-model-len" in script if shell != "fish" else "max-model-len" in script
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "weft.sh").write_text(script)
    shown = subprocess.run(
        [shell, "-c", SHELLS[shell]],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"HOME": str(tmp_path)},
    )  # fmt: skip
    assert "--max-model-len" in shown.stdout, shown.stderr
