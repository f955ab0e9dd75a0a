"""Resolves a configuration: fills in defaults and checks references. Errors name the path of the wrong key."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.core.errors import ConfigError
from weft.epp.config.config import FlowControlSpec, PickerConfig, ProfileSpec, SourceSpec
from weft.epp.config.parameters import Kind
from weft.epp.decision.plugin import METRICS_EXTRACTOR, METRICS_SOURCE
from weft.epp.request.parsers.table import DEFAULT_PARSERS
from weft.epp.resolve_flow import FLOW_KINDS, ResolvedFlow, resolve_flow
from weft.epp.resolve_plugins import IN_PROFILES, NamedPlugins, ResolvedPlugin

_log = logging.getLogger(__name__)

DEFAULT_HANDLER = "single-profile-handler"
_ONE_PROFILE_HANDLERS = {DEFAULT_HANDLER, "data-parallel-profile-handler"}
DEFAULT_PICKER = "max-score-picker"
DEFAULT_DETECTOR = "utilization-detector"
FLOW_CONTROL_GATE = "flowControl"
_GATES = {FLOW_CONTROL_GATE: False, "haPopulateNonLeaderDatastore": True}


Sources = tuple[tuple[str, tuple[str, ...]], ...]  # each source with its extractors


@dataclass(frozen=True, slots=True)
class ResolvedProfile:
    """Names of a scheduling profile's plugins, by their function."""

    name: str
    filters: tuple[str, ...]
    scorers: tuple[tuple[str, float], ...]
    picker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """A checked and complete configuration."""

    # In order of references: each plugin after those that it refers to.
    plugins: tuple[ResolvedPlugin, ...]
    profiles: tuple[ResolvedProfile, ...]
    handler: str
    detector: str
    parsers: tuple[str, ...]  # type names, in order
    sources: Sources  # of load data
    telemetry: Sources
    discovery: str | None
    flow: ResolvedFlow | None = None  # None: the feature gate is off
    warnings: tuple[str, ...] = field(default=())

    def check_profiles_alone_differ(self, other: "ResolvedConfig") -> None:
        """Raises `ConfigError` if the other configuration differs in more than its profiles and their plugins: a
        running picker cannot change the rest.
        """
        mine, others = (
            {each.name: each for each in config.plugins if each.is_lasting}
            for config in (self, other)
        )
        for name in sorted(mine.keys() | others.keys()):
            if name not in mine or not mine[name].is_like(others.get(name)):
                raise ConfigError(f"plugin {name!r}: a change of it needs a restart")
        for key in ("handler", "detector", "parsers", "sources", "telemetry", "discovery", "flow"):
            if getattr(self, key) != getattr(other, key):
                raise ConfigError(f"{key}: a change of it needs a restart")


def resolve(config: PickerConfig, *, allow_experimental: bool) -> ResolvedConfig:
    """Checks every reference and fills in defaults. Raises `ConfigError`."""
    warnings: list[str] = []
    has_flow = _check_gates(config, warnings)
    plugins = NamedPlugins(allow_experimental, warnings)
    for i, spec in enumerate(config.plugins):
        path = f"plugins[{i}]"
        plugins.add(spec.name or spec.type, spec.type, spec.parameters or {}, path)
    _check_data_layer(config)
    profiles = _profiles(config, plugins)
    handler = _handler(plugins, profiles)
    detector = _detector(config, plugins)
    parsers = _parsers(config, plugins)
    sources, telemetry = _sources(config, plugins, warnings)
    discovery = None
    if config.data_layer and config.data_layer.discovery:
        named = config.data_layer.discovery.named()
        if named is not None:
            path = f"dataLayer.discovery.{named[0]}"
            discovery = plugins.get(named[1], Kind.DISCOVERY, path).name
    flow = resolve_flow(config.flow_control or FlowControlSpec(), plugins) if has_flow else None
    ordered = plugins.in_order()
    _check_use(ordered, discovery, sources)
    ordered = _without_idle_policies(ordered, flow, warnings)
    return ResolvedConfig(
        plugins=ordered,
        profiles=profiles,
        handler=handler,
        detector=detector,
        parsers=parsers,
        sources=sources,
        telemetry=telemetry,
        discovery=discovery,
        flow=flow,
        warnings=tuple(warnings),
    )


def _check_gates(config: PickerConfig, warnings: list[str]) -> bool:
    """Checks the feature gates; returns True if flow control is on."""
    gates = dict(_GATES)
    for i, entry in enumerate(config.feature_gates):
        name, equals, value = entry.partition("=")
        if name not in gates:
            known = ", ".join(gates)
            raise ConfigError(f"featureGates[{i}]: unknown gate {name!r}; known: {known}")
        if equals and value not in {"true", "false"}:
            raise ConfigError(f"featureGates[{i}]: must be {name}=true or {name}=false")
        gates[name] = value != "false"
    if not gates["haPopulateNonLeaderDatastore"]:
        warnings.append(
            "featureGates: haPopulateNonLeaderDatastore has no effect: every picker follows its pool"
        )
    if config.flow_control is not None and not gates[FLOW_CONTROL_GATE]:
        warnings.append(
            "flowControl: ignored except saturationDetector, since its feature gate is off"
        )
    return gates[FLOW_CONTROL_GATE]


def _check_data_layer(config: PickerConfig) -> None:
    layer = config.data_layer
    if layer is None:
        return
    for key, value in (
        ("peerDiscovery", layer.peer_discovery),
        ("discovery.peers", layer.discovery.peers if layer.discovery else None),
        ("crossReplicaSyncerPluginRef", layer.cross_replica_syncer_plugin_ref),
        ("crossReplicaSyncInterval", layer.cross_replica_sync_interval),
    ):
        if value is not None:
            raise ConfigError(f"dataLayer.{key}: state shared between pickers is not offered yet")


def _profiles(config: PickerConfig, plugins: NamedPlugins) -> tuple[ResolvedProfile, ...]:
    pickers = plugins.of(Kind.PICKER)
    default_picker = pickers[0].name if pickers else None
    if not config.scheduling_profiles:
        scorers = tuple((plugin.name, 1.0) for plugin in plugins.of(Kind.SCORER))
        filters = tuple(
            plugin.name for plugin in plugins.of(Kind.FILTER) if not plugin.is_a(Kind.DETECTOR)
        )
        if len(pickers) > 1:
            raise ConfigError(
                "plugins: more than one picker and no schedulingProfiles to place them"
            )
        picker = default_picker or plugins.ensure(DEFAULT_PICKER)
        return (ResolvedProfile("default", filters, scorers, picker),)
    names = [spec.name for spec in config.scheduling_profiles]
    for i, name in enumerate(names):
        if not name:
            raise ConfigError(f"schedulingProfiles[{i}].name: must be given")
        if name in names[:i]:
            raise ConfigError(f"schedulingProfiles[{i}].name: {name!r} is the name of two profiles")
    return tuple(
        _profile(spec, f"schedulingProfiles[{i}]", plugins, default_picker)
        for i, spec in enumerate(config.scheduling_profiles)
    )


def _profile(
    spec: ProfileSpec, path: str, plugins: NamedPlugins, default_picker: str | None
) -> ResolvedProfile:
    filters, scorers, pickers = [], [], []
    for i, entry in enumerate(spec.plugins):
        where = f"{path}.plugins[{i}]"
        plugin = _placed(plugins, entry.plugin_ref, f"{where}.pluginRef")
        is_scorer = plugin.is_a(Kind.SCORER)
        if entry.weight is not None and not is_scorer:
            raise ConfigError(
                f"{where}.weight: {plugin.name!r} is not a scorer; only scorers have a weight"
            )
        if plugin.is_a(Kind.FILTER):
            filters.append(plugin.name)
        if is_scorer:
            scorers.append((plugin.name, 1.0 if entry.weight is None else entry.weight))
        if plugin.is_a(Kind.PICKER):
            pickers.append(plugin.name)
    if len(pickers) > 1:
        raise ConfigError(f"{path}.plugins: more than one picker: {', '.join(pickers)}")
    picker = pickers[0] if pickers else default_picker or plugins.ensure(DEFAULT_PICKER)
    return ResolvedProfile(spec.name, tuple(filters), tuple(scorers), picker)


def _placed(plugins: NamedPlugins, name: str, path: str) -> ResolvedPlugin:
    plugin = plugins.find(name)
    if plugin is None:
        return plugins.get(name, Kind.SCORER, path)  # raises the error that names the wrong type
    if not plugin.row.kinds & IN_PROFILES:
        plugins.warn(
            f"{path}: {name!r} has no effect in a profile: only filters, scorers and pickers have"
        )
    return plugin


def _handler(plugins: NamedPlugins, profiles: tuple[ResolvedProfile, ...]) -> str:
    handlers = plugins.of(Kind.HANDLER)
    if len(handlers) > 1:
        named = ", ".join(plugin.name for plugin in handlers)
        raise ConfigError(f"plugins: exactly one profile handler is allowed, found {named}")
    if not handlers and len(profiles) > 1:
        raise ConfigError("plugins: more than one scheduling profile needs a profile handler")
    if not handlers:
        return plugins.ensure(DEFAULT_HANDLER)
    handler = handlers[0]
    if handler.row.type_name in _ONE_PROFILE_HANDLERS and len(profiles) > 1:
        raise ConfigError(
            f"schedulingProfiles: {handler.row.type_name} takes one profile, found {len(profiles)}"
        )
    known = [profile.name for profile in profiles]
    for key, name in handler.parameters.profiles():
        if name not in known:
            raise ConfigError(
                f"{handler.path}.parameters.{key}: no profile is named {name!r}; "
                f"the profiles are: {', '.join(known)}"
            )
    return handler.name


def _detector(config: PickerConfig, plugins: NamedPlugins) -> str:
    flow = config.flow_control
    if flow is not None and flow.saturation_detector is not None:
        ref, path = flow.saturation_detector, "flowControl.saturationDetector.pluginRef"
    elif config.saturation_detector is not None:
        ref, path = config.saturation_detector, "saturationDetector.pluginRef"
    else:
        return plugins.ensure(DEFAULT_DETECTOR)
    return plugins.get(ref.plugin_ref, Kind.DETECTOR, path).name


def _without_idle_policies(
    ordered: tuple[ResolvedPlugin, ...], flow: ResolvedFlow | None, warnings: list[str]
) -> tuple[ResolvedPlugin, ...]:
    """Returns the plugins without the policies that flow control does not use: an unused policy would make the picker
    follow responses for nothing.
    """
    used = set() if flow is None else flow.policies()
    idle = [each for each in ordered if each.row.kinds & FLOW_KINDS and each.name not in used]
    for plugin in idle:
        why = "the gate flowControl is off" if flow is None else "nothing in flowControl names it"
        warnings.append(f"{plugin.path}: {plugin.name!r} has no effect: {why}")
    return tuple(each for each in ordered if each not in idle)


def _parsers(config: PickerConfig, plugins: NamedPlugins) -> tuple[str, ...]:
    refs = []
    if config.request_handler is not None:
        for i, ref in enumerate(config.request_handler.parsers):
            refs.append((ref, f"requestHandler.parsers[{i}].pluginRef"))
    if not refs and config.parser is not None:
        refs.append((config.parser, "parser.pluginRef"))
    if not refs:
        return DEFAULT_PARSERS
    types = [plugins.get(ref.plugin_ref, Kind.PARSER, path).row.type_name for ref, path in refs]
    return tuple(dict.fromkeys(types))


def _sources(
    config: PickerConfig, plugins: NamedPlugins, warnings: list[str]
) -> tuple[Sources, Sources]:
    """Returns the sources of load data and of GPU telemetry, each with its extractors."""
    layer = config.data_layer
    sources: list[tuple[str, tuple[str, ...]]] = []
    telemetry: list[tuple[str, tuple[str, ...]]] = []
    for i, source in enumerate(layer.sources if layer else ()):
        path = f"dataLayer.sources[{i}]"
        if _is_idle(source, path, plugins):
            continue
        found = plugins.find(source.plugin_ref)
        if found is not None and found.is_a(Kind.TELEMETRY_SOURCE):
            extractors = _extractors(source, path, plugins, Kind.TELEMETRY_EXTRACTOR)
            telemetry.append((found.name, extractors))
            continue
        plugin = plugins.get(source.plugin_ref, Kind.SOURCE, f"{path}.pluginRef")
        if sources or len(source.extractors) > 1:
            raise ConfigError(f"{path}: only one source of load with one extractor is supported")
        sources.append((plugin.name, _extractors(source, path, plugins, Kind.EXTRACTOR)))
    _warn_of_idle(plugins, telemetry, warnings)
    if layer is not None and not layer.inject_defaults:
        return tuple(sources), tuple(telemetry)
    if not sources:
        defaults = plugins.of(Kind.SOURCE)
        sources.append((defaults[0].name if defaults else plugins.ensure(METRICS_SOURCE), ()))
    if not sources[0][1]:
        readers = plugins.of(Kind.EXTRACTOR)
        name = readers[0].name if readers else plugins.ensure(METRICS_EXTRACTOR)
        sources[0] = (sources[0][0], (name,))
    return tuple(sources), tuple(telemetry)


def _warn_of_idle(
    plugins: NamedPlugins, telemetry: Sequence[tuple[str, tuple[str, ...]]], warnings: list[str]
) -> None:
    used = {
        name for source, extractors in telemetry if extractors for name in (source, *extractors)
    }
    for plugin in [*plugins.of(Kind.TELEMETRY_SOURCE), *plugins.of(Kind.TELEMETRY_EXTRACTOR)]:
        if plugin.name not in used:
            why = "dataLayer.sources does not name it as a source with its extractor"
            warnings.append(f"{plugin.path}: {plugin.name!r} has no effect: {why}")
    for plugin in plugins.of(Kind.MODEL_LISTS):
        why = "no plugin uses the models that endpoints list"
        warnings.append(f"{plugin.path}: {plugin.name!r} has no effect: {why}")


def _is_idle(source: SourceSpec, path: str, plugins: NamedPlugins) -> bool:
    """True if the source has no effect here: it only notifies plugins of endpoints, which they need not."""
    found = plugins.find(source.plugin_ref)
    if found is None or not found.row.kinds & {Kind.NOTIFIER, Kind.MODEL_LISTS}:
        return False
    for j, ref in enumerate(source.extractors):
        plugins.require(ref.plugin_ref, f"{path}.extractors[{j}].pluginRef")
    return True


def _extractors(
    source: SourceSpec, path: str, plugins: NamedPlugins, kind: Kind
) -> tuple[str, ...]:
    return tuple(
        plugins.get(ref.plugin_ref, kind, f"{path}.extractors[{j}].pluginRef").name
        for j, ref in enumerate(source.extractors)
    )


def _check_use(
    ordered: tuple[ResolvedPlugin, ...], discovery: str | None, sources: Sources
) -> None:
    reading = {name for _, extractors in sources for name in extractors}
    types = {plugin.row.type_name for plugin in ordered if plugin.name in reading}
    for plugin in ordered:
        if plugin.is_a(Kind.DISCOVERY) and plugin.name != discovery:
            raise ConfigError(f"{plugin.path}: {plugin.name!r} is not named in dataLayer.discovery")
        if plugin.row.extractor is not None and plugin.row.extractor not in types:
            raise ConfigError(
                f"{plugin.path}: {plugin.name!r} needs the data of a {plugin.row.extractor}; "
                "add one to dataLayer.sources"
            )
