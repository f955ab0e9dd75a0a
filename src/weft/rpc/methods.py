"""The twelve calls of the service, read from its descriptor; server and client share this table."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from weft.core.errors import BadRequest
from weft.pb import vllm_engine_pb2
from weft.wire.message_bounds import (
    MAX_PACKED_BYTES,
    MAX_PARTS,
    MAX_UNPACKED_BYTES,
    crowded_field,
)

SERVICE = "vllm.grpc.engine.VllmEngine"

# Sent with the answer of GetServerInfo: identifies a Weft server, which understands the x-weft metadata.
VERSION_METADATA = "x-weft-version"

# Calls that some or all servers refuse to every caller: the status, the reason, and the servers concerned.
REFUSALS = MappingProxyType(
    {
        "Generate": (StatusCode.UNIMPLEMENTED, "the model embeds"),
        "Embed": (StatusCode.UNIMPLEMENTED, "the model generates text"),
        "StartProfile": (
            StatusCode.UNIMPLEMENTED,
            "the server was started without --profiler-config",
        ),
        "StopProfile": (
            StatusCode.UNIMPLEMENTED,
            "the server was started without --profiler-config",
        ),
        "GetTokenizer": (StatusCode.FAILED_PRECONDITION, "the model has no tokenizer"),
        "SubscribeKvEvents": (StatusCode.UNIMPLEMENTED, "prefix caching is off"),
    }
)


_BYTES_PER_ID = 5  # maximum bytes of a 32-bit id


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands for a request that could not be decoded, so that the handler can report that."""

    message_name: str
    crowded_field: str | None = None

    def error(self) -> BadRequest:
        """The refusal."""
        if self.crowded_field is not None:
            return BadRequest(
                self.crowded_field,
                f"{self.crowded_field}: {self.message_name} takes at most {MAX_PARTS} strings and "
                f"messages, {MAX_PACKED_BYTES} bytes of packed numbers or a context of them, "
                f"{MAX_UNPACKED_BYTES} bytes of others, "
                "and no groups",
            )
        return BadRequest(None, f"the request is not a valid {self.message_name} message")


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """A call: its message types, and whether it returns a stream."""

    name: str
    request_type: type[Message]
    response_type: type[Message]
    is_streaming: bool

    @property
    def path(self) -> str:
        """The path on the wire."""
        return f"/{SERVICE}/{self.name}"

    def decode_request(self, data: bytes, *, max_model_len: int = 0) -> Message | Undecodable:
        """Decodes a request, or returns `Undecodable`: for an exception here, grpc would answer UNKNOWN.

        The number of ids is limited to that of a context.
        """
        descriptor = self.request_type.DESCRIPTOR
        crowded = crowded_field(
            data, descriptor, max(MAX_PACKED_BYTES, _BYTES_PER_ID * max_model_len)
        )
        if crowded is not None:
            return Undecodable(descriptor.name, crowded)
        try:
            return self.request_type.FromString(data)
        except DecodeError:
            return Undecodable(descriptor.name)


def _read_methods() -> Mapping[str, RpcMethod]:
    service = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"]
    methods = {
        method.name: RpcMethod(
            name=method.name,
            request_type=GetMessageClass(method.input_type),
            response_type=GetMessageClass(method.output_type),
            is_streaming=method.server_streaming,
        )
        for method in service.methods
    }
    return MappingProxyType(methods)


METHODS = _read_methods()
