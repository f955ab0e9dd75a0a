"""Names of the headers between gateway, picker and servers, and which of them no client may send through."""

from collections.abc import Iterable
from typing import Final

DESTINATION: Final = "x-gateway-destination-endpoint"
DROPPED_REASON: Final = "x-llm-d-request-dropped-reason"
REQUEST_ID: Final = "x-request-id"
DECISION: Final = "x-weft-decision"
WENT_INTO_RESPONSE: Final = "x-went-into-resp-headers"
# Where a server is to send to, or take from, for a request: the picker says it.
PREFILLER: Final = "x-prefiller-host-port"
ENCODERS: Final = "x-encoder-hosts-ports"
DATA_PARALLEL: Final = "x-data-parallel-host-port"
CACHE_SOURCE: Final = "x-kv-cache-source-host-port"
# With a filter for it, a client's choice of endpoints.
TESTED_ENDPOINTS: Final = "test-epp-endpoint-selection"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET_HINT: Final = "x-gateway-destination-endpoint-subset"

# A client that sends one of these speaks to the picker, or tries to speak for it. None of them may
# reach a model server unless the picker sets it: some make a server connect to the address inside.
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
    """Whether a header of this name must not travel from a client to a model server."""
    return name.startswith(_CONTROL_PREFIXES) or name in _CONTROL_NAMES


def control_headers(names: Iterable[str]) -> list[str]:
    """Those of `names` that must be removed."""
    return [name for name in names if is_control(name)]


def is_grpc(content_type: str) -> bool:
    """Whether a client with this content type expects a gRPC status; gRPC-Web does as well."""
    return content_type.startswith("application/grpc")
