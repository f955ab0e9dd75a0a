"""Whatever a gateway or its clients send: each request ends with an answer, and nothing stays held."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.busy import PATIENCE_S
from tests.doubles.fake_director import FakeDirector
from tests.epp.server.messages import (
    ALL_PARSERS,
    CHAT,
    Stream,
    grpc_headers,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from weft.epp.build import open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.server.limits import PickerLimits
from weft.epp.server.options import ServerOptions
from weft.epp.server.server import PickerServer
from weft.epp.server.streams.stream import ProtocolError
from weft.pb.ext_proc_pb2 import ProcessingRequest
from weft.pb.ext_proc_pb2_grpc import ExternalProcessorStub
from weft.pb.vllm_engine_pb2 import GenerateRequest, TokenizedInput

PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages",
    "/v1/conversations", "/inference/v1/generate", "/generate", "/v1/models", "/",
    "/vllm.grpc.engine.VllmEngine/Generate", "/vllm.grpc.engine.VllmEngine/Embed",
    "/vllm.grpc.engine.VllmEngine/Abort", "/a.PredictionService/ChatCompletions",
)  # fmt: skip
KEYS = (
    "model", "messages", "prompt", "input", "items", "tools", "stream", "system", "token_ids",
    "input_ids", "text", "content", "role", "max_tokens", "cache_salt", "sampling_params",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
GENERATE = GenerateRequest(tokenized=TokenizedInput(input_ids=range(70))).SerializeToString()
FRAME = b"\0" + len(GENERATE).to_bytes(4, "big") + GENERATE
BODIES = (
    st.sampled_from([CHAT, FRAME, b"", b"{}", b"[]"])
    | st.binary(max_size=60)
    | st.builds(lambda value: json.dumps(value).encode(), JSON)
    | st.builds(
        lambda data, at: data[: at % len(data)], st.sampled_from([CHAT, FRAME]), st.integers(0)
    )
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "content_encoding": st.sampled_from(["gzip", "br", "identity", ""]),
        "grpc_encoding": st.sampled_from(["gzip", "identity", "x"]),
        "content_length": st.sampled_from(["5", "-1", "x", "999999999999"]),
        "x_llm_d_inference_objective": st.text(max_size=5),
        "x_weft_lora_name": st.text(max_size=5),
        "x_request_id": st.text(max_size=300),
        "prefer": st.just("if-available"),
        "x_session_token": st.text(max_size=8),
    },
)


@st.composite
def openings(draw: Callable[..., Any]) -> ProcessingRequest:
    """Headers of some request."""
    path = draw(st.sampled_from(PATHS) | st.text(max_size=12))
    subset = draw(st.none() | st.lists(st.sampled_from(["10.0.0.1:8000", "x", ""]), max_size=2))
    message = request_headers(path, end=draw(st.booleans()), subset=subset, **draw(HEADERS))
    if draw(st.booleans()):
        message.request_headers.headers.MergeFrom(grpc_headers("Generate").request_headers.headers)
    return message


MESSAGES = st.one_of(
    openings(),
    st.builds(request_body, BODIES, end=st.booleans()),
    st.builds(request_trailers),
    st.builds(
        response_headers,
        st.sampled_from([200, 404, 503]),
        end=st.booleans(),
        content_type=st.sampled_from(["application/json", "text/event-stream", "application/grpc"]),
    ),
    st.builds(response_body, BODIES, end=st.booleans()),
    st.builds(response_trailers, grpc_status=st.sampled_from(["0", "13", "x"])),
    st.builds(ProcessingRequest),
)


@settings(max_examples=100)
@given(st.lists(MESSAGES, max_size=8), st.booleans(), st.none() | st.just("other"))
async def test_any_messages_are_answered_or_out_of_turn(
    messages: Sequence[ProcessingRequest], tracks_response: bool, rewritten_model: str | None
):
    """No other error; an end is told once, and bytes that were held are given back."""
    director = FakeDirector(tracks_response=tracks_response, rewritten_model=rewritten_model)
    stream = Stream(director, limits=PickerLimits(max_body_bytes=5000, max_header_bytes=2000))
    for message in messages:
        if stream.exchange.is_done:
            break
        try:
            await stream.send(message)
        except ProtocolError:
            break
    stream.exchange.close()
    assert stream.held.num_bytes == 0
    assert len(director.endings) <= 1


@settings(max_examples=80)
@given(openings(), st.lists(BODIES, min_size=1, max_size=4), st.booleans())
async def test_a_whole_request_always_gets_its_answer(
    opening: ProcessingRequest, pieces: list[bytes], has_trailers: bool
):
    """Sent on in full, or refused: a gateway that waits for ever would be a client that does."""
    opening.request_headers.end_of_stream = False
    stream = Stream(limits=PickerLimits(max_body_bytes=5000))
    ends = [False] * (len(pieces) - 1) + [not has_trailers]
    messages = [request_body(piece, end=end) for piece, end in zip(pieces, ends, strict=True)]
    if has_trailers:
        messages.append(request_trailers())
    for message in (opening, *messages):
        if not stream.exchange.is_done:
            await stream.send(message)
    assert stream.exchange.is_done
    if stream.kinds[-1] != "immediate_response":
        assert stream.kinds[0] == "request_headers"
        last = stream.answers[-1]
        assert (
            has_trailers or last.request_body.response.body_mutation.streamed_response.end_of_stream
        )


CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: openai-parser}
- {type: vllmgrpc-parser}
- {type: sglanghttp-parser}
- {type: passthrough-parser}
- {type: queue-scorer}
- {type: prefix-cache-scorer}
- {type: active-request-scorer}
- {type: lora-affinity-scorer}
- {type: session-affinity-scorer}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer}
  - {pluginRef: prefix-cache-scorer}
  - {pluginRef: active-request-scorer}
  - {pluginRef: lora-affinity-scorer}
  - {pluginRef: session-affinity-scorer}
requestHandler:
  parsers:
  - {pluginRef: openai-parser}
  - {pluginRef: vllmgrpc-parser}
  - {pluginRef: sglanghttp-parser}
  - {pluginRef: passthrough-parser}
"""


class Running:
    """A real picker behind its real server, for as long as a test runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._picker = loop.run_until_complete(
            open_picker(
                PickerOptions(
                    config_text=CONFIG, endpoints=("127.0.0.1:1", "127.0.0.1:2"),
                    refresh_metrics_interval_s=60.0, allow_experimental_plugins=True,
                )
            )
        )  # fmt: skip
        options = ServerOptions(grpc_port=0, grpc_health_port=0)
        self.server = PickerServer(self._picker.director, ALL_PARSERS, options)
        ports = loop.run_until_complete(self.server.start())
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc}")

    def send(self, messages: Sequence[ProcessingRequest]) -> tuple[list[str | None], str]:
        """What sort of answers came, and the status of the stream's end."""
        return self._loop.run_until_complete(self._send(messages))

    async def _send(self, messages: Sequence[ProcessingRequest]) -> tuple[list[str | None], str]:
        call = ExternalProcessorStub(self.channel).Process()
        kinds: list[str | None] = []
        async with asyncio.timeout(PATIENCE_S):
            # The other side may end the stream while there is more to be written.
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for message in messages:
                    await call.write(message)
                await call.done_writing()
            with suppress(grpc.aio.AioRpcError):
                while (answer := await call.read()) is not grpc.aio.EOF:
                    kinds.append(answer.WhichOneof("response"))
            # A write that crosses the stream's end is INTERNAL to this side's library; the other's is told.
            code = (await call.code()).name
            is_ours = "from Core" in ((await call.details()) or "")
            while self.server.num_streams:  # noqa: ASYNC110 - nothing may be left, in a moment
                await asyncio.sleep(0.001)
            return kinds, "CROSSED" if is_ours else code

    def close(self) -> None:
        """End it."""
        for ending in (self.channel.close(), self.server.stop(), self._picker.close()):
            self._loop.run_until_complete(ending)


def test_a_running_picker_survives_anything(caplog):
    """A stream is answered, or ends with a status that names the sender's fault; the next one works."""
    with asyncio.Runner() as runner:
        running = Running(runner.get_loop())

        @settings(max_examples=60, deadline=None)
        @given(st.lists(MESSAGES, max_size=6))
        def survive(messages: Sequence[ProcessingRequest]) -> None:
            kinds, code = running.send(messages)
            assert kinds or code in {"CANCELLED", "INVALID_ARGUMENT", "CROSSED"}, code
            assert code in {"OK", "CANCELLED", "INVALID_ARGUMENT", "CROSSED"}

        try:
            survive()
            kinds, _ = running.send([request_headers(), request_body()])
            assert kinds == ["request_headers", "request_body"]
        finally:
            running.close()
    assert "a request failed inside the picker" not in caplog.text
