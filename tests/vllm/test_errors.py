"""Errors of vLLM to ours, held to the classes that 0.32 has. No vLLM is needed."""

from pathlib import Path

import pytest

from weft.core.errors import (
    BadRequest,
    Code,
    FailedPrecondition,
    GenerationError,
    Unsupported,
    WeftError,
)
from weft.vllm.convert.errors import TABLE, decoding, to_weft_error, translated

LISTED = [
    line.split("\t")
    for line in (Path(__file__).parent / "fields_0_32.tsv").read_text().splitlines()[1:]
]
ERRORS = {name.removeprefix("error "): bases for name, bases in LISTED if name[:6] == "error "}

CODES = {
    "EngineDeadError": Code.UNAVAILABLE,
    "EngineGenerateError": Code.INTERNAL,
    "GenerationError": Code.INTERNAL,
    "GracefulHTTPError": Code.INTERNAL,
    "LoRAAdapterNotFoundError": Code.NOT_FOUND,
    "MaxQueuedTokensError": Code.OVERLOADED,
    "ProfilerAlreadyActiveError": Code.PRECONDITION,
    "QueueOverflowError": Code.OVERLOADED,
    "RetryableRequestError": Code.UNAVAILABLE,
    "VLLMClientError": Code.INVALID,
    "VLLMError": Code.INTERNAL,
    "VLLMNotFoundError": Code.NOT_FOUND,
    "VLLMServerError": Code.INTERNAL,
    "VLLMUnprocessableEntityError": Code.INVALID,
    "VLLMValidationError": Code.INVALID,
}


def made_error(name: str, *arguments: object) -> Exception:
    """One of that name, with the bases it has there."""
    kind: type[Exception] = Exception
    for base in [*reversed(ERRORS[name].split()), name]:
        kind = type(base, (kind,), {})
    return kind(*arguments)


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_of_vllm_has_a_code(name):
    """One that is new there fails here until somebody says what it is."""
    assert to_weft_error(made_error(name, "what went wrong")).code is CODES[name]


def test_the_table_has_no_error_that_vllm_has_not():
    """But for Python's own."""
    own = {"ImportError", "NotImplementedError", "TimeoutError", "ValueError", "TypeError"}
    assert set(TABLE) - own <= set(ERRORS)


def test_what_a_decoder_raises_is_the_callers_fault():
    """Whatever its class; nothing of the library's own words, and what is known keeps its own."""
    with (
        pytest.raises(BadRequest, match=r"audio: the data is not in a known format") as caught,
        decoding("audio"),
    ):
        raise LookupError("<object at 0x7f>")
    assert caught.value.parameter == "audio"
    with pytest.raises(Unsupported, match="av"), decoding("audio"):
        raise ImportError("av")


def test_what_a_reader_refuses_begins_with_what_it_was_to_be():
    """Which vLLM's words may have somewhere, and a caller of several items looks for."""
    for error in (ValueError("Could not open video stream"), BadRequest("video", "video: cut")):
        with pytest.raises(BadRequest, match=r"^video: ") as caught, decoding("video"):
            raise error
        assert str(caught.value).count("video: ") == 1


def test_the_parameter_at_fault_is_named():
    """By vLLM, or by who called it."""
    said = made_error("VLLMValidationError", "too hot")
    said.parameter = "temperature"
    assert to_weft_error(said).parameter == "temperature"
    with pytest.raises(BadRequest, match="regex: too deep") as caught, translated("regex"):
        raise ValueError("too deep")
    assert caught.value.parameter == "regex"


def test_an_error_inside_another_is_the_one_that_counts():
    """A failed call of the engine hides the client's own mistake."""
    outer = made_error("EngineGenerateError")
    outer.__cause__ = made_error("VLLMValidationError", "bad")
    assert isinstance(to_weft_error(outer), BadRequest)
    assert isinstance(to_weft_error(made_error("EngineGenerateError")), GenerationError)


def test_what_is_not_set_up_is_a_precondition():
    """vLLM raises a bare Exception; ours are passed through."""
    text = "Call to profile method failed: Profiling is not enabled"
    assert isinstance(to_weft_error(Exception(text)), FailedPrecondition)
    missing = Exception("Call to collective_rpc method failed: 'Worker' has no attribute 'x'")
    assert to_weft_error(missing, "method").code is Code.INVALID
    failed = Exception(
        "Call to add_lora method failed: Worker failed with error 'No adapter found for /x', please check it"
    )
    refused = to_weft_error(failed, "lora_path")
    assert (refused.code, str(refused)) == (Code.INVALID, "lora_path: No adapter found for /x")
    ours = WeftError("ours")
    assert to_weft_error(ours) is ours


@pytest.mark.parametrize(
    "error",
    [TimeoutError(), Exception("Call to collective_rpc method failed: RPC call to x timed out.")],
)
def test_a_call_that_is_not_answered_in_time_says_so(error):
    """Raised in this process, or told by the engine's."""
    assert to_weft_error(error, "method").code is Code.DEADLINE
