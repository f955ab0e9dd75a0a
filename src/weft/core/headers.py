"""Names of headers between gateway, picker and servers, and headers that servers must not accept from clients."""

from collections.abc import Iterable
from typing import Final

DESTINATION: Final = "x-gateway-destination-endpoint"
DROPPED_REASON: Final = "x-llm-d-request-dropped-reason"
REQUEST_ID: Final = "x-request-id"
DECISION: Final = "x-weft-decision"
RESUME: Final = "x-weft-resume"
WENT_INTO_RESPONSE: Final = "x-went-into-resp-headers"
# Addresses that a server sends to, or fetches from, for a request: the picker sets these headers.
PREFILLER: Final = "x-prefiller-host-port"
ENCODERS: Final = "x-encoder-hosts-ports"
DATA_PARALLEL: Final = "x-data-parallel-host-port"
CACHE_SOURCE: Final = "x-kv-cache-source-host-port"
# The endpoints that a client chooses; the header has an effect only with the filter plugin for it.
TESTED_ENDPOINTS: Final = "test-epp-endpoint-selection"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET_HINT: Final = "x-gateway-destination-endpoint-subset"

# Headers for the picker, or headers that only the picker may set. None of them may pass from a client to a model
# server: some make the server connect to the address in the header.
_CONTROL_PREFIXES: Final = (
    "x-gateway-",
    "x-llm-d-",
    "x-prefiller-",
    "x-encoder-",
    "x-slo-",
    DATA_PARALLEL,
    CACHE_SOURCE,
)
_CONTROL_NAMES: Final = frozenset({"epp-profile", TESTED_ENDPOINTS})


def is_control(name: str) -> bool:
    """True if a header with this name must not pass from a client to a model server."""
    return name.startswith(_CONTROL_PREFIXES) or name in _CONTROL_NAMES


def control_headers(names: Iterable[str]) -> list[str]:
    """Returns the headers among `names` that must be removed from a client's request."""
    return [name for name in names if is_control(name)]


def is_grpc(content_type: str) -> bool:
    """True if a client with this content type expects a gRPC status; gRPC-Web counts as gRPC."""
    return content_type.startswith("application/grpc")
