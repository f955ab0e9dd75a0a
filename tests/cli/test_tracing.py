"""weft.cli.tracing"""

import sys

import pytest

from weft.cli.tracing import open_tracer
from weft.core.errors import ConfigError


def test_without_the_extra_the_flag_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    """At the start, and not with a traceback."""
    monkeypatch.delitem(sys.modules, "weft.core.observe.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(
        ConfigError, match=r"^--tracing needs OpenTelemetry: pip install 'weft-serve\[otel\]'"
    ):
        open_tracer("--tracing", "weft-epp")


def test_an_empty_address_is_refused():
    """As from a variable that is set and empty."""
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint must be an address"):
        open_tracer("--otlp-traces-endpoint", "weft", endpoint=" ")
