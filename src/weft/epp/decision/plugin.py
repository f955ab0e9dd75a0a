"""Plugins: the calls that each kind answers, and the declaration of a plugin type."""

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
    """Services that a plugin may use besides its parameters."""

    name: str
    pool: Pool
    metrics: PickerMetrics
    max_load_age_s: float  # load that is older counts as unknown
    # Plugins built so far, by name, including all that this plugin refers to.
    built: Mapping[str, Any]
    clock: Callable[[], float] = monotonic  # the director's clock

    def plugin(self, name: str) -> Any:
        """A plugin that was named in `references`."""
        return self.built[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginType:
    """A row of the registry."""

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
    """Stands for plugins that another part of the picker creates from their parameters."""


def plugin_type(
    type_name: str,
    kinds: Kind | tuple[Kind, ...],
    build: Callable[[Any, Any], Any] = built_elsewhere,
    parameters: type[Parameters] = NoParameters,
    **more: Any,
) -> PluginType:
    """A row of the registry; `more` sets the optional columns."""
    wanted = frozenset(kinds if isinstance(kinds, tuple) else (kinds,))
    return PluginType(type_name=type_name, kinds=wanted, build=build, parameters=parameters, **more)


DECLARED: Final[dict[str, list[PluginType]]] = {}  # by Python module


def plugin(
    type_name: str,
    kinds: Kind | tuple[Kind, ...],
    parameters: type[Parameters] = NoParameters,
    **more: Any,
) -> Callable[[_Build], _Build]:
    """Declares the class, or the function, that makes plugins of a type."""

    def declare(build: _Build) -> _Build:
        row = plugin_type(type_name, kinds, build, parameters, **more)
        DECLARED.setdefault(build.__module__, []).append(row)
        return build

    return declare


class Plugin(Generic[_Parameters]):
    """Base of plugins that make nothing of their parameters beforehand."""

    def __init__(self, parameters: _Parameters, around: Surroundings) -> None:
        self._parameters = parameters
        self._around = around


class Filter(Protocol):
    """Drops candidates."""

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """The candidates that stay, in order."""


class Scorer(Protocol):
    """Rates candidates."""

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns a score for each candidate; the caller clamps scores to 0..1."""


class Picker(Protocol):
    """Chooses among rated candidates."""

    def pick(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> list[Endpoint]:
        """Returns the chosen endpoints, best first; at least one."""


class Producer(Protocol):
    """Computes data for other plugins, usually before candidates are filtered and scored."""

    def produce(self, cycle: Cycle) -> None:
        """Fill in the cycle."""


@runtime_checkable
class Preparer(Protocol):
    """Implemented by producers that have something to wait for."""

    async def prepare(self, cycle: Cycle) -> None:
        """Fill in the cycle before candidates are chosen."""


@runtime_checkable
class Learner(Protocol):
    """Implemented by plugins that learn from decisions."""

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Called with the schedule of a request."""


class Identity(Protocol):
    """Determines the fairness id of a request that names none."""

    def fairness_id(self, headers: Mapping[str, str]) -> str:
        """The fairness id; "" if the headers contain none."""


class Admitter(Protocol):
    """Decides whether a request is admitted."""

    def admit(self, cycle: Cycle) -> None:
        """Raises `Refused`; called after the producers, before an endpoint is chosen."""


class Reporter(Protocol):
    """Computes numbers for the gateway from the usage that a response reported."""

    def report(self, usage: Usage) -> Mapping[str, Mapping[str, float]]:
        """Dynamic metadata, by namespace and key."""


@runtime_checkable
class Closer(Protocol):
    """Implemented by plugins that hold something open."""

    async def aclose(self) -> None:
        """Releases resources; the picker is closing."""


class Profile(Protocol):
    """A scheduling profile, as handlers see it."""

    name: str

    def run(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> ProfileRun:
        """Filter, score and pick; raises `Refused` if nothing is left."""


class Handler(Protocol):
    """Runs profiles."""

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """Returns the endpoints for the request; raises `Refused`."""


class Decider(Protocol):
    """Decides whether a stage of a request runs on a separate endpoint."""

    def wants(self, cycle: Cycle, decode: Endpoint) -> bool:
        """True if the stage should run on another endpoint than `decode`."""


class Detector(Protocol):
    """Computes the saturation of the pool, or of the endpoints that serve a stage: "prefill" or "decode"; None for
    all.
    """

    def saturation(
        self, endpoints: Sequence[Endpoint], now: float, stage: str | None = None
    ) -> float:
        """Saturation as the endpoints report it; 1.0 or more means no capacity."""

    def expected_saturation(
        self, endpoints: Sequence[Endpoint], now: float, stage: str | None = None
    ) -> float:
        """Like `saturation`, plus the requests sent since the endpoints reported; used where many requests are
        admitted at once.
        """


@runtime_checkable
class FollowsUsage(Protocol):
    """Implemented by plugins that use the token usage of responses; they make the picker follow responses."""

    def used(self, ticket_id: int, usage: Usage) -> None:
        """Called with the usage that a response reported, before its end."""


@runtime_checkable
class FollowsTimes(Protocol):
    """Implemented by plugins that use the latencies of complete responses; they make the picker follow responses."""

    def timed(self, times: ResponseTimes) -> None:
        """Called at the natural end of a response, before `ended`."""


@runtime_checkable
class FollowsResponse(Protocol):
    """Implemented by plugins that hold state per request: they make the picker follow responses."""

    def first_token(self, ticket_id: int) -> None:
        """The response began; from that alone nothing may follow."""

    def ended(self, ticket_id: int) -> None:
        """Called at the end of a request, however it ends."""
