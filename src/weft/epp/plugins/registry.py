"""The table of plugin types: what a configuration may name, and what is refused with a reason.

A module of this package declares its classes with `plugin`, and has in `ROWS` what is built elsewhere; a new one is
found without being named here.
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
    """The rows of every module below a package but this one."""
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
        "k8s-notification-source": "objects of Kubernetes are followed with --pool-name, by no plugin",
        "destination-endpoint-served-verifier": "it is for conformance tests of gateways only",
        "disaggregatedset-rollout-screener": "Weft does not follow rollouts of DisaggregatedSets yet",
    }
)
