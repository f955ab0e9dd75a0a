"""Resolves the configuration of flow control: fills in defaults, with policies by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft.core.config.quantity import parse_duration_s, parse_quantity
from weft.core.errors import ConfigError
from weft.epp.config.config import BandSpec, FlowControlSpec
from weft.epp.config.parameters import Kind
from weft.epp.decision.plugin import (
    EVICTION_FILTER,
    EVICTION_ORDER,
    FCFS,
    GLOBAL_STRICT,
    STATIC_LIMIT,
)
from weft.epp.flow.policies import Limits
from weft.epp.resolve_plugins import NamedPlugins

FLOW_KINDS: Final = frozenset({
    Kind.FAIRNESS, Kind.ORDERING, Kind.USAGE_LIMIT, Kind.EVICTION_FILTER, Kind.EVICTION_ORDER,
})  # fmt: skip
_DEFAULT_TTL_S: Final = 60.0
_DEFAULT_BAND: Final = Limits(max_requests=5000, max_bytes=10**9)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedBand:
    """A priority band with its policies by name."""

    limits: Limits
    ttl_s: float
    fairness: str
    ordering: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFlow:
    """Flow control with its policies by name."""

    limits: Limits
    no_endpoint_ttl_s: float
    bands: Mapping[int, ResolvedBand]
    default_band: ResolvedBand
    default_negative_band: ResolvedBand
    usage_limit: str
    eviction: tuple[str, str] | None  # types of the filter and of the order policy

    def policies(self) -> set[str]:
        """Names of all policies that flow control uses."""
        bands = (*self.bands.values(), self.default_band, self.default_negative_band)
        named = {name for band in bands for name in (band.fairness, band.ordering)}
        return {*named, self.usage_limit, *(self.eviction or ())}


def resolve_flow(spec: FlowControlSpec, plugins: NamedPlugins) -> ResolvedFlow:
    """Fills in defaults. Raises `ConfigError`."""
    path = "flowControl"
    ttl_s = _ttl_s(spec.default_request_ttl, _DEFAULT_TTL_S)
    named = {"defaultPriorityBand": spec.default_priority_band,
             "defaultNegativePriorityBand": spec.default_negative_priority_band}  # fmt: skip
    defaults = []
    for key, band in named.items():
        if band is not None and band.priority:
            raise ConfigError(
                f"{path}.{key}.priority: must be absent: the default band applies to every priority"
            )
        defaults.append(_band(band or BandSpec(), f"{path}.{key}", ttl_s, plugins))
    bands: dict[int, ResolvedBand] = {}
    for i, band in enumerate(spec.priority_bands):
        where = f"{path}.priorityBands[{i}]"
        if band.priority in bands:
            raise ConfigError(f"{where}.priority: duplicate band of priority {band.priority}")
        bands[band.priority] = _band(band, where, ttl_s, plugins)
    usage_limit = _policy(
        spec.usage_limit_policy_plugin_ref, STATIC_LIMIT, Kind.USAGE_LIMIT,
        f"{path}.usageLimitPolicyPluginRef", plugins,
    )  # fmt: skip
    return ResolvedFlow(
        limits=Limits(
            max_requests=_amount(spec.max_requests, math.inf),
            max_bytes=_amount(spec.max_bytes, math.inf),
        ),
        no_endpoint_ttl_s=_ttl_s(spec.no_endpoint_request_ttl, ttl_s),
        bands=bands,
        default_band=defaults[0],
        default_negative_band=defaults[1],
        usage_limit=usage_limit,
        eviction=_eviction(plugins) if spec.enable_eviction else None,
    )


def _band(spec: BandSpec, path: str, ttl_s: float, plugins: NamedPlugins) -> ResolvedBand:
    return ResolvedBand(
        limits=Limits(
            max_requests=_amount(spec.max_requests, _DEFAULT_BAND.max_requests),
            max_bytes=_amount(spec.max_bytes, _DEFAULT_BAND.max_bytes),
        ),
        ttl_s=_ttl_s(spec.default_request_ttl, ttl_s),
        fairness=_policy(
            spec.fairness_policy_ref, GLOBAL_STRICT, Kind.FAIRNESS, f"{path}.fairnessPolicyRef",
            plugins,
        ),
        ordering=_policy(
            spec.ordering_policy_ref, FCFS, Kind.ORDERING, f"{path}.orderingPolicyRef", plugins
        ),
    )  # fmt: skip


def _policy(name: str | None, default: str, kind: Kind, path: str, plugins: NamedPlugins) -> str:
    if name is None or name == default:
        name = plugins.ensure(default)
    return plugins.get(name, kind, path).name


def _eviction(plugins: NamedPlugins) -> tuple[str, str]:
    chosen = []
    for kind, default in ((Kind.EVICTION_FILTER, EVICTION_FILTER),
                          (Kind.EVICTION_ORDER, EVICTION_ORDER)):  # fmt: skip
        found = plugins.of(kind)
        if len(found) > 1:
            raise ConfigError(f"{found[1].path}: only one {kind} is allowed, found another")
        chosen.append(found[0].name if found else plugins.ensure(default))
    return chosen[0], chosen[1]


def _amount(value: str | int | None, default: float) -> float:
    """Returns a limit as a number; 0 in the configuration means no limit."""
    return default if value is None else parse_quantity(value) or math.inf


def _ttl_s(text: str | None, default: float) -> float:
    """Returns the maximum wait in seconds; 0 in the configuration means no maximum."""
    return default if text is None else parse_duration_s(text) or math.inf
