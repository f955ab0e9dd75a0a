"""Builds and opens a picker: its plugins in their places, what keeps its state fresh, and the whole."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from weft import __version__
from weft.core.errors import ConfigError
from weft.epp.config.config import BUILT_IN, PickerConfig, read_config
from weft.epp.config.options import DEFAULT_NAME, GRPC_ENGINE, PickerOptions
from weft.epp.config.parameters import Kind
from weft.epp.config.quantity import parse_duration_s
from weft.epp.decision.director import Director, DirectorSettings, Parts, ProducerStep
from weft.epp.decision.explain import DecisionRing
from weft.epp.decision.plugin import Closer, FollowsResponse, Learner, Preparer, Surroundings
from weft.epp.decision.profile import FilterStep, PickerStep, SchedulingProfile, ScorerStep
from weft.epp.flow.policies import BandParts, EvictionParts, FlowParts
from weft.epp.kubernetes.discovery import KubernetesDiscovery, Wanted
from weft.epp.metrics.series import PickerMetrics, Timer
from weft.epp.plugins.producers.precise_prefix import PrecisePrefixProducer
from weft.epp.plugins.scorers.precise_prefix_cache import PrecisePrefixScorer
from weft.epp.pool.clusters import (
    ClusterExtractorParameters,
    ClusterReader,
)
from weft.epp.pool.discovery import (
    RESOLVE_EVERY_S,
    every,
    follow_names,
    is_ip_address,
    mark,
    put_endpoints,
    watch,
)
from weft.epp.pool.endpoint import Endpoint, EndpointSpec, Load, parse_endpoint
from weft.epp.pool.endpoints_file import (
    ClustersFileParameters,
    EndpointsFile,
    FileDiscoveryParameters,
)
from weft.epp.pool.engines import ENGINES, ExtractorParameters, LoadReader, configured
from weft.epp.pool.gpu import GpuPoller
from weft.epp.pool.objects import Objects
from weft.epp.pool.objects_files import ObjectFiles
from weft.epp.pool.poller import LoadSource, MetricsSourceParameters, Poller, http_sources
from weft.epp.pool.pool import Pool
from weft.epp.prefix.engine import EngineConnection
from weft.epp.prefix.kv_subscriptions import KvSubscriptions
from weft.epp.resolve import ResolvedConfig, ResolvedProfile, resolve
from weft.epp.resolve_flow import ResolvedBand, ResolvedFlow

_log = logging.getLogger(__name__)

_SWEEP_EVERY_S = 5.0


class Assembly:
    """The plugins of one picker, by name."""

    def __init__(
        self,
        config: ResolvedConfig,
        pool: Pool,
        metrics: PickerMetrics,
        max_load_age_s: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.config = config
        self.pool = pool
        self.metrics = metrics
        self.plugins: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {
            plugin.name: plugin.parameters for plugin in config.plugins
        }
        self._types = {plugin.name: plugin.row.type_name for plugin in config.plugins}
        for plugin in config.plugins:
            surroundings = Surroundings(
                plugin.name, pool, metrics, max_load_age_s, self.plugins, clock
            )
            self.plugins[plugin.name] = plugin.row.build(plugin.parameters, surroundings)

    def type_of(self, name: str) -> str:
        """The type of a plugin."""
        return self._types[name]

    def parts(self) -> Parts:
        """What the director works with."""
        producers = [
            ProducerStep(
                plugin.name, self.plugins[plugin.name], self._timer(plugin.name, "produce")
            )
            for plugin in self.config.plugins
            if plugin.is_a(Kind.PRODUCER)
        ]
        return Parts(
            pool=self.pool,
            producers=producers,
            profiles={profile.name: self._profile(profile) for profile in self.config.profiles},
            handler=self.plugins[self.config.handler],
            detector=self.plugins[self.config.detector],
            detector_name=self.config.detector,
            metrics=self.metrics,
            preparers=[plugin for plugin in self.plugins.values() if isinstance(plugin, Preparer)],
            learners=[plugin for plugin in self.plugins.values() if isinstance(plugin, Learner)],
            followers=[
                plugin for plugin in self.plugins.values() if isinstance(plugin, FollowsResponse)
            ],
            identities=self._of(Kind.IDENTITY),
            admitters=self._of(Kind.ADMITTER),
            reporters=self._of(Kind.REPORTER),
            flow=None if self.config.flow is None else self._flow(self.config.flow),
        )

    def _flow(self, flow: ResolvedFlow) -> FlowParts:
        named = self.plugins

        def band(resolved: ResolvedBand) -> BandParts:
            return BandParts(
                limits=resolved.limits,
                ttl_s=resolved.ttl_s,
                fairness=named[resolved.fairness],
                ordering=named[resolved.ordering],
            )

        eviction = None
        if flow.eviction is not None:
            which, first = flow.eviction
            eviction = EvictionParts(filter=named[which], order=named[first])
        return FlowParts(
            limits=flow.limits,
            no_endpoint_ttl_s=flow.no_endpoint_ttl_s,
            bands={priority: band(each) for priority, each in flow.bands.items()},
            default_band=band(flow.default_band),
            default_negative_band=band(flow.default_negative_band),
            usage_limit=named[flow.usage_limit],
            eviction=eviction,
        )

    def _of(self, kind: Kind) -> list[Any]:
        return [self.plugins[each.name] for each in self.config.plugins if each.is_a(kind)]

    def _profile(self, profile: ResolvedProfile) -> SchedulingProfile:
        named = self.plugins
        return SchedulingProfile(
            profile.name,
            [
                FilterStep(name, named[name], self._timer(name, "filter"))
                for name in profile.filters
            ],
            [
                ScorerStep(name, named[name], self._timer(name, "scorer"), weight)
                for name, weight in profile.scorers
            ],
            PickerStep(
                profile.picker, named[profile.picker], self._timer(profile.picker, "picker")
            ),
        )

    def _timer(self, name: str, place: str) -> Timer:
        return self.metrics.plugin_duration.labels(place, self._types[name], name)


class GrpcLoadSource:
    """Load from VllmEngine's GetLoads."""

    def __init__(self, endpoint: Endpoint, connection: EngineConnection) -> None:
        self.port: int | None = endpoint.grpc_port
        self._connection = connection

    async def load(self) -> Load:
        """Call it."""
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
        self._clusters = (
            ClusterReader(found) if isinstance(found, ClusterExtractorParameters) else None
        )
        self._extractor = found if isinstance(found, ExtractorParameters) else ExtractorParameters()
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
                self._pollers.append(self._poller(source, extractors[0]))
        for source, extractors in self._assembly.config.telemetry:
            for extractor in extractors:
                self._pollers.append(self._gpu_poller(source, extractor))
        for plugin in self._assembly.plugins.values():
            if isinstance(plugin, PrecisePrefixScorer):
                plugin = plugin.inner
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
        return self._clusters is None and self.engine_of(endpoint) == GRPC_ENGINE

    def _connect(self, endpoint: Endpoint) -> EngineConnection:
        options = self._options
        return EngineConnection(
            endpoint.grpc_host_port, options.engine_api_key, options.engine_control_api_key
        )

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
        from_page = http_sources(parameters, lambda each: readers[self.engine_of(each)])

        def make(endpoint: Endpoint) -> LoadSource:
            if self.is_grpc(endpoint):
                return GrpcLoadSource(endpoint, self._connect(endpoint))
            return from_page(endpoint)

        return make


class Picker:
    """A running picker: its director, and the tasks that keep its state fresh."""

    def __init__(self, director: Director, assembly: Assembly) -> None:
        self.director = director
        self.assembly = assembly
        self._tasks: list[asyncio.Task[None]] = []
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self.cluster: KubernetesDiscovery | None = None

    def may_serve(self) -> bool:
        """Whether it knows where to send; without Kubernetes always."""
        return self.cluster is None or self.cluster.has_synced

    def take_objects(self, objects: Objects) -> None:
        """These objectives and rewrites are in force from now on."""
        self.director.objects = objects
        self.metrics.model_names.allowed = objects.model_names

    def spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        """Own a task until the picker is closed."""
        task = asyncio.create_task(coroutine, name=f"picker {name}")
        task.add_done_callback(_log_failure)
        self._tasks.append(task)

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Call `closer` when the picker is closed."""
        self._closers.append(closer)

    @property
    def parsers(self) -> tuple[str, ...]:
        """Parser types in order."""
        return self.assembly.config.parsers

    @property
    def warnings(self) -> tuple[str, ...]:
        """What in the configuration is deprecated or has no effect."""
        return self.assembly.config.warnings

    @property
    def pool(self) -> Pool:
        """The endpoints."""
        return self.assembly.pool

    @property
    def metrics(self) -> PickerMetrics:
        """The series, for those who observe more of them."""
        return self.assembly.metrics

    @property
    def decisions(self) -> DecisionRing:
        """The last decisions."""
        return self.director.decisions

    def state(self, max_rows: int) -> Mapping[str, object]:
        """Counts, and what there is, for whoever looks after the picker."""
        endpoints = list(self.pool)
        return {
            "followed_requests": self.director.num_open,
            "waiting_requests": self.director.num_waiting,
            "kept_decisions": len(self.decisions),
            "endpoints": len(endpoints),
            "plugins": [
                {"name": plugin.name, "type": plugin.row.type_name}
                for plugin in self.assembly.config.plugins[:max_rows]
            ],
            "rows": [
                {
                    "address": endpoint.host_port,
                    "labels": dict(endpoint.labels),
                    "unseen_requests": len(endpoint.unseen),
                }
                for endpoint in endpoints[:max_rows]
            ],
        }

    async def metrics_text(self) -> bytes:
        """All series in Prometheus's text format; written on another thread, since there may be many."""
        self.metrics.refresh()
        return await asyncio.to_thread(self.metrics.rendered)

    async def close(self) -> None:
        """Refuse new requests and end every task; safe to call twice."""
        self.director.close()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closers, self._closers = self._closers, []
        for closer in closers:
            await closer()


def load_config(options: PickerOptions) -> ResolvedConfig:
    """The configuration that `options` names, checked and filled in; raises `ConfigError`."""
    config = _read(options)
    return resolve(config, allow_experimental=options.allow_experimental_plugins)


async def open_picker(options: PickerOptions) -> Picker:
    """Start a picker; raises `ConfigError` before anything runs if it cannot be right."""
    config = load_config(options)
    if config.discovery is not None and options.endpoint_selector is not None:
        raise ConfigError("--endpoint-selector and dataLayer.discovery exclude each other")
    specs = [parse_endpoint(text) for text in options.endpoints]
    if len({spec.name for spec in specs}) != len(specs):
        raise ConfigError("endpoints: two endpoints have the same name")
    for warning in config.warnings:
        _log.warning("%s", warning)
    pool, metrics = Pool(), PickerMetrics()
    metrics.info.labels("", __version__).set(1)
    assembly = Assembly(config, pool, metrics, options.max_load_age_s)
    picker = Picker(Director(assembly.parts(), _settings(options)), assembly)
    for plugin in assembly.plugins.values():
        if isinstance(plugin, Closer):
            picker.on_close(plugin.aclose)
    try:
        await _start(picker, options, specs)
    except BaseException:
        await picker.close()
        raise
    return picker


async def _start(picker: Picker, options: PickerOptions, specs: Sequence[EndpointSpec]) -> None:
    assembly = picker.assembly
    if options.objects:
        await _follow_objects(picker, options)
    telemetry = Telemetry(assembly, options)
    picker.on_close(telemetry.close)
    telemetry.start()
    if assembly.config.discovery is not None:
        await _follow_file(picker, assembly.parameters[assembly.config.discovery])
    elif options.endpoint_selector is not None or (options.pool_name is not None and not specs):
        await _follow_cluster(picker, options)
    elif not specs:
        _log.warning(
            "no endpoints: name some, or --pool-name in Kubernetes, or a file-discovery plugin "
            "in dataLayer.discovery"
        )
    await put_endpoints(assembly.pool, specs)
    if any(not is_ip_address(spec.address) for spec in specs):
        picker.spawn(follow_names(assembly.pool, specs), "resolve")
    picker.spawn(_sweep(picker.director), "sweep")


async def _follow_objects(picker: Picker, options: PickerOptions) -> None:
    # Without names of its own, the picker takes the objects of any pool and namespace.
    files = ObjectFiles(
        options.objects,
        pool_name=options.pool_name,
        pool_group=options.pool_group,
        namespace=options.pool_namespace,
    )
    seen = mark(files.list_files())

    def read() -> None:
        picker.take_objects(files.read())

    async def reload() -> None:
        try:
            read()
        except ConfigError as error:
            _log.error("%s; keeping the objects there are", error)

    read()
    picker.spawn(watch(files.list_files, seen, reload), "objects")


async def _follow_cluster(picker: Picker, options: PickerOptions) -> None:
    wanted = Wanted(
        pool_name=options.pool_name or "",
        pool_group=options.pool_group,
        namespace=options.pool_namespace,
        selector=options.endpoint_selector,
        target_ports=options.endpoint_target_ports or "",
    )
    # As in the reference, a selector alone is of no pool that objects could name. Files come before the API.
    has_objects = options.endpoint_selector is None and not options.objects
    take_objects = picker.take_objects if has_objects else None
    picker.cluster = KubernetesDiscovery(wanted, picker.pool, take_objects=take_objects)
    picker.on_close(picker.cluster.close)
    await picker.cluster.start()


async def _follow_file(picker: Picker, parameters: FileDiscoveryParameters) -> None:
    are_clusters = isinstance(parameters, ClustersFileParameters)
    file = EndpointsFile(Path(parameters.path), picker.pool, are_clusters=are_clusters)
    seen = mark([file.path])
    await file.load()
    picker.spawn(every(RESOLVE_EVERY_S, file.resolve), "resolve file")
    if parameters.watch_file:
        picker.spawn(watch(lambda: [file.path], seen, file.reload), "endpoints file")


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s ended: %r", task.get_name(), error, exc_info=error)


def _read(options: PickerOptions) -> PickerConfig:
    if options.config_text is not None:
        return read_config(options.config_text, "--config-text")
    if options.config_file is None:
        return read_config(BUILT_IN, "the built-in configuration")
    try:
        text = options.config_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{options.config_file}: cannot be read: {error}") from error
    return read_config(text, str(options.config_file))


def _settings(options: PickerOptions) -> DirectorSettings:
    return DirectorSettings(
        pool_name=options.pool_name or DEFAULT_NAME,
        max_load_age_s=options.max_load_age_s,
        ticket_ttl_s=options.ticket_ttl_s,
        unseen_ttl_s=options.unseen_ttl_s,
        num_recorded_decisions=options.num_recorded_decisions,
        ignores_subset=options.disable_endpoint_subset_filter,
        tracks_responses=options.track_responses,
        emits_scores=options.emit_endpoint_scores,
        default_model=options.default_model,
    )


async def _sweep(director: Director) -> None:
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        director.sweep()
