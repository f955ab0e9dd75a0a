"""Parameters of plugins: their base class, and the annotations of references to other plugins."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, TypeVar, get_args

import msgspec
from msgspec import structs

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class Kind(StrEnum):
    """The places of a configuration where a plugin can be used."""

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
    TELEMETRY_SOURCE = "telemetry source"
    TELEMETRY_EXTRACTOR = "telemetry extractor"
    ATTRIBUTES = "extractor of attributes"
    MODEL_LISTS = "reader of model lists"
    TOPOLOGY = "topology extractor"
    NOTIFIER = "endpoint notification source"
    IDENTITY = "request header processor"
    ADMITTER = "admitter"
    REPORTER = "response reporter"
    DISCOVERY = "endpoint discovery"
    FAIRNESS = "fairness policy"
    ORDERING = "ordering policy"
    USAGE_LIMIT = "usage limit policy"
    EVICTION_FILTER = "eviction filter"
    EVICTION_ORDER = "eviction order policy"


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference from a plugin's parameters to another plugin, by name or by default type."""

    key: str  # name of the parameter, for error messages
    name: str
    kind: Kind
    default_type: str | None = None  # type of the plugin that is created if no plugin has this name


@dataclass(frozen=True, slots=True)
class Refers:
    """Annotation of a parameter whose value is the name of another plugin."""

    kind: Kind
    default_type: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """Annotation of a parameter that is accepted without effect, with the reason."""

    reason: str


_Note = TypeVar("_Note", bound=Refers | Ignored)


class Parameters(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """Base class of every plugin's parameters. `needs` has the types of producers that must run before the plugin."""

    needs: ClassVar[tuple[str, ...]] = ()

    def references(self) -> Iterable[Reference]:
        """Yields the references to the plugins that these parameters name."""
        for producer in self.needs:
            yield Reference("", producer, Kind.PRODUCER, producer)
        for field, refers in self._noted(Refers):
            if name := getattr(self, field.name):
                yield Reference(field.encode_name, name, refers.kind, refers.default_type)

    def profiles(self) -> Iterable[tuple[str, str]]:
        """Yields the scheduling profiles that these parameters name, each after the key that names it."""
        return ()

    def without_effect(self) -> Iterable[tuple[str, str]]:
        """Yields the keys that are set without effect, each with the reason."""
        for field, ignored in self._noted(Ignored):
            if getattr(self, field.name) is not None:
                yield field.encode_name, ignored.reason

    def set_keys(self) -> list[str]:
        """Names of the keys whose values are not the defaults."""
        return [
            each.encode_name
            for each in structs.fields(self)
            if getattr(self, each.name) != each.default
        ]

    def _noted(self, kind: type[_Note]) -> Iterator[tuple[structs.FieldInfo, _Note]]:
        for field in structs.fields(self):
            # The annotation may be a member of a union.
            for hint in (field.type, *get_args(field.type)):
                for note in getattr(hint, "__metadata__", ()):
                    if isinstance(note, kind):
                        yield field, note


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base class of the objects inside a plugin's parameters."""


class NoParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of a plugin that has no settings."""
