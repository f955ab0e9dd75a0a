"""The table of plugin types: types that a configuration may name, and types that are refused with a reason.

Modules of this package declare classes with `plugin`, and list in `ROWS` the types whose objects other modules create.
New modules are found automatically.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import walk_packages
from types import MappingProxyType, ModuleType
from typing import Final

from weft.epp import plugins
from weft.epp.config.parameters import Kind
from weft.epp.decision.plugin import DECLARED, PluginType, plugin_type
from weft.epp.request.parsers.table import PARSERS


def find_rows(package: ModuleType) -> Iterator[PluginType]:
    """Yields the registry rows of every module of a package, except this module."""
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        if not module.ispkg and module.name != __name__:
            yield from getattr(import_module(module.name), "ROWS", ())
            yield from DECLARED.get(module.name, ())


ROWS: Final = (*find_rows(plugins), *(plugin_type(name, Kind.PARSER) for name in PARSERS))
PLUGIN_TYPES: Final[Mapping[str, PluginType]] = MappingProxyType(
    {name: row for row in ROWS for name in (row.type_name, *row.aliases)}
)

REFUSED_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "k8s-notification-source": "--pool-name watches Kubernetes objects; no plugin is needed",
        "destination-endpoint-served-verifier": "it is for conformance tests of gateways only",
        "disaggregatedset-rollout-screener": "Weft does not follow rollouts of DisaggregatedSets yet",
    }
)
