"""The page of the gRPC services: methods, metadata, messages and fields, from their descriptors."""

from collections.abc import Iterator, Sequence
from types import ModuleType

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from tools.markdown import page, table
from weft.core.checks.lora import LORA_METADATA
from weft.pb import common_pb2, vllm_control_pb2, vllm_engine_pb2, vllm_inference_pb2
from weft.rpc.auth import ACCESS_BY_METHOD, ACCESS_BY_VLLM_METHOD, Access
from weft.rpc.convert.inference_request import REFUSED_OF_INFERENCE
from weft.rpc.convert.request import REFUSED_FIELDS
from weft.rpc.metadata import RANK_METADATA, REASONING_END_METADATA, REASONING_ENDED_METADATA
from weft.rpc.methods import REFUSALS, SERVICE, VERSION_METADATA, VLLM_REFUSALS
from weft.rpc.status import PARAMETER_METADATA

_OF_LORA = (
    "Generate: name of the LoRA adapter for the request, because the messages have no field for it. An unknown "
    "name is NOT_FOUND. Without this key, or with the name of the base model, no adapter is used."
)


_OF_REASONING = (
    "Generate: the text that ends the reasoning, in UTF-8. A constraint applies only after this text, unless "
    "`grammar_from_first_token` is set. Without this key, the server's `--reasoning-parser` decides."
)
_OF_KEYS = (
    "The column *key* says whether a method needs a key of `--api-key` or of `--control-api-key`. Without API keys, "
    "methods that need an API key are open to everyone. With API keys but without control keys, methods that need a "
    "control key are disabled (PERMISSION_DENIED). A server without keys of either kind is open to everyone who can "
    "connect to it. An API key can abort requests that were started with the same key, a control key can abort all "
    "requests; the ids of other requests are ignored like unknown ids. Cache events contain the tokens of all prompts."
)


_OF_OPERATORS = (
    "Methods of `vllm.Control` that need a control key are also disabled on a server without keys of either kind, as "
    "over HTTP."
)
_KEYS = {Access.API: "API", Access.OWN: "API or control", Access.CONTROL: "control"}
_OF_OTHERS = (
    "The same port serves `grpc.health.v1`, without a key, and with `--grpc-reflection` also `grpc.reflection.v1` and "
    "`v1alpha`, which need an API key."
)


def _key(method: MethodDescriptor) -> str:
    if method.name == "HealthCheck":
        return "API, or none with `--grpc-open-health-check`"
    is_ours = method.containing_service.full_name == SERVICE
    table_of_keys = ACCESS_BY_METHOD if is_ours else ACCESS_BY_VLLM_METHOD
    return _KEYS[table_of_keys.get(method.name, Access.API)]


def grpc_page() -> str:
    """Returns the page of all methods, messages and fields of the protocols."""
    metadata = {
        "`authorization`": "`Bearer KEY`, with an API key (`--api-key`) or a control key (`--control-api-key`).",
        f"`{LORA_METADATA}`": _OF_LORA,
        f"`{RANK_METADATA}`": "Calls of `vllm.Inference`: the data-parallel rank for the request.",
        "`traceparent`, `tracestate`": "The trace that a request belongs to. Used if the server exports traces.",
        f"`{REASONING_END_METADATA}`": _OF_REASONING,
        f"`{REASONING_ENDED_METADATA}`": "Generate: true if the prompt contains no unfinished reasoning.",
        f"`{VERSION_METADATA}`": (
            "Sent before the response of GetServerInfo: the version of Weft. The server supports all metadata "
            "of this table."
        ),
        f"`{PARAMETER_METADATA}`": "Sent after a refusal: the name of the invalid field, in UTF-8.",
    }
    return page(
        "gRPC",
        "The comments in `proto/` explain the fields. [The guide](../grpc.md) says which protocol is for whom.",
        *(part for module in _SERVICES for part in _service_parts(module)),
        _OF_KEYS,
        _OF_OPERATORS,
        _OF_OTHERS,
        "## Metadata",
        "`vllm.Control` and `vllm.Inference` read `authorization`, the trace, and the rank.",
        table(("key", "meaning"), metadata.items()),
        *(part for message in _messages() for part in _message_parts(message)),
    )


_SERVICES = (vllm_engine_pb2, vllm_inference_pb2, vllm_control_pb2)


def _service_parts(module: ModuleType) -> Iterator[str]:
    for service in module.DESCRIPTOR.services_by_name.values():
        yield f"## {service.full_name}"
        columns = ("method", "request", "response", "key", "refused if")
        yield table(columns, map(_method_row, service.methods))


def _messages() -> Iterator[Descriptor]:
    for module in (vllm_engine_pb2, common_pb2, vllm_inference_pb2, vllm_control_pb2):
        yield from module.DESCRIPTOR.message_types_by_name.values()


def _method_row(method: MethodDescriptor) -> Sequence[str]:
    stream = "stream of " if method.server_streaming else ""
    refusals = REFUSALS if method.containing_service.full_name == SERVICE else VLLM_REFUSALS
    status, where = refusals.get(method.name, (None, ""))
    refused = where if status is None else f"{where} ({status.name})"
    types = (method.input_type.name, f"{stream}{method.output_type.name}")
    return (method.name, *types, _key(method), refused)


def _message_parts(message: Descriptor) -> Iterator[str]:
    if message.GetOptions().map_entry:
        return
    yield f"### {message.full_name}"
    if not message.fields:
        yield "No fields."
        return
    rows = []
    names = REFUSED_FIELDS if message.file.package != "vllm" else REFUSED_OF_INFERENCE
    refused = names.get(message.name if names is REFUSED_FIELDS else message.full_name, ())
    for field in sorted(message.fields, key=lambda field: field.number):
        is_refused = field.name in refused
        kind = f"{_field_type(field)}{', refused' if is_refused else ''}"
        rows.append((field.number, field.name, kind))
    yield table(("no.", "field", "type"), rows)
    for nested in message.nested_types:
        yield from _message_parts(nested)


def _field_type(field: FieldDescriptor) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (
            field.message_type.fields_by_name["key"],
            field.message_type.fields_by_name["value"],
        )
        return f"map from {_field_type(key)} to {_field_type(value)}"
    kind = field.message_type or field.enum_type
    name = kind.name if kind is not None else _SCALARS[field.type]
    if field.is_repeated:
        return f"repeated {name}"
    oneof = field.containing_oneof
    if oneof is not None and not oneof.name.startswith("_"):
        return f"{name}, one of `{oneof.name}`"
    return f"optional {name}" if oneof is not None else name


_SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}
