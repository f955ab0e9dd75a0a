"""`weft serve` with the command lines of `vllm serve`."""

import json
import re
import shlex
from importlib.resources import files
from pathlib import Path

import httpx2
import pytest

from tests.cli.running import SMALL, running, weft
from weft.cli.main import make_app, run
from weft.cli.options import ServeOptions
from weft.cli.serving.finding import find
from weft.cli.serving.loading import check_api_flags, read_template, to_api_options, to_rpc_options
from weft.cli.serving.serve import check
from weft.cli.vllm_line import to_own_arguments
from weft.core.errors import ConfigError
from weft.engine.start.fit import Fitted

MODEL = f"{SMALL}&max_len=131072"
LINES = [
    tuple(line.partition("\t")[::2])
    for line in (Path(__file__).parent / "vllm_launch_lines.txt").read_text().splitlines()
    if not line.startswith("#")
]
INSTEAD = "(leave it out|run|take)"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def parsed(*argv: str) -> tuple[str | None, ServeOptions]:
    """What `weft serve ARGV` is called with."""
    line = ["serve", *to_own_arguments(argv)]
    _, bound, _ = make_app().parse_args(line, exit_on_error=False, print_error=False)
    bound.apply_defaults()
    return bound.arguments["model"], bound.arguments["options"]


def fitted(*argv: str) -> Fitted:
    """All that a start checks before it loads weights."""
    model, options = parsed(*argv)
    assert model is not None
    check(options)
    check_api_flags(options)
    to_api_options(options, read_template(options.chat_template))
    to_rpc_options(options)
    return find(model, options)


def outcome(*argv: str) -> str:
    """That it starts, or why not."""
    try:
        found = fitted(*argv)
    except ConfigError as error:
        return str(error)
    return "starts" if found.config.cache_config.num_blocks > 0 else "has no room"


def with_our_model(line: str) -> list[str]:
    words = shlex.split(line.replace("$GPUS", "1"))
    place = words.index("--model") + 1 if "--model" in words else 0
    return [*words[:place], MODEL, *words[place + 1 :]]


def test_the_lines_are_all_there():
    """As many as were read from vLLM's pages."""
    assert len(LINES) == 39


@pytest.mark.parametrize(("line", "refused"), LINES)
def test_a_line_of_vllms_pages_starts_or_says_what_to_do(
    line: str, refused: str, tmp_path, monkeypatch
):
    """Word for word but for the model, up to where weights would be loaded.

    A line that cannot be followed names the flag, why, and what to do instead, before anything is read.
    """
    for family in ("mistral", "hermes"):
        (tmp_path / f"tool_chat_template_{family}.jinja").write_text(TEMPLATE)
    monkeypatch.chdir(tmp_path)
    wanted = rf"^{refused}\b.* is not supported: \w.*; {INSTEAD}" if refused else "^starts$"
    assert re.search(wanted, outcome(*with_our_model(line)))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-tp", "1", "-n=1", "m"], ["m"]),
        (["--tensor_parallel_size=1", "m"], ["m"]),
        (["-O3", "-O", "2", "-O.mode=3", "m"], ["m"]),
        (["-q", "int8"], ["--quantization=int8"]),
        (["--no-enable-prefix-caching"], ["--no-enable-prefix-caching"]),
        (["m", "--served-model-name", "a", "b", "--port", "1"],
         ["m", "--served-model-name=a", "--served-model-name=b", "--port=1"]),
        (["--served-model-name", "a", "m"], ["--served-model-name=a", "m"]),
        (["--api-key", "k", "--model", "m"], ["--api-key=k", "--model=m"]),
        (["--compute", "native", "--no-http"], ["--compute", "native", "--no-http"]),
        (["--max-logprobs", "-1"], ["--max-logprobs=-1"]),
        (["--", "--headless"], ["--", "--headless"]),
        (["--hf-overrides.rope_scaling.factor", "2", "--hf-overrides.rope_scaling.rope_type=linear"],
         ['--hf-overrides={"rope_scaling": {"factor": 2, "rope_type": "linear"}}']),
        (["--hf-overrides.architectures+", "A"], ['--hf-overrides={"architectures": ["A"]}']),
    ],
)  # fmt: skip
def test_how_vllm_writes_a_line_is_read(argv: list[str], expected: list[str]):
    """Short forms, both spellings, several values behind a flag, keys of JSON behind a dot."""
    assert to_own_arguments(argv) == expected


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("--head", "--head is unknown. weft serve --help lists"),
        ("--gpu-memory-util", "--gpu-memory-util is unknown. Did you mean --gpu-memory-utilization?"),
        ("--tensor-parallel", "Did you mean --tensor-parallel-size?"),
        ("-zz", "-zz is unknown"),
        ("--seed", "--seed needs a value"),
    ],
)  # fmt: skip
def test_nothing_is_guessed_from_how_a_flag_begins(word: str, words: str):
    """A hint where it is near, and a refusal all the same."""
    with pytest.raises(ConfigError) as refused:
        to_own_arguments([word])
    assert words in str(refused.value)


def test_a_file_of_vllm_is_read(tmp_path):
    """Its keys are flags; what is JSON on a line is a table there."""
    path = tmp_path / "vllm.yaml"
    path.write_text(
        "model: m\nhost: 127.0.0.1\ntensor-parallel-size: 1\ntrust-remote-code: true\n"
        "gpu-memory-utilization: 0.5\nhf-overrides: {rope_theta: 5000.0}\n"
        "structured-outputs-config: {backend: xgrammar}\nserved-model-name: [a, b]\n"
    )
    model, options = parsed("--config", str(path))
    engine = options.engine_options()
    assert (model, engine.memory_share, engine.served_model_name) == ("m", 0.5, ["a", "b"])
    assert json.loads(str(engine.hf_overrides)) == {"rope_theta": 5000.0}
    (note,) = options.translated or ()
    assert "--memory-share 0.5" in note


def test_a_file_that_cannot_be_followed_is_named(tmp_path, capsys):
    """With the key, its value and why."""
    path = tmp_path / "vllm.yaml"
    path.write_text("tensor-parallel-size: 8\n")
    assert run(["serve", "--config", str(path)]) == 2
    assert f"--config {path}: tensor-parallel-size 8 is not supported" in capsys.readouterr().err


def test_a_share_of_the_memory_sizes_the_pool():
    """Beyond what would be taken without it, and no more than all sequences could fill."""
    share = ["--max-num-seqs", "4096", "--gpu-memory-utilization"]
    small, large = (fitted(MODEL, *share, value).config.cache_config for value in ("0.3", "0.6"))
    assert small.num_blocks < large.num_blocks
    with pytest.raises(
        ConfigError, match=r"--memory-share must be above 0 and at most 1, not 1\.5"
    ):
        fitted(MODEL, *share, "1.5")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], {"temperature": 0.3, "top_k": 20, "top_p": 0.95}),
        (["--generation-config", "vllm"], {}),
        (["--override-generation-config", '{"temperature": 0.9}'],
         {"temperature": 0.9, "top_k": 20, "top_p": 0.95}),
        (["--generation-config=vllm", "--override-generation-config.min_p", "0.1"], {"min_p": 0.1}),
    ],
)  # fmt: skip
def test_defaults_of_sampling_come_from_where_they_are_said_to(argv, expected):
    """The model's files, nowhere, or the line itself."""
    config = fitted("embedded:tiny", *argv).with_tokenizer().config
    assert config.model_config.default_sampling_params == expected


def test_a_directory_may_say_how_to_sample(tmp_path):
    """One with a generation_config.json; a key that means nothing here is refused."""
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.7}')
    config = fitted("embedded:tiny", "--generation-config", str(tmp_path)).config
    assert config.model_config.default_sampling_params == {"temperature": 0.7}
    with pytest.raises(ConfigError, match="max_length is unknown"):
        fitted("embedded:tiny", "--override-generation-config", '{"max_length": 3}')


def test_values_of_the_config_are_replaced():
    """As if its file had them, complaints included."""
    shorter = fitted("embedded:tiny", "--hf-overrides", '{"max_position_embeddings": 256}')
    assert shorter.config.model_config.max_model_len == 256
    with pytest.raises(ConfigError, match=r"config.json with --hf-overrides: hidden_act is 'no'"):
        fitted("embedded:tiny", "--hf-overrides", '{"hidden_act": "no"}')
    with pytest.raises(ConfigError, match="--hf-overrides is only for models with files"):
        fitted(SMALL, "--hf-overrides", '{"hidden_act": "silu"}')


def test_a_start_follows_a_line_of_vllm():
    """In both processes: the template is the text, the context the override's; the twin is said once."""
    argv = ["--gpu-memory-utilization", "0.5", "--trust-remote-code", "-tp", "1", "--seed", "7"]
    argv += ["--chat-template", "{{ messages[0].content }}", "--enable-request-id-headers"]
    argv += ["--hf-overrides", '{"max_position_embeddings": 512}']
    with running("embedded:tiny", *argv) as server:
        assert "context 512 tokens" in server.banner
        body = {"messages": [{"role": "user", "content": "The capital of France is"}],
                "max_tokens": 4, "temperature": 0}  # fmt: skip
        answer = httpx2.post(f"{server.http}/v1/chat/completions", json=body, timeout=60)
        assert answer.headers["x-request-id"]
        body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        plain = httpx2.post(f"{server.http}/v1/completions", json=body, timeout=60).json()
        content = answer.json()["choices"][0]["message"]["content"]
        assert content == plain["choices"][0]["text"]
        server.process.terminate()
        _, err = server.wait()
    assert err.count("--gpu-memory-utilization 0.5 is translated to --memory-share 0.5") == 1


def test_one_of_vllms_lines_serves():
    """As a process: tools, reasoning and a backend for constraints are named."""
    (line,) = (line for line, _ in LINES if "hermes" in line and "xgrammar" in line)
    with running("embedded:tiny", *shlex.split(line)[1:]) as server:
        answer = httpx2.get(f"{server.http}/v1/models", timeout=60).json()
    assert answer["data"][0]["id"] == "embedded:tiny"


def test_a_tokenizer_of_its_own_directory_is_served(tmp_path):
    """By both processes; its template is taken with it."""
    own = Path(str(files("weft.model.embedded"))) / "tiny"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((own / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    found = fitted("embedded:tiny", "--tokenizer", str(tmp_path)).with_tokenizer()
    assert found.checkpoint.chat_template == "{{ messages[0].content }}"
    ended = weft_line("--tokenizer", str(tmp_path / "nowhere"))
    assert "--tokenizer" in ended


def weft_line(*argv: str) -> str:
    ended = weft("serve", "embedded:tiny", "--port", "0", "--grpc-port", "0", *argv)
    assert ended.returncode == 2
    return ended.stderr
