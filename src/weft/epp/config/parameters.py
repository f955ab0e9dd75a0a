"""What a plugin's parameters are made of: the base of all, and how they name other plugins and profiles."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec


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

    def without_effect(self) -> Iterable[tuple[str, str]]:
        """Keys that are taken because files have them, though there is nothing to set: each with the reason."""
        return ()


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the parts that parameters are made of."""


class NoParameters(Parameters, frozen=True, kw_only=True):
    """For plugins that have nothing to set."""
