"""`weft serve --engine vllm`, as far as it goes without vLLM: the line."""

import pytest

from weft.cli.main import make_app
from weft.cli.options import ServeOptions
from weft.cli.vllm_line import to_own_arguments

VLLM = ("m", "--engine", "vllm")


def parsed(*argv: str) -> ServeOptions:
    """The options of a line."""
    line = ["serve", *to_own_arguments(argv)]
    _, bound, _ = make_app().parse_args(line, exit_on_error=False, print_error=False)
    bound.apply_defaults()
    return bound.arguments["options"]


@pytest.mark.parametrize(
    "words",
    [
        ("--tensor-parallel-size", "4"),
        ("-tp=4",),
        ("--max-model-len", "auto"),
        ("--quantization=awq",),
        ("--kv-cache-dtype", "fp8"),
        ("--enforce-eager",),
        ("--no-enable-prefix-caching",),
        ("--speculative-config.method", "eagle"),
        ("--gpu-memory-utilization", "0.5"),
        ("--pipeline-parallel-size", "2"),
        ("--data-parallel-size", "8"),
        ("--data-parallel-size-local", "4"),
        ("--data-parallel-address", "10.0.0.1"),
        ("--data-parallel-rpc-port", "13345"),
        ("--data-parallel-backend", "ray"),
        ("--distributed-executor-backend", "ray"),
        ("--nnodes", "2"),
        ("--node-rank", "0"),
        ("--master-addr", "10.0.0.1"),
        ("--enable-expert-parallel",),
        ("--enable-elastic-ep",),
        ("--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'),
        ("--kv-transfer-config.kv_connector", "NixlConnector"),
    ],
)
def test_flags_of_vllms_engine_go_to_it_as_they_are(words: tuple[str, ...]):
    """Also those that an engine of ours would refuse, or would read in another way."""
    options = parsed(*VLLM, *words, "--port", "8001")
    assert options.vllm_words == list(words)
    assert (options.engine, options.port) == ("vllm", 8001)
    assert options.engine_options() == ServeOptions().engine_options()


def test_what_our_servers_have_to_know_is_ours():
    """Names, tokenizer and parsers; and flags of vLLM's server, which is not there."""
    options = parsed(
        *VLLM, "--served-model-name", "a", "--enable-lora", "--uvicorn-log-level=debug"
    )
    assert options.vllm_words is None
    assert (options.served_model_name, options.enable_lora) == (["a"], True)
    assert options.log_level == "debug"


def test_a_list_ends_before_the_next_flag():
    """As it does for vLLM."""
    options = parsed(*VLLM, "--cudagraph-capture-sizes", "1", "2", "--port", "8001")
    assert options.vllm_words == ["--cudagraph-capture-sizes", "1", "2"]


def test_without_it_nothing_goes_there():
    """`--engine weft` reads vLLM's flags as it always did."""
    assert parsed("m", "--enforce-eager").vllm_words is None
