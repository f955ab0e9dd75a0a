"""The plugins of a configuration by name, while the configuration is completed with defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from weft.core.errors import ConfigError
from weft.epp.config.decode import decode
from weft.epp.config.parameters import Kind, Parameters, Reference
from weft.epp.decision.plugin import PluginType
from weft.epp.plugins.registry import PLUGIN_TYPES, REFUSED_TYPES

IN_PROFILES = frozenset({Kind.FILTER, Kind.SCORER, Kind.PICKER})


@dataclass(frozen=True, slots=True)
class ResolvedPlugin:
    """A plugin with checked parameters."""

    name: str
    row: PluginType
    parameters: Parameters
    path: str  # place of its entry in the file; empty for a default plugin

    def is_a(self, kind: Kind) -> bool:
        """True if the plugin is of this kind."""
        return kind in self.row.kinds

    @property
    def is_lasting(self) -> bool:
        """True if the plugin has a place outside of the profiles, where a running picker cannot change it."""
        return not self.row.kinds <= IN_PROFILES

    def is_like(self, other: "ResolvedPlugin | None") -> bool:
        """True if the other plugin has the same name, type and parameters, wherever it stands in its file."""
        return other is not None and (self.name, self.row, self.parameters) == (
            other.name,
            other.row,
            other.parameters,
        )


class NamedPlugins:
    """Plugins by name, while the configuration is completed with defaults."""

    def __init__(self, allow_experimental: bool, warnings: list[str]) -> None:
        self._allow_experimental = allow_experimental
        self._warnings = warnings
        self._by_name: dict[str, ResolvedPlugin] = {}

    def add(self, name: str, type_: str, parameters: Mapping[str, object], path: str) -> None:
        """Adds a plugin and checks its parameters."""
        row = PLUGIN_TYPES.get(type_)
        if row is None:
            raise ConfigError(f"{path}.type: {_unknown_type(type_)}")
        if name in self._by_name:
            raise ConfigError(f"{path}.name: {name!r} is taken by an earlier plugin")
        if row.is_alpha and path and not self._allow_experimental:
            raise ConfigError(
                f"{path}.type: {type_!r} is experimental; start with --allow-experimental-plugins"
            )
        if type_ != row.type_name:
            self._warnings.append(f"{path}.type: {type_!r} is deprecated; use {row.type_name!r}")
        if row.replacement:
            self._warnings.append(f"{path}.type: {type_!r} is deprecated; use {row.replacement}")
        decoded: Parameters = decode(dict(parameters), row.parameters, f"{path}.parameters")
        for key, reason in decoded.without_effect():
            self._warnings.append(f"{path}.parameters.{key}: has no effect: {reason}")
        self._by_name[name] = ResolvedPlugin(name, row, decoded, path)

    def warn(self, warning: str) -> None:
        """Adds a warning about the configuration, to be logged when the picker starts."""
        self._warnings.append(warning)

    def require(self, name: str, path: str) -> ResolvedPlugin:
        """Returns the plugin `name`, of any kind. Raises `ConfigError` if there is none."""
        plugin = self._by_name.get(name)
        if plugin is None:
            close = get_close_matches(name, self._by_name, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"{path}: no plugin is named {name!r}{hint}")
        return plugin

    def get(self, name: str, kind: Kind, path: str) -> ResolvedPlugin:
        """Returns the plugin `name`. Raises `ConfigError` if there is none, or if it is of another kind."""
        plugin = self.require(name, path)
        if not plugin.is_a(kind):
            raise ConfigError(f"{path}: {name!r} is a {plugin.row.type_name}, not a {kind}")
        return plugin

    def find(self, name: str) -> ResolvedPlugin | None:
        """Returns the plugin `name`; None if there is none."""
        return self._by_name.get(name)

    def of(self, kind: Kind) -> list[ResolvedPlugin]:
        """Returns all plugins of a kind, in order."""
        return [plugin for plugin in self._by_name.values() if plugin.is_a(kind)]

    def ensure(self, type_: str) -> str:
        """Returns the name of a plugin of this type; creates a plugin with default parameters if there is none."""
        if type_ not in self._by_name:
            self.add(type_, type_, {}, "")
        return type_

    def in_order(self) -> tuple[ResolvedPlugin, ...]:
        """Returns all plugins, each after the plugins that it refers to. Missing default plugins are created."""
        ordered: dict[str, ResolvedPlugin] = {}
        for name in list(self._by_name):
            self._visit(name, ordered, [])
        return tuple(ordered.values())

    def _visit(self, name: str, ordered: dict[str, ResolvedPlugin], above: list[str]) -> None:
        if name in above:
            circle = " -> ".join([*above[above.index(name) :], name])
            path = self._by_name[name].path
            raise ConfigError(
                f"{path}.parameters: plugins refer to each other in a circle: {circle}"
            )
        if name in ordered:
            return
        plugin = self._by_name[name]
        for reference in plugin.parameters.references():
            self._visit(self._referred(plugin, reference), ordered, [*above, name])
        ordered[name] = plugin

    def _referred(self, plugin: ResolvedPlugin, reference: Reference) -> str:
        if reference.name == reference.default_type:
            self.ensure(reference.default_type)
        path = f"{plugin.path or plugin.name}.parameters.{reference.key}"
        return self.get(reference.name, reference.kind, path).name


def _unknown_type(type_: str) -> str:
    if type_ in REFUSED_TYPES:
        return f"{type_!r} is refused: {REFUSED_TYPES[type_]}"
    close = get_close_matches(type_, PLUGIN_TYPES, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(PLUGIN_TYPES))}"
    return f"no plugin type is named {type_!r}; {hint}"
