"""The table of commands: what `--help` says of each, and that it is quick and true."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import WEFT, clean_environment
from weft.cli.commands import COMMANDS, EXIT_STATUSES, GROUPS, Command, make_app
from weft.cli.help import PAGES
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
    """Of no command: the parser and all flags take several times as long to import as a page to print."""
    code = """
import contextlib, io, sys
from weft.cli.entry import main
for words in sys.argv[1:]:
    sys.argv = ["weft", *words.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main()
    assert shown.getvalue().startswith(f"Usage: weft {words}".rstrip()), words
slow = {"cyclopts", "rich", "msgspec", "weft.cli.commands", "weft.cli.options", "weft.cli.main"}
print(sorted(slow & set(sys.modules)))
"""
    every = ["", *GROUPS, *(command.words for command in COMMANDS)]
    result = subprocess.run(
        [sys.executable, "-c", code, *every], capture_output=True, text=True, check=True
    )
    assert (result.stdout, result.stderr) == ("[]\n", "")


@pytest.mark.parametrize("words", ["", *GROUPS])
def test_help_of_a_group_has_examples_and_statuses(words: str):
    """Those of the commands below it; above all, the statuses that every command shares."""
    below = json.loads(PAGES.read_text(encoding="utf-8"))[words]["below"]
    examples = {example for command in COMMANDS for example in command.examples}
    assert below[0] == "Examples:"
    assert examples.issuperset(below[1:-2])
    assert below[1].startswith(f"weft {words}".rstrip())
    assert below[-2].startswith("Exit status: 0 done")
    assert words or all(text in below[-2] for text in EXIT_STATUSES.values())


# What has nothing to say at its end that a script would read.
WITHOUT_JSON = {
    "serve": "runs until it is ended; --log-format json is for its log, weft ps --json says where it is",
    "epp": "as serve; weft epp explain --json is for its decisions",
    "up": "as serve",
    "batch": "its output is a file of JSON lines",
    "bench sweep serve": "its results are files of JSON in a directory",
    "completion": "prints a script",
}


@by_words
def test_a_result_can_be_had_as_json(command: Command):
    """On standard output, or in a file where a table is shown meanwhile; or it is said here why not."""
    panels = json.loads(PAGES.read_text(encoding="utf-8"))[command.words]["panels"]
    labels = (label for panel in panels for label, _ in panel["rows"])
    flags = {name for label in labels for name in label.replace(",", " ").split()}
    has_json = bool(flags & {"--json", "--output-json", "--save-result"})
    assert has_json is (command.words not in WITHOUT_JSON)


@by_words
def test_wrong_arguments_are_status_2(capsys, command: Command):
    """Of every command, with one line that names what is wrong, and nothing for a pipe to take for a result."""
    assert run([*command.words.split(), "--no-such-flag"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert "no-such-flag" in shown.err


@pytest.mark.parametrize(
    "line",
    [
        "chat Hello --address {} --connect-timeout 0.5",
        "complete Hello --address {} --connect-timeout 0.5",
        "bench serve --num-prompts 1 --base-url http://{}",
        "top --once --json --url http://{}",
        "epp explain some-request --host 127.0.0.1 --metrics-port {port}",
    ],
    ids=lambda line: line.partition(" --")[0],
)
def test_no_server_is_status_1(capsys, line: str):
    """A script can tell it from a mistake of its own."""
    with socket.socket() as taken:  # and never listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert run(shlex.split(line.format(f"127.0.0.1:{port}", port=port))) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert str(port) in shown.err


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
