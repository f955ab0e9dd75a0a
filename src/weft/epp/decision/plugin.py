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

# Types that others take when none is named.
TOKENS: Final = "token-producer"
APPROXIMATE: Final = "approx-prefix-cache-producer"
INFLIGHT: Final = "inflight-load-producer"
LATENCY: Final = "predicted-latency-producer"
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


# Parameters that name who computes what a plugin goes by.
PrefixProducer = Annotated[str, Refers(Kind.PRODUCER, APPROXIMATE)]
InflightProducer = Annotated[str, Refers(Kind.PRODUCER, INFLIGHT)]
LatencyProducer = Annotated[str, Refers(Kind.PRODUCER, LATENCY)]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Services that a plugin may use besides its parameters."""

    name: str
    pool: Pool
    metrics: PickerMetrics
    max_load_age_s: float  # older load says nothing
    built: Mapping[str, Any]  # plugins this one referred to, and all built before, by name
    clock: Callable[[], float] = monotonic  # the director's

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
    aliases: tuple[str, ...] = ()  # deprecated names
    is_alpha: bool = False
    replacement: str | None = None  # deprecated itself, in favour of this
    extractor: str | None = None  # the type that `dataLayer.sources` must name for it to have data


def built_elsewhere(_: object, __: object) -> None:
    """For types whose parameters are read by whoever starts that part."""


def plugin_type(
    type_name: str,
    kinds: Kind | tuple[Kind, ...],
    build: Callable[[Any, Any], Any] = built_elsewhere,
    parameters: type[Parameters] = NoParameters,
    **more: Any,
) -> PluginType:
    """A row of the registry; `more` is for its last columns."""
    wanted = frozenset(kinds if isinstance(kinds, tuple) else (kinds,))
    return PluginType(type_name=type_name, kinds=wanted, build=build, parameters=parameters, **more)


DECLARED: Final[dict[str, list[PluginType]]] = {}  # by module


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
        """The chosen ones, best first; at least one."""


class Producer(Protocol):
    """Computes data for others, mostly before candidates are rated."""

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
        """Learn where the request goes."""


class Identity(Protocol):
    """Says whose request it is, where the client does not name a flow."""

    def fairness_id(self, headers: Mapping[str, str]) -> str:
        """The flow; "" if the headers do not say."""


class Admitter(Protocol):
    """Says whether a request is taken."""

    def admit(self, cycle: Cycle) -> None:
        """Raises `Refused`; what producers found is there, and no endpoint is chosen yet."""


class Reporter(Protocol):
    """Makes numbers for the gateway of what a response reported."""

    def report(self, usage: Usage) -> Mapping[str, Mapping[str, float]]:
        """Dynamic metadata, by namespace and key."""


@runtime_checkable
class Closer(Protocol):
    """Implemented by plugins that hold something open."""

    async def aclose(self) -> None:
        """Let go of it; the picker is closing."""


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
    """Says whether a stage is worth a second endpoint."""

    def wants(self, cycle: Cycle, decode: Endpoint) -> bool:
        """True if the stage should run on another endpoint than `decode`."""


class Detector(Protocol):
    """Rates how full the pool is, or those of it that take a stage: "prefill", "decode", None for all."""

    def saturation(
        self, endpoints: Sequence[Endpoint], now: float, stage: str | None = None
    ) -> float:
        """1.0 and above: no room, as the endpoints report it."""

    def expected_saturation(
        self, endpoints: Sequence[Endpoint], now: float, stage: str | None = None
    ) -> float:
        """Like `saturation`, plus the requests sent since the endpoints reported; used where many requests are
        admitted at once.
        """


@runtime_checkable
class FollowsUsage(Protocol):
    """Implemented by plugins that learn what requests took; they follow responses too."""

    def used(self, ticket_id: int, usage: Usage) -> None:
        """Takes the usage that a response reported before its end."""


@runtime_checkable
class FollowsTimes(Protocol):
    """Implemented by plugins that learn how long whole responses took; they follow responses too."""

    def timed(self, times: ResponseTimes) -> None:
        """A response came to its natural end; before it is over."""


@runtime_checkable
class FollowsResponse(Protocol):
    """Implemented by plugins that hold state per request: they make the picker follow responses."""

    def first_token(self, ticket_id: int) -> None:
        """The response began; from that alone nothing may follow."""

    def ended(self, ticket_id: int) -> None:
        """The request is over, in whatever way."""
