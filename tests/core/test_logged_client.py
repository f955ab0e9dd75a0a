"""A line for each request."""

import logging

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, running, streaming
from tests.doubles.fake_engine import FakeEngine
from weft.core.errors import BadRequest
from weft.core.logged_client import as_logged
from weft.core.values.types import (
    LoRARequest,
    OutputKind,
    RequestOptions,
    SamplingParams,
    StructuredOutputsParams,
)

OPTIONS = RequestOptions(request_id="one", priority=3)


async def test_a_line_has_the_length_of_the_prompt_and_the_changed_parameters(caplog):
    """The prompt itself is not in it."""
    caplog.set_level(logging.INFO, "weft.requests")
    client = as_logged(FakeEngine(), 2)
    params = SamplingParams(temperature=0.5, max_tokens=7, output_kind=OutputKind.DELTA)
    options = RequestOptions(
        request_id="one",
        priority=3,
        lora_request=LoRARequest(lora_name="sql", lora_int_id=1, lora_path="/adapters/sql"),
    )
    await client.prepare([101, 102, 103], params, options)
    (line,) = caplog.messages
    assert line.startswith("request one: 3 prompt tokens, priority 3, adapter sql, SamplingParams(")
    assert "temperature=0.5" in line
    assert "max_tokens=7" in line
    assert "top_p" not in line
    assert "output_kind" not in line
    assert "101" not in line


async def test_debug_adds_the_beginning_of_the_prompt(caplog):
    """As many token ids as the limit allows."""
    caplog.set_level(logging.DEBUG, "weft.requests")
    client = as_logged(FakeEngine(), 2)
    await client.prepare([101, 102, 103], SamplingParams(), OPTIONS)
    assert caplog.messages[-1] == "request one: prompt None, token ids [101, 102]"


async def test_a_long_parameter_is_cut(caplog):
    """A schema of a megabyte makes no line of a megabyte."""
    caplog.set_level(logging.INFO, "weft.requests")
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a" * 10_000))
    await as_logged(FakeEngine(), 2).prepare([5], params, OPTIONS)
    assert len(caplog.messages[0]) < 500


async def test_a_refused_request_is_not_logged(caplog):
    """The error reaches the caller as without the log."""
    caplog.set_level(logging.INFO, "weft.requests")
    with pytest.raises(BadRequest, match="temperature"):
        await as_logged(FakeEngine(), 2).prepare([5], SamplingParams(temperature=-1.0), OPTIONS)
    assert not caplog.messages


def test_requests_of_both_protocols_are_logged():
    """The flag applies to HTTP and gRPC."""
    with running(SMALL, "--enable-log-requests") as server:
        server.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 2})
        server.read_log_until("3 prompt tokens")
        with streaming(server.address, "hello", "--max-tokens", "2") as (process, _):
            process.wait(PATIENCE_S)
        server.read_log_until("5 prompt tokens")
