"""The calls of the three services, read from their descriptors; server and client share these tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from weft.core.errors import BadRequest
from weft.pb import vllm_control_pb2, vllm_engine_pb2, vllm_inference_pb2
from weft.wire.message_bounds import (
    MAX_PACKED_BYTES,
    MAX_PARTS,
    MAX_UNPACKED_BYTES,
    crowded_field,
)

SERVICE = "vllm.grpc.engine.VllmEngine"
INFERENCE_SERVICE = "vllm.Inference"
CONTROL_SERVICE = "vllm.Control"

# Sent with the answer of GetServerInfo: identifies a Weft server, which understands the x-weft metadata.
VERSION_METADATA = "x-weft-version"

# Sent with the beginning of an answer: the fingerprint of the server that gives the answer.
FINGERPRINT_METADATA = "x-weft-fingerprint"

# Calls of `VllmEngine` that some or all servers refuse to every caller: the status, the reason, and the servers
# concerned.
REFUSALS = MappingProxyType(
    {
        "Generate": (StatusCode.UNIMPLEMENTED, "the model embeds, or only transcribes speech"),
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

# The same for the calls of `vllm.Inference` and `vllm.Control`.
_NO_TEXT = (StatusCode.UNIMPLEMENTED, "the model embeds, or only transcribes speech")
_NO_TRANSFER = (StatusCode.UNIMPLEMENTED, "the server was started without --weight-transfer-config")
_NO_VERSIONS = (StatusCode.UNIMPLEMENTED, "always: the weights have no versions")
_FIXED_LORAS = (
    StatusCode.FAILED_PRECONDITION,
    "the server was started without --allow-runtime-lora-updating",
)
VLLM_REFUSALS = MappingProxyType(
    {
        "Generate": _NO_TEXT,
        "GenerateStream": _NO_TEXT,
        "Shutdown": (
            StatusCode.FAILED_PRECONDITION,
            "always: the process that started the server ends it, by a signal",
        ),
        "LoadLora": _FIXED_LORAS,
        "UnloadLora": _FIXED_LORAS,
        "InitWeightTransferEngine": _NO_TRANSFER,
        "StartWeightUpdate": _NO_TRANSFER,
        "StartDraftWeightUpdate": (
            StatusCode.UNIMPLEMENTED,
            "always: an update has the weights of the served model alone",
        ),
        "UpdateWeights": _NO_TRANSFER,
        "FinishWeightUpdate": _NO_TRANSFER,
        "UpdateWeightVersion": _NO_VERSIONS,
        "GetWeightVersion": _NO_VERSIONS,
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
    """A call of a service: its message types, and whether it returns a stream."""

    service: str
    name: str
    request_type: type[Message]
    response_type: type[Message]
    is_streaming: bool

    @property
    def path(self) -> str:
        """The path on the wire."""
        return f"/{self.service}/{self.name}"

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


def _read_methods(service: ServiceDescriptor) -> Mapping[str, RpcMethod]:
    methods = {
        method.name: RpcMethod(
            service=service.full_name,
            name=method.name,
            request_type=GetMessageClass(method.input_type),
            response_type=GetMessageClass(method.output_type),
            is_streaming=method.server_streaming,
        )
        for method in service.methods
    }
    return MappingProxyType(methods)


# Message of the health check of a server that shuts down and still finishes requests. A fleet then continues them at
# an equal server.
DRAINING = "Server is draining"

METHODS = _read_methods(vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"])
INFERENCE_METHODS = _read_methods(vllm_inference_pb2.DESCRIPTOR.services_by_name["Inference"])
CONTROL_METHODS = _read_methods(vllm_control_pb2.DESCRIPTOR.services_by_name["Control"])
METHODS_BY_SERVICE = MappingProxyType(
    {
        SERVICE: METHODS,
        INFERENCE_SERVICE: INFERENCE_METHODS,
        CONTROL_SERVICE: CONTROL_METHODS,
    }
)
