"""ext_proc messages as Envoy sends them, and a stream of them without sockets."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from tests.doubles.fake_director import FakeDirector
from weft.epp.metrics.series import PickerMetrics
from weft.epp.request.parsers.engine_grpc import EngineGrpcParser
from weft.epp.request.parsers.parser import Call, Parser
from weft.epp.request.parsers.table import ParserTable
from weft.epp.request.vllm import VLLM
from weft.epp.server.body_reader import BodyReader
from weft.epp.server.ext_proc import FULL_DUPLEX
from weft.epp.server.limits import Held, PickerLimits
from weft.epp.server.streams.services import Services
from weft.epp.server.streams.stream import Exchange
from weft.epp.server.streams.stream_metrics import WireMetrics
from weft.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse

CHAT = b'{"model":"m","messages":[{"role":"user","content":"Hello"}]}'
ALL_PARSERS = (
    "openai-parser", "anthropic-parser", "vllmhttp-parser", "sglanghttp-parser",
    "vllmgrpc-parser", "sglanggrpc-parser", "trtllmgrpc-parser", "vertexai-parser", "passthrough-parser",
)  # fmt: skip


def request_headers(
    path: str = "/v1/chat/completions",
    *,
    method: str = "POST",
    end: bool = False,
    subset: Sequence[str] | str | None = None,
    **headers: str,
) -> ProcessingRequest:
    """The first message; `_` in a name stands for `-`."""
    message = ProcessingRequest()
    given = {":method": method, ":path": path, "content-type": "application/json"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    for key, value in given.items():
        message.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    message.request_headers.end_of_stream = end
    message.protocol_config.request_body_mode = FULL_DUPLEX
    message.protocol_config.response_body_mode = FULL_DUPLEX
    if subset is not None:
        hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        hint["x-gateway-destination-endpoint-subset"] = (
            subset if isinstance(subset, str) else list(subset)
        )
    return message


def request_body(body: bytes = CHAT, *, end: bool = True) -> ProcessingRequest:
    """A piece of a request's body."""
    message = ProcessingRequest()
    message.request_body.body = body
    message.request_body.end_of_stream = end
    return message


def request_trailers() -> ProcessingRequest:
    """The end of a request that has trailers."""
    message = ProcessingRequest()
    message.request_trailers.SetInParent()
    return message


def response_headers(
    status: int = 200, *, end: bool = False, content_type: str = "application/json", **more: str
) -> ProcessingRequest:
    """The head of a response."""
    message = ProcessingRequest()
    given = {":status": str(status), "content-type": content_type}
    given |= {name.replace("_", "-"): value for name, value in more.items()}
    for key, value in given.items():
        message.response_headers.headers.headers.add(key=key, raw_value=value.encode())
    message.response_headers.end_of_stream = end
    return message


def response_body(body: bytes, *, end: bool = False) -> ProcessingRequest:
    """A piece of a response's body."""
    message = ProcessingRequest()
    message.response_body.body = body
    message.response_body.end_of_stream = end
    return message


def response_trailers(**trailers: str) -> ProcessingRequest:
    """The end of a gRPC response."""
    message = ProcessingRequest()
    message.response_trailers.SetInParent()
    for name, value in trailers.items():
        message.response_trailers.trailers.headers.add(
            key=name.replace("_", "-"), raw_value=value.encode()
        )
    return message


def grpc_headers(
    method: str = "Generate", service: str = VLLM.service, **headers: str
) -> ProcessingRequest:
    """The head of a call of an engine's service."""
    message = request_headers(f"/{service}/{method}", **headers)
    for header in message.request_headers.headers.headers:
        if header.key == "content-type":
            header.raw_value = b"application/grpc"
    return message


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The data in pieces, cut at these places."""
    marks = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(marks)] or [b""]


class Stream:
    """One exchange, and what it answered."""

    def __init__(
        self,
        director: FakeDirector | None = None,
        parsers: Sequence[str] = ALL_PARSERS,
        limits: PickerLimits | None = None,
        **services: Any,
    ) -> None:
        self.director = director or FakeDirector()
        limits = limits or PickerLimits()
        self.held = Held(limits.max_held_bytes)
        self.metrics = PickerMetrics()
        self.reader = BodyReader()
        self.parsers = ParserTable(parsers)
        self.exchange = Exchange(
            Services(
                self.director,
                self.parsers,
                limits,
                self.held,
                WireMetrics(self.metrics),
                self.reader,
                **services,
            )
        )
        self.answers: list[ProcessingResponse] = []

    def call(self, path: str, body: bytes) -> tuple[Parser, Call, list[bytes]]:
        """What the reader is given of a request."""
        parser = self.parsers.find(path)
        is_grpc = isinstance(parser, EngineGrpcParser)
        return parser, Call(path=path, headers={}, request_id="r", is_grpc=is_grpc), [body]

    async def send(self, *messages: ProcessingRequest) -> list[ProcessingResponse]:
        """Each message in turn; what was answered to these."""
        before = len(self.answers)
        for message in messages:
            parsed = ProcessingRequest.FromString(message.SerializeToString())
            self.answers.extend(await self.exchange.receive(parsed))
        return self.answers[before:]

    @property
    def kinds(self) -> list[str | None]:
        """What sort each answer is."""
        return [answer.WhichOneof("response") for answer in self.answers]

    @property
    def head(self) -> dict[str, str]:
        """Headers set for the model server."""
        (answer,) = [one for one in self.answers if one.HasField("request_headers")]
        return set_headers(answer.request_headers.response.header_mutation)

    @property
    def removed(self) -> list[str]:
        """Headers taken from the model server."""
        (answer,) = [one for one in self.answers if one.HasField("request_headers")]
        return list(answer.request_headers.response.header_mutation.remove_headers)

    @property
    def body(self) -> bytes:
        """The request's body as it goes on."""
        return b"".join(streamed(one.request_body).body for one in self.answers)

    @property
    def response(self) -> bytes:
        """The response's body as it goes on."""
        return b"".join(streamed(one.response_body).body for one in self.answers)

    @property
    def refusal(self) -> Any:
        """The immediate response, which must be the last answer."""
        assert self.answers[-1].HasField("immediate_response")
        assert self.exchange.is_done
        return self.answers[-1].immediate_response


def streamed(body: Any) -> Any:
    """The piece in a body answer."""
    return body.response.body_mutation.streamed_response


def set_headers(mutation: Any) -> dict[str, str]:
    """Headers that an answer sets."""
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}
