"""Pollers and subscriptions that keep the pool's load and the prefix indexes current, by kind of model server."""

import logging
from collections.abc import Callable

from weft.core.config.quantity import parse_duration_s
from weft.core.errors import ConfigError
from weft.epp.assembly import Assembly
from weft.epp.config.options import PickerOptions
from weft.epp.plugins.producers.precise_prefix import PrecisePrefixProducer
from weft.epp.pool.clusters import (
    ClusterExtractorParameters,
    ClusterReader,
)
from weft.epp.pool.endpoint import Endpoint
from weft.epp.pool.engines import ENGINES, ExtractorParameters, LoadReader, configured
from weft.epp.pool.gpu import GpuPoller
from weft.epp.pool.poller import LoadSource, MetricsSourceParameters, Poller, http_sources
from weft.epp.prefix.engine import GRPC_ENGINES, EngineConnection
from weft.epp.prefix.kv_subscriptions import KvSubscriptions

_log = logging.getLogger(__name__)


class Telemetry:
    """Pollers and subscriptions of one picker."""

    def __init__(self, assembly: Assembly, options: PickerOptions) -> None:
        self._assembly = assembly
        self._options = options
        self._pollers: list[Poller] = []
        self._subscriptions: list[KvSubscriptions] = []
        extractors = [name for _, names in assembly.config.sources for name in names]
        found = assembly.parameters.get(extractors[0]) if extractors else None
        self._clusters = (
            ClusterReader(found) if isinstance(found, ClusterExtractorParameters) else None
        )
        self._extractor = found if isinstance(found, ExtractorParameters) else ExtractorParameters()
        assembly.pool.join_by(self._extractor.engine_label_key)
        self._series = dict(ENGINES) | {
            engine.name: configured(engine) for engine in self._extractor.engine_configs
        }
        self._default_engine = options.default_engine or self._extractor.default_engine
        known = [*GRPC_ENGINES, *self._series]
        if self._default_engine not in known:
            raise ConfigError(
                f"default engine: {self._default_engine!r} is unknown; known: {', '.join(known)}"
            )

    def start(self) -> None:
        """Starts polling the present endpoints and all that join later."""
        for source, extractors in self._assembly.config.sources[:1]:
            if extractors:
                self._pollers.append(self._poller(source, extractors[0]))
        for source, extractors in self._assembly.config.telemetry:
            for extractor in extractors:
                self._pollers.append(self._gpu_poller(source, extractor))
        for plugin in self._assembly.plugins.values():
            if isinstance(plugin, PrecisePrefixProducer):
                self._subscriptions.append(
                    KvSubscriptions(
                        plugin.index,
                        plugin.events,
                        self._assembly.pool,
                        self._assembly.metrics,
                        self.is_grpc,
                        self._connect,
                    )
                )

    async def close(self) -> None:
        """Ends all tasks."""
        for poller in self._pollers:
            await poller.close()
        for subscriptions in self._subscriptions:
            await subscriptions.close()

    def engine_of(self, endpoint: Endpoint) -> str:
        """Returns the kind of model server of an endpoint."""
        engine = endpoint.labels.get(self._extractor.engine_label_key, self._default_engine)
        if engine not in GRPC_ENGINES and engine not in self._series:
            _log.warning("%s: unknown engine %r, read as vllm", endpoint.host_port, engine)
            return "vllm"
        return engine

    def is_grpc(self, endpoint: Endpoint) -> bool:
        """True if the endpoint is polled and followed over gRPC, and so needs no metrics page."""
        return self._clusters is None and self.engine_of(endpoint) in GRPC_ENGINES

    def _connect(self, endpoint: Endpoint) -> EngineConnection:
        options = self._options
        keys = (options.engine_api_key, options.engine_control_api_key)
        return EngineConnection(endpoint, *keys, engine=self.engine_of(endpoint))

    def _interval_s(self, parameters: MetricsSourceParameters) -> float:
        if parameters.interval is not None:
            return parse_duration_s(parameters.interval)
        return self._options.refresh_metrics_interval_s

    def _poller(self, source: str, extractor: str) -> Poller:
        assembly = self._assembly
        parameters = assembly.parameters[source]
        return Poller(
            assembly.pool,
            assembly.metrics,
            self._sources(parameters),
            self._interval_s(parameters),
            (assembly.type_of(source), assembly.type_of(extractor)),
        )

    def _gpu_poller(self, source: str, extractor: str) -> GpuPoller:
        assembly = self._assembly
        parameters = assembly.parameters[source]
        return GpuPoller(
            assembly.pool,
            assembly.metrics,
            parameters,
            self._interval_s(parameters),
            self._options.max_load_age_s,
            assembly.plugins[extractor].observe,
        )

    def _sources(self, parameters: MetricsSourceParameters) -> Callable[[Endpoint], LoadSource]:
        clusters = self._clusters
        if clusters is not None:
            return http_sources(parameters, lambda _: clusters)
        readers = {name: LoadReader(each) for name, each in self._series.items()}
        key = self._options.engine_api_key
        from_page = http_sources(parameters, lambda each: readers[self.engine_of(each)], key)

        def make(endpoint: Endpoint) -> LoadSource:
            if self.is_grpc(endpoint):
                return self._connect(endpoint)
            return from_page(endpoint)

        return make
