"""The protocols of all kinds of plugins, and the declaration of a plugin type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Any, Final, Generic, Protocol, TypeVar, runtime_checkable

from weft.epp.config.parameters import Kind, NoParameters, Parameters, Refers
from weft.epp.decision.cycle import Cycle, ProfileRun, Schedule
from weft.epp.decision.tickets import ResponseTimes
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.poller import EXTRACTOR_TYPE, SOURCE_TYPE
from weft.epp.pool.pool import Pool
from weft.epp.request.values import Usage

# Default types of plugins that other plugins refer to.
TOKENS: Final = "token-producer"
APPROXIMATE: Final = "approx-prefix-cache-producer"
INFLIGHT: Final = "inflight-load-producer"
LATENCY: Final = "predicted-latency-producer"
SESSION_ID: Final = "session-id-producer"
MEDIA_CACHE: Final = "mm-embeddings-cache-producer"
GLOBAL_STRICT: Final = "global-strict-fairness-policy"
FCFS: Final = "fcfs-ordering-policy"
STATIC_LIMIT: Final = "static-usage-limit-policy"
EVICTION_FILTER: Final = "sheddable-eviction-filter"
EVICTION_ORDER: Final = "priority-then-time-eviction-order-policy"
METRICS_SOURCE: Final = SOURCE_TYPE
METRICS_EXTRACTOR: Final = EXTRACTOR_TYPE

_Build = TypeVar("_Build", bound=Callable[[Any, Any], Any])
_Parameters = TypeVar("_Parameters", bound=Parameters)


# Parameters that name the producer whose results a plugin uses.
PrefixProducer = Annotated[str, Refers(Kind.PRODUCER, APPROXIMATE)]
InflightProducer = Annotated[str, Refers(Kind.PRODUCER, INFLIGHT)]
LatencyProducer = Annotated[str, Refers(Kind.PRODUCER, LATENCY)]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Services that a plugin may use in addition to its parameters."""

    name: str
    pool: Pool
    metrics: PickerMetrics
    max_load_age_s: float  # load that is older counts as unknown
    # Plugins built so far, by name, including all that this plugin refers to.
    built: Mapping[str, Any]
    clock: Callable[[], float] = monotonic  # the director's clock

    def plugin(self, name: str) -> Any:
        """Returns the plugin `name`, which the parameters' `references` include."""
        return self.built[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginType:
    """A plugin type in the registry."""

    type_name: str
    kinds: frozenset[Kind]
    build: Callable[[Any, Surroundings], Any]
    parameters: type[Parameters] = NoParameters
    aliases: tuple[str, ...] = ()  # deprecated names of the type
    is_alpha: bool = False
    replacement: str | None = None  # if set, the type is deprecated and this type replaces it
    # Extractor that `dataLayer.sources` must name, or the plugin has no data.
    extractor: str | None = None


def built_elsewhere(_: object, __: object) -> None:
    """Constructor of plugin types whose objects another part of the picker creates from their parameters; returns
    None.
    """


def plugin_type(
    type_name: str,
    kinds: Kind | tuple[Kind, ...],
    build: Callable[[Any, Any], Any] = built_elsewhere,
    parameters: type[Parameters] = NoParameters,
    **more: Any,
) -> PluginType:
    """Returns a row of the registry; `more` sets the optional fields."""
    wanted = frozenset(kinds if isinstance(kinds, tuple) else (kinds,))
    return PluginType(type_name=type_name, kinds=wanted, build=build, parameters=parameters, **more)


DECLARED: Final[dict[str, list[PluginType]]] = {}  # by Python module


def plugin(
    type_name: str,
    kinds: Kind | tuple[Kind, ...],
    parameters: type[Parameters] = NoParameters,
    **more: Any,
) -> Callable[[_Build], _Build]:
    """Returns a decorator that declares a class or function as the constructor of a plugin type."""

    def declare(build: _Build) -> _Build:
        row = plugin_type(type_name, kinds, build, parameters, **more)
        DECLARED.setdefault(build.__module__, []).append(row)
        return build

    return declare


class Plugin(Generic[_Parameters]):
    """Base class of plugins that only store their parameters."""

    def __init__(self, parameters: _Parameters, around: Surroundings) -> None:
        self._parameters = parameters
        self._around = around


class Filter(Protocol):
    """Plugin that removes candidate endpoints."""

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the candidates that remain, in the same order."""


class Scorer(Protocol):
    """Plugin that scores candidate endpoints."""

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns a score for each candidate; the caller clamps scores to 0..1."""


class Picker(Protocol):
    """Plugin that chooses among scored candidates."""

    def pick(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> list[Endpoint]:
        """Returns the chosen endpoints, the best first; at least one. `totals` are the candidates' weighted sums of
        scores.
        """


class Producer(Protocol):
    """Plugin that computes data for other plugins, usually before candidates are filtered and scored."""

    def produce(self, cycle: Cycle) -> None:
        """Stores the data in the cycle."""


@runtime_checkable
class Preparer(Protocol):
    """Protocol of producers that must await a result."""

    async def prepare(self, cycle: Cycle) -> None:
        """Awaits the data and stores them in the cycle, before candidates are chosen."""


@runtime_checkable
class Learner(Protocol):
    """Protocol of plugins that are informed of decisions."""

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Called after each decision with the chosen endpoints."""


class Identity(Protocol):
    """Plugin that determines the fairness id of a request whose client sets none."""

    def fairness_id(self, headers: Mapping[str, str]) -> str:
        """Returns the fairness id; "" if the headers contain none."""


class Admitter(Protocol):
    """Plugin that decides whether a request is admitted."""

    def admit(self, cycle: Cycle) -> None:
        """Raises `Refused` if the request is not admitted. Called after the producers and before an endpoint is
        chosen.
        """


class Reporter(Protocol):
    """Plugin that computes numbers for the gateway from the token usage of a response."""

    def report(self, usage: Usage) -> Mapping[str, Mapping[str, float]]:
        """Returns dynamic metadata for Envoy, by namespace and key."""


@runtime_checkable
class Closer(Protocol):
    """Protocol of plugins that must release resources."""

    async def aclose(self) -> None:
        """Releases the plugin's resources when the picker closes."""


class Profile(Protocol):
    """A scheduling profile, as profile handlers use it."""

    name: str

    def run(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> ProfileRun:
        """Filters and scores the candidates, and picks. Raises `Refused` if no candidate remains."""


class Handler(Protocol):
    """Plugin that runs scheduling profiles for a request."""

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """Returns the endpoints for the request. Raises `Refused`."""


class Decider(Protocol):
    """Plugin that decides whether a stage of a request (prefill or encode) runs on a separate endpoint."""

    def wants(self, cycle: Cycle, decode: Endpoint) -> bool:
        """True if the stage should run on another endpoint than the decode endpoint `decode`."""


class Detector(Protocol):
    """Plugin that computes the saturation of the pool. `stage` limits the computation to the endpoints of "prefill" or
    "decode"; None means all endpoints.
    """

    def saturation(
        self, endpoints: Sequence[Endpoint], now: float, stage: str | None = None
    ) -> float:
        """Returns the saturation by the endpoints' reports; 1.0 and above mean that there is no capacity."""

    def expected_saturation(
        self, endpoints: Sequence[Endpoint], now: float, stage: str | None = None
    ) -> float:
        """Returns the saturation by the endpoints' reports and the requests that were sent since. Used when many
        requests are admitted at once.
        """


@runtime_checkable
class FollowsUsage(Protocol):
    """Protocol of plugins that use the token usage of responses. Such a plugin makes the picker follow responses."""

    def used(self, ticket_id: int, usage: Usage) -> None:
        """Called with the token usage that a response reported, before the response ends."""


@runtime_checkable
class FollowsTimes(Protocol):
    """Protocol of plugins that use the latencies of complete responses. Such a plugin makes the picker follow
    responses.
    """

    def timed(self, times: ResponseTimes) -> None:
        """Called when a response has ended normally, before `ended`."""


@runtime_checkable
class FollowsResponse(Protocol):
    """Protocol of plugins that hold state per request. Such a plugin makes the picker follow responses."""

    def first_token(self, ticket_id: int) -> None:
        """Called when the first token of a response arrives; the response may still fail."""

    def ended(self, ticket_id: int) -> None:
        """Called at the end of a request, whether it succeeded or failed."""
