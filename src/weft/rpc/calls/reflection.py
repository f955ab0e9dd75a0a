"""`grpc.reflection.v1` in addition to `v1alpha`, which the library implements: only their package names differ."""

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc import (
    GenericRpcHandler,
    method_handlers_generic_handler,
    stream_stream_rpc_method_handler,
)
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

_NEW_SERVICE = "grpc.reflection.v1.ServerReflection"


def reflection_handlers(services: Sequence[str]) -> tuple["GenericRpcHandler[Any, Any]", ...]:
    """Returns the handlers of both versions of gRPC reflection, which describe `services` and themselves."""
    versions = (reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"], _new_service())
    names = (*services, *(version.full_name for version in versions))
    servicer = ReflectionServicer(names)
    return tuple(_handler(version, servicer) for version in versions)


def _handler(
    service: ServiceDescriptor, servicer: ReflectionServicer
) -> "GenericRpcHandler[Any, Any]":
    """A handler for the newer version; `servicer` uses the messages of the older one, which have the same bytes."""
    call = stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return method_handlers_generic_handler(service.full_name, {"ServerReflectionInfo": call})


def _new_service() -> ServiceDescriptor:
    """The newer version's descriptor, so that clients can ask for it by name."""
    pool = descriptor_pool.Default()
    try:
        return pool.FindServiceByName(_NEW_SERVICE)
    except KeyError:
        pool.Add(_renamed())
        return pool.FindServiceByName(_NEW_SERVICE)


def _renamed() -> FileDescriptorProto:
    old = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(old)
    old.ClearField("options")  # options name packages of other languages, and the deprecation
    return text_format.Parse(
        text_format.MessageToString(old).replace("v1alpha", "v1"), FileDescriptorProto()
    )
