"""Creates the tracer of a command that runs servers, if tracing is requested."""

from importlib import import_module
from typing import TYPE_CHECKING

from weft.core.errors import ConfigError
from weft.core.extras import how_to_install

if TYPE_CHECKING:  # imports OpenTelemetry, which is an extra
    from weft.core.observe.otlp import OtlpTracer


def open_tracer(flag: str, service: str, *, endpoint: str | None = None) -> "OtlpTracer | None":
    """Returns the tracer for the flag `flag`; it exports spans to `endpoint`, or as the OTEL_ environment variables
    say. Returns None if the environment disables OpenTelemetry. The caller closes the tracer.
    """
    if endpoint is not None and not endpoint.strip():
        raise ConfigError(f"{flag} must be an address, such as http://localhost:4317")
    try:
        otlp = import_module("weft.core.observe.otlp")
    except ImportError as error:
        raise ConfigError(f"{flag} needs OpenTelemetry: {how_to_install('otel')}") from error
    tracer: OtlpTracer | None = otlp.open_tracer(service, endpoint)
    return tracer
