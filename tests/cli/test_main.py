"""From argv, environment and file to options: weft.cli.main, settings and options."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.busy import is_within
from weft.cli.main import make_app, run
from weft.cli.options import ServeOptions
from weft.cli.serving.servers import DEFAULT_MODEL
from weft.core.config.engine_options import EngineOptions


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WEFT_")]:
        monkeypatch.delenv(name)


def serve_arguments(*argv: str) -> tuple[str, ServeOptions]:
    """What `weft serve ARGV` would be called with."""
    _, bound, _ = make_app().parse_args(["serve", *argv], exit_on_error=False, print_error=False)
    bound.apply_defaults()
    return bound.arguments["model"], bound.arguments["options"]


def settings_file(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a refused command line ends in."""
    assert run(argv) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


def test_without_arguments_the_model_in_the_package_is_served():
    """`weft serve` answers after an install, with nothing else said."""
    assert serve_arguments() == (None, ServeOptions())
    assert DEFAULT_MODEL == "embedded:tiny"


def test_both_spellings_of_a_flag_are_read():
    """Scripts written for other engines use either."""
    _, dashed = serve_arguments("--max-num-seqs", "3")
    _, underscored = serve_arguments("--max_num_seqs=3")
    assert dashed.max_num_seqs == underscored.max_num_seqs == 3


def test_sizes_may_be_written_short():
    """Flags that count tokens or bytes take 32k and 4GiB."""
    _, options = serve_arguments("--max-model-len", "32k", "--kv-cache-bytes", "4GiB")
    assert (options.max_model_len, options.kv_cache_bytes) == (32_000, 4 << 30)


@pytest.mark.parametrize(("given", "size"), [("auto", "auto"), ("8K", 8192), ("2048", 2048)])
def test_a_size_may_be_left_open_in_a_word(given, size):
    """Where the field takes it."""
    _, options = serve_arguments("--max-num-batched-tokens", given)
    assert options.max_num_batched_tokens == size


def test_api_keys_and_names_may_repeat():
    """One flag for each."""
    _, options = serve_arguments("--api-key", "a", "--api-key", "b", "--served-model-name", "m")
    assert (options.api_key, options.served_model_name) == (["a", "b"], ["m"])


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path, monkeypatch):
    """Flag, environment, file, default: the first that speaks decides."""
    path = settings_file(tmp_path, "weft.toml", "max_num_seqs = 1\nblock-size = 1\ngrpc-port = 1\n")
    monkeypatch.setenv("WEFT_MAX_NUM_SEQS", "2")
    monkeypatch.setenv("WEFT_BLOCK_SIZE", "2")
    _, options = serve_arguments("--config", path, "--max-num-seqs", "3")
    assert (options.max_num_seqs, options.block_size, options.grpc_port) == (3, 2, 1)
    assert options.shutdown_timeout == 30.0


TOML = """
model = "m"
max-model-len = "8k"
api-key = ["a", "b"]
log_level = "debug"
enable-prefix-caching = false
"""
YAML = """
model: m
max-model-len: 8k
api-key: [a, b]
log_level: debug
enable-prefix-caching: false
"""
JSON = """{
"model": "m",
"max-model-len": "8k",
"api-key": ["a", "b"],
"log_level": "debug",
"enable-prefix-caching": false
}"""


@pytest.mark.parametrize(
    ("name", "text"), [("s.toml", TOML), ("s.yaml", YAML), ("s.json", JSON)], ids=lambda v: v[:6]
)
def test_the_three_file_formats_say_the_same(tmp_path, name: str, text: str):
    """TOML, YAML and JSON, told apart by the name's ending."""
    model, options = serve_arguments("--config", settings_file(tmp_path, name, text))
    assert model == "m"
    assert (options.max_model_len, options.api_key) == (8000, ["a", "b"])
    assert (options.log_level, options.enable_prefix_caching) == ("debug", False)


def test_the_file_may_be_named_in_the_environment(tmp_path, monkeypatch):
    """WEFT_CONFIG is --config."""
    monkeypatch.setenv("WEFT_CONFIG", settings_file(tmp_path, "s.yaml", "grpc_port: 7"))
    assert serve_arguments()[1].grpc_port == 7


def test_an_empty_file_says_nothing(tmp_path):
    """It is no mistake."""
    assert serve_arguments("--config", settings_file(tmp_path, "s.yaml", ""))[1].grpc_port == 50051


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.yaml", "max-model-lenn: 3", 'unknown setting "max-model-lenn"; did you mean "max-mod'),
        ("s.yaml", "config: other.yaml", 'unknown setting "config"'),
        ("s.yaml", "- 1\n- 2", "must be a table"),
        ("s.yaml", "a: [", "s.yaml: "),
        ("s.toml", "= 3", "s.toml: "),
        ("s.json", "{", "s.json: "),
        ("s.json", '{"block-size": {"a": 1}}', '"block-size" must be a value'),
        ("s.json", '{"block-size": null}', '"block-size" must be a value'),
        ("s.json", '{"block-size": "many"}', '"many"'),
        ("s.json", '{"block-size": 1, "block_size": 2}', 'duplicate key "block-size"'),
        ("s.json", '{"block-size": 1.5}', '"1.5" is not a whole number'),
        ("s.yaml", "api-key: 0123", '"api-key" takes text; put its value in quotes'),
        ("s.yaml", "api-key: []", "--api-key must not be empty"),
        ("s.ini", "a = 3", "must end in .json, .toml, .yaml, .yml"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_what_is_wrong(
    tmp_path, capsys, name: str, text: str, words: str
):
    """Nothing in a file is passed over: a typo would be a setting that never took effect."""
    line = refusal(capsys, "serve", "--config", settings_file(tmp_path, name, text))
    assert words in line


@pytest.mark.parametrize("text", ["block-size: many", "block-sise: 3", "block-size: {}", "["])
def test_the_file_is_named_when_it_is_refused(tmp_path, capsys, text: str):
    """A setting may come from three places; the message says where to look."""
    path = settings_file(tmp_path, "s.yaml", text)
    assert path in refusal(capsys, "serve", "--config", path)


def test_a_missing_file_is_refused(capsys):
    """The message names it."""
    line = refusal(capsys, "serve", "--config", "/nowhere/s.yaml")
    assert line == "error: --config /nowhere/s.yaml: No such file or directory"


@pytest.mark.parametrize("name", ["WEFT_API_KEY", "WEFT_CONTROL_API_KEY"])
def test_an_empty_key_in_the_environment_is_no_open_door(capsys, monkeypatch, name):
    """An unset variable in a deployment must not turn the check off."""
    monkeypatch.setenv(name, "")
    assert f"{name} is set but empty" in refusal(capsys, "serve")


def test_every_engine_option_has_a_flag_and_arrives():
    """An option without a flag is one that nobody can set; one that is lost is worse."""
    names = set(EngineOptions.__struct_fields__) - {"model"}
    given = {name: f"value of {name}" for name in names}
    options = ServeOptions(**given).engine_options("a model")
    assert {name: getattr(options, name) for name in names} == given
    assert options.model == "a model"


def test_the_defaults_of_flags_are_the_defaults_of_the_engine():
    """Starting from the command line and from Python gives the same engine."""
    assert ServeOptions().engine_options("embedded:tiny") == EngineOptions()


def test_help_comes_in_under_half_a_second():
    """Counted as processor time, because other processes may run beside the tests."""
    before = os.times()
    command = [sys.executable, "-m", "weft.cli.main", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = os.times()
    assert "serve" in shown
    user = after.children_user - before.children_user
    assert is_within(user + after.children_system - before.children_system, 0.5)


def test_help_loads_no_part_of_the_engine():
    """What makes help slow is what it imports."""
    script = (
        "import sys\nfrom weft.cli.main import run\nrun(['--help'])\n"
        "heavy = {'numpy', 'grpc', 'tokenizers', 'zmq', 'huggingface_hub', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stderr.strip() == "[]"
