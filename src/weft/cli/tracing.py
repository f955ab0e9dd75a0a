"""The tracer of a command with servers, if spans are requested."""

from importlib import import_module
from typing import TYPE_CHECKING

from weft.core.errors import ConfigError
from weft.core.extras import how_to_install

if TYPE_CHECKING:  # imports OpenTelemetry, which is an extra
    from weft.core.observe.otlp import OtlpTracer


def open_tracer(flag: str, service: str, *, endpoint: str | None = None) -> "OtlpTracer | None":
    """Returns a tracer for the spans that `flag` requests, exported to `endpoint` or as the environment says; None
    if the environment disables OpenTelemetry. The caller closes the tracer at the end.
    """
    if endpoint is not None and not endpoint.strip():
        raise ConfigError(f"{flag} must be an address, such as http://localhost:4317")
    try:
        otlp = import_module("weft.core.observe.otlp")
    except ImportError as error:
        raise ConfigError(f"{flag} needs OpenTelemetry: {how_to_install('otel')}") from error
    tracer: OtlpTracer | None = otlp.open_tracer(service, endpoint)
    return tracer
