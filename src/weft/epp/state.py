"""Starts what keeps the endpoints' load and caches known: polls, and event subscriptions."""

import logging
from collections.abc import Callable

from weft.core.errors import ConfigError
from weft.epp.assemble import Assembly
from weft.epp.config.options import GRPC_ENGINE, PickerOptions
from weft.epp.config.quantity import parse_duration_s
from weft.epp.config.settings import ExtractorParameters, MetricsSourceParameters
from weft.epp.pool.endpoint import Endpoint, Load
from weft.epp.pool.kv_subscriptions import KvSubscriptions
from weft.epp.producers.precise_prefix import PrecisePrefixProducer, PrecisePrefixScorer
from weft.epp.scrape.engines import ENGINES, LoadReader, configured
from weft.epp.scrape.poller import LoadSource, Poller, http_sources
from weft.epp.wire.engine import EngineConnection

_log = logging.getLogger(__name__)


class GrpcLoadSource:
    """Load from VllmEngine's GetLoads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.port = endpoint.grpc_port
        self._connection = EngineConnection(endpoint.grpc_host_port)

    async def load(self) -> Load:
        """Ask."""
        return await self._connection.load()

    async def close(self) -> None:
        """Close the channel."""
        await self._connection.aclose()


class Telemetry:
    """Pollers and subscriptions of one picker."""

    def __init__(self, assembly: Assembly, options: PickerOptions) -> None:
        self._assembly = assembly
        self._options = options
        self._pollers: list[Poller] = []
        self._subscriptions: list[KvSubscriptions] = []
        extractors = [name for _, names in assembly.config.sources for name in names]
        found = assembly.parameters.get(extractors[0]) if extractors else None
        self._extractor: ExtractorParameters = found or ExtractorParameters()
        self._series = dict(ENGINES) | {
            engine.name: configured(engine) for engine in self._extractor.engine_configs
        }
        self._default_engine = options.default_engine or self._extractor.default_engine
        known = [GRPC_ENGINE, *self._series]
        if self._default_engine not in known:
            raise ConfigError(
                f"default engine: {self._default_engine!r} is unknown; known: {', '.join(known)}"
            )

    def start(self) -> None:
        """Begin; endpoints that join later are taken up as they come."""
        for source, extractors in self._assembly.config.sources[:1]:
            if extractors:
                self._pollers.append(self._poller(self._assembly.parameters[source]))
        for plugin in self._assembly.plugins.values():
            if isinstance(plugin, PrecisePrefixScorer):
                plugin = plugin.inner
            if isinstance(plugin, PrecisePrefixProducer):
                self._subscriptions.append(
                    KvSubscriptions(
                        plugin, self._assembly.pool, self._assembly.metrics, self.is_grpc
                    )
                )

    async def close(self) -> None:
        """End all of it."""
        for poller in self._pollers:
            await poller.close()
        for subscriptions in self._subscriptions:
            await subscriptions.close()

    def engine_of(self, endpoint: Endpoint) -> str:
        """Which kind of server it is."""
        engine = endpoint.labels.get(self._extractor.engine_label_key, self._default_engine)
        if engine != GRPC_ENGINE and engine not in self._series:
            _log.warning("%s: unknown engine %r, read as vllm", endpoint.host_port, engine)
            return "vllm"
        return engine

    def is_grpc(self, endpoint: Endpoint) -> bool:
        """Whether it speaks VllmEngine, and so needs no metrics page."""
        return self.engine_of(endpoint) == GRPC_ENGINE

    def _poller(self, parameters: MetricsSourceParameters) -> Poller:
        interval_s = self._options.refresh_metrics_interval_s
        if parameters.interval is not None:
            interval_s = parse_duration_s(parameters.interval)
        return Poller(
            self._assembly.pool, self._assembly.metrics, self._sources(parameters), interval_s
        )

    def _sources(self, parameters: MetricsSourceParameters) -> Callable[[Endpoint], LoadSource]:
        readers = {name: LoadReader(each) for name, each in self._series.items()}
        from_page = http_sources(parameters, lambda each: readers[self.engine_of(each)])

        def make(endpoint: Endpoint) -> LoadSource:
            return GrpcLoadSource(endpoint) if self.is_grpc(endpoint) else from_page(endpoint)

        return make
