"""What plugins are: their kinds, the calls each kind answers, and how one is declared."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import msgspec

from weft.epp.decision.cycle import Cycle, ProfileRun, Schedule
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.pool import Pool


class Kind(StrEnum):
    """The places of a configuration that a plugin can stand in."""

    FILTER = "filter"
    SCORER = "scorer"
    PICKER = "picker"
    HANDLER = "profile handler"
    PRODUCER = "data producer"
    DECIDER = "disaggregation decider"
    PARSER = "parser"
    DETECTOR = "saturation detector"
    SOURCE = "data source"
    EXTRACTOR = "data extractor"
    DISCOVERY = "endpoint discovery"


@dataclass(frozen=True, slots=True)
class Reference:
    """A plugin that another one names, or takes by default."""

    key: str  # the parameter, for messages
    name: str
    kind: Kind
    default_type: str | None = None  # made under its own name if nothing has that name


class Parameters(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Base of every plugin's parameters."""

    def references(self) -> Iterable[Reference]:
        """The plugins these parameters name."""
        return ()

    def profiles(self) -> Iterable[tuple[str, str]]:
        """The scheduling profiles these parameters name, each after its key."""
        return ()


class NoParameters(Parameters, frozen=True, kw_only=True):
    """For plugins that have nothing to set."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a plugin may use beyond its parameters."""

    name: str
    pool: Pool
    metrics: PickerMetrics
    max_load_age_s: float  # older load says nothing
    built: Mapping[str, Any]  # plugins this one referred to, and all built before, by name

    def plugin(self, name: str) -> Any:
        """A plugin that was named in `references`."""
        return self.built[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginType:
    """One row of the registry."""

    type_name: str
    kinds: frozenset[Kind]
    build: Callable[[Any, Surroundings], Any]
    parameters: type[Parameters] = NoParameters
    aliases: tuple[str, ...] = ()  # deprecated names
    is_alpha: bool = False
    replacement: str | None = None  # deprecated itself, in favour of this


class Filter(Protocol):
    """Drops candidates."""

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """The candidates that stay, in order."""
        ...


class Scorer(Protocol):
    """Rates candidates."""

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """One number per candidate; clamped to 0..1 by the caller."""
        ...


class Picker(Protocol):
    """Chooses among rated candidates."""

    def pick(self, candidates: Sequence[Endpoint], totals: Sequence[float]) -> list[Endpoint]:
        """The chosen ones, best first; at least one."""
        ...


class Producer(Protocol):
    """Computes data for others."""

    def produce(self, cycle: Cycle) -> None:
        """Fill in the cycle."""
        ...


@runtime_checkable
class Preparer(Protocol):
    """Implemented by producers that have something to wait for."""

    async def prepare(self, cycle: Cycle) -> None:
        """Fill in the cycle before candidates are chosen."""
        ...


@runtime_checkable
class Learner(Protocol):
    """Implemented by plugins that learn from decisions."""

    def picked(self, cycle: Cycle, schedule: Schedule) -> None:
        """Learn where the request goes."""
        ...


class Profile(Protocol):
    """A scheduling profile, as handlers see it."""

    name: str

    def run(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> ProfileRun:
        """Filter, score and pick; raises `Refused` if nothing is left."""
        ...


class Handler(Protocol):
    """Runs profiles."""

    def schedule(self, cycle: Cycle, profiles: Mapping[str, Profile]) -> Schedule:
        """Where the request goes; raises `Refused`."""
        ...


class Decider(Protocol):
    """Says whether a stage is worth a second endpoint."""

    def wants(self, cycle: Cycle, decode: Endpoint) -> bool:
        """Whether to run the stage apart from `decode`."""
        ...


class Detector(Protocol):
    """Rates how full the pool is."""

    def saturation(self, endpoints: Sequence[Endpoint], now: float) -> float:
        """1.0 and above: no room."""
        ...


@runtime_checkable
class FollowsResponse(Protocol):
    """Implemented by plugins that hold state per request: they make the picker follow responses."""

    def first_token(self, ticket_id: int) -> None:
        """The response began."""
        ...

    def ended(self, ticket_id: int) -> None:
        """The request is over, in whatever way."""
        ...
