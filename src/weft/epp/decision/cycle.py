"""`Cycle`: the state of one request while producers, filters, scorers and pickers decide on its endpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.epp.pool.endpoint import Endpoint
from weft.epp.request.slo import Slo
from weft.epp.request.values import InferenceRequest, Refused


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Cached prefix of a request's prompts at each endpoint, in leading blocks."""

    num_blocks: int
    block_size: int  # in tokens
    held: Mapping[Endpoint, int]  # cached blocks per endpoint
    # Cached blocks per endpoint, weighted by the tier that holds each block.
    weight: Mapping[Endpoint, float]

    def num_tokens(self, endpoint: Endpoint, num_prompt_tokens: int) -> int:
        """Returns the number of prompt tokens that the endpoint has cached. The last block may be incomplete."""
        return min(self.held.get(endpoint, 0) * self.block_size, num_prompt_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted latencies of a request at one endpoint, and the headroom to its SLO, in seconds.

    The headroom per token also respects the strictest SLO of the requests that run there.
    """

    ttft_s: float
    tpot_s: float | None  # None: no prediction
    ttft_headroom_s: float | None  # None: the request has no objective
    tpot_headroom_s: float | None
    num_requests: int  # running requests that this picker sent to the endpoint

    @property
    def meets(self) -> bool:
        """True if the endpoint is predicted to meet all SLOs of the request."""
        return (self.ttft_headroom_s or 0.0) >= 0.0 and (self.tpot_headroom_s or 0.0) >= 0.0


@dataclass(frozen=True, slots=True)
class LatencyPredictions:
    """A request's SLO, and its predicted latencies by endpoint. An endpoint with too little data has no prediction."""

    slo: Slo
    of: Mapping[Endpoint, Prediction]


@dataclass(slots=True)
class ProfileRun:
    """The results of one scheduling profile in raw form; they are explained only on request."""

    profile: str
    candidates: Sequence[Endpoint]
    after_filters: list[tuple[str, Sequence[Endpoint]]] = field(default_factory=list)
    scored: Sequence[Endpoint] = ()
    scores: list[tuple[str, float, list[float]]] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    picked: Sequence[Endpoint] = ()


@dataclass(slots=True, eq=False)
class Cycle:
    """State of one request's scheduling. Producers fill it in; all later plugins read it."""

    request: InferenceRequest
    model: str  # the model after rewriting, which the server gets
    candidates: Sequence[Endpoint]
    now: float  # start of the decision; before the decision, arrival of the request
    ticket_id: int = 0
    arrived: float = 0.0
    storing: Sequence[Endpoint] = ()  # candidates that have the objects which the request names
    is_placed: bool = False  # True once the decision has begun
    priority: int = 0
    fairness_id: str = ""
    # Each prompt as little-endian uint32 token ids; in text prompts, four bytes of text stand for a token.
    prompts: list[bytes] = field(default_factory=list)
    has_real_tokens: bool = False
    num_prompt_tokens: int = 0
    prefixes: dict[str, PrefixMatch] = field(default_factory=dict)  # by producer name
    chains: dict[str, list[list[int]]] = field(default_factory=dict)  # block hashes, by producer
    held_media: dict[str, Mapping[Endpoint, float]] = field(
        default_factory=dict
    )  # cached shares of the prompt, by producer name
    predictions: dict[str, LatencyPredictions] = field(default_factory=dict)  # by producer name
    session_ids: dict[str, str] = field(default_factory=dict)  # by producer name
    runs: list[ProfileRun] = field(default_factory=list)
    # Endpoints that refuse connections: excluded before any profile runs.
    unreachable: Sequence[Endpoint] = ()
    # Headers to set, in addition to the schedule's.
    request_headers: dict[str, str] = field(default_factory=dict)
    response_headers: dict[str, str] = field(default_factory=dict)

    @property
    def destinations(self) -> Sequence[Endpoint]:
        """The endpoints to which the request itself may go. Its other stages may run at every candidate."""
        return self.storing or self.candidates

    def require_cached(self, target: Endpoint) -> None:
        """Raises `Refused` if the endpoint has none of the prompt cached."""
        if not any(match.held.get(target) for match in self.prefixes.values()):
            raise Refused(412, "the endpoint has none of the prompt cached (prefer: if-available)")

    def num_uncached_tokens(self, endpoint: Endpoint, producer: str) -> int:
        """Returns the number of prompt tokens that `endpoint` would have to compute, by the data of `producer`."""
        match = self.prefixes.get(producer)
        cached = match.num_tokens(endpoint, self.num_prompt_tokens) if match else 0
        return self.num_prompt_tokens - cached


@dataclass(frozen=True, slots=True)
class Schedule:
    """The result of a profile handler: the endpoints for a request."""

    primary: str  # name of the profile whose pick is the destination
    picks: Mapping[str, Sequence[Endpoint]]  # by name of each profile that ran
    set_headers: Mapping[str, str] = field(default_factory=dict)
    destination: str | None = None  # None: the address of the primary pick

    @property
    def target(self) -> Endpoint:
        """The endpoint to which the request is sent."""
        return self.picks[self.primary][0]
