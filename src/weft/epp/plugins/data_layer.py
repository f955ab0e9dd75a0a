"""Plugins that keep the pool's data current: sources of load, readers of their answers, the endpoints file.

They are started by whoever builds the picker; here are only their rows.
"""

from typing import Final

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.plugin import METRICS_EXTRACTOR, METRICS_SOURCE, plugin_type
from weft.epp.pool.endpoints_file import FileDiscoveryParameters
from weft.epp.pool.engines import ExtractorParameters
from weft.epp.pool.poller import MetricsSourceParameters


class ModelListParameters(MetricsSourceParameters, frozen=True, kw_only=True):
    """Is taken and does nothing: no plugin here goes by which models an endpoint lists."""


class NotifierParameters(NoParameters, frozen=True, kw_only=True):
    """Is taken and does nothing: plugins here follow the pool by themselves."""


ROWS: Final = (
    plugin_type(METRICS_SOURCE, Kind.SOURCE, parameters=MetricsSourceParameters),
    plugin_type(
        METRICS_EXTRACTOR, (Kind.EXTRACTOR, Kind.ATTRIBUTES), parameters=ExtractorParameters
    ),
    plugin_type("models-data-source", Kind.MODEL_LISTS, parameters=ModelListParameters),
    plugin_type("models-data-extractor", Kind.MODEL_LISTS),
    plugin_type("endpoint-notification-source", Kind.NOTIFIER, parameters=NotifierParameters),
    plugin_type("file-discovery", Kind.DISCOVERY, parameters=FileDiscoveryParameters),
)
