"""Registry rows of the plugins that keep the pool's data current: load sources, extractors, the endpoints file.

Other modules create the objects of these plugins.
"""

from typing import Final

from weft.epp.config.parameters import Kind, NoParameters
from weft.epp.decision.plugin import METRICS_EXTRACTOR, METRICS_SOURCE, plugin_type
from weft.epp.pool.endpoints_file import FileDiscoveryParameters
from weft.epp.pool.engines import ExtractorParameters
from weft.epp.pool.poller import MetricsSourceParameters


class ModelListParameters(MetricsSourceParameters, frozen=True, kw_only=True):
    """Parameters that are accepted without effect: no plugin here uses the models that endpoints list."""


class NotifierParameters(NoParameters, frozen=True, kw_only=True):
    """Parameters that are accepted without effect: plugins here follow the pool without notifications."""


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
