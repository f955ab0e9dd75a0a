"""Starts a picker, and the tasks that keep its pool, load data and prefix indexes current."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic

from weft import __version__
from weft.core.aio.tasks import every
from weft.core.errors import ConfigError
from weft.epp.assembly import Assembly
from weft.epp.config.config import BUILT_IN, PickerConfig, read_config
from weft.epp.config.options import PickerOptions
from weft.epp.decision.director import Director
from weft.epp.decision.plugin import Closer
from weft.epp.kubernetes.discovery import KubernetesDiscovery, Wanted
from weft.epp.kubernetes.leader_elector import LeaderElector
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.discovery import (
    RESOLVE_EVERY_S,
    Resolver,
    follow_names,
    is_ip_address,
    mark,
    put_endpoints,
    watch,
)
from weft.epp.pool.endpoint import EndpointSpec, parse_endpoint
from weft.epp.pool.endpoints_file import (
    ClustersFileParameters,
    EndpointsFile,
    FileDiscoveryParameters,
)
from weft.epp.pool.objects import Objects
from weft.epp.pool.objects_files import ObjectFiles
from weft.epp.pool.pool import Pool
from weft.epp.resolve import ResolvedConfig, resolve
from weft.epp.telemetry import Telemetry

_log = logging.getLogger(__name__)

_SWEEP_EVERY_S = 5.0


class Picker:
    """A running picker: the director, and the tasks that update the director's data."""

    def __init__(self, director: Director, assembly: Assembly) -> None:
        self.director = director
        self.decisions = director.decisions
        self.assembly = assembly
        self.pool, self.metrics = assembly.pool, assembly.metrics
        self.parsers, self.warnings = assembly.config.parsers, assembly.config.warnings
        self._tasks: list[asyncio.Task[None]] = []
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self.cluster: KubernetesDiscovery | None = None
        self.elector: LeaderElector | None = None

    def may_be_called(self) -> bool:
        """True if gateways may call this picker: it is the leader, no leader is elected, or a Service leads to the
        leader alone.
        """
        elector = self.elector
        return elector is None or elector.service is not None or elector.is_leader

    def may_serve(self) -> bool:
        """True if the picker has learned its endpoints; always True without Kubernetes."""
        return self.cluster is None or self.cluster.has_synced

    def take_objects(self, objects: Objects) -> None:
        """Replaces all objectives and model rewrites."""
        self.director.objects = objects
        self.metrics.model_names.allowed = objects.model_names

    def spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        """Starts a task that `close` cancels."""
        task = asyncio.create_task(coroutine, name=f"picker {name}")
        task.add_done_callback(_log_failure)
        self._tasks.append(task)

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Registers `closer`, which `close` awaits."""
        self._closers.append(closer)

    def state(self, max_rows: int) -> Mapping[str, object]:
        """Returns the picker's counts and endpoints for debugging, with at most `max_rows` rows of each kind."""
        endpoints, now = list(self.pool), monotonic()
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
                    "load": {
                        "num_running": endpoint.load.num_running,
                        "num_waiting": endpoint.load.num_waiting,
                        "kv_usage": endpoint.load.kv_usage,
                    },
                    "load_age_s": None if endpoint.loaded_at is None else now - endpoint.loaded_at,
                    "is_refusing": endpoint.is_refusing,
                }
                for endpoint in endpoints[:max_rows]
            ],
        }

    async def metrics_text(self) -> bytes:
        """Returns all metric series in Prometheus's text format. The text is made on another thread, because there may
        be many series.
        """
        self.metrics.refresh()
        return await asyncio.to_thread(self.metrics.rendered)

    async def close(self) -> None:
        """Refuses new requests and ends every task. May be called more than once."""
        self.director.close()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closers, self._closers = self._closers, []
        # The stack closes every part, even if closing another part fails.
        async with AsyncExitStack() as stack:
            for closer in reversed(closers):
                stack.push_async_callback(closer)


def load_config(options: PickerOptions) -> ResolvedConfig:
    """Returns the configuration that `options` names, checked and with defaults filled in. Raises `ConfigError`."""
    config = _read(options)
    return resolve(config, allow_experimental=options.allow_experimental_plugins)


async def open_picker(options: PickerOptions) -> Picker:
    """Starts a picker. Raises `ConfigError` for an invalid configuration before any task runs."""
    config = load_config(options)
    specs = _named_endpoints(config, options)
    for warning in config.warnings:
        _log.warning("%s", warning)
    picker = make_picker(config, options)
    try:
        await _start(picker, options, specs)
    except BaseException:
        await picker.close()
        raise
    return picker


def make_picker(
    config: ResolvedConfig, options: PickerOptions, clock: Callable[[], float] = monotonic
) -> Picker:
    """Creates a picker without tasks: it decides by `clock`, but discovers no endpoints and polls no load."""
    pool, metrics = Pool(), PickerMetrics()
    metrics.info.labels("", __version__).set(1)
    assembly = Assembly(config, pool, metrics, options.max_load_age_s, clock)
    picker = Picker(Director(assembly.parts(), options, clock), assembly)
    for plugin in assembly.plugins.values():
        if isinstance(plugin, Closer):
            picker.on_close(plugin.aclose)
    return picker


def _named_endpoints(config: ResolvedConfig, options: PickerOptions) -> list[EndpointSpec]:
    if config.discovery is not None and options.endpoint_selector is not None:
        raise ConfigError("--endpoint-selector and dataLayer.discovery exclude each other")
    if config.discovery is not None and options.ha_enable_leader_election:
        raise ConfigError(
            "--ha-enable-leader-election and dataLayer.discovery exclude each other: pickers "
            "with endpoints from a file need no leader"
        )
    specs = [parse_endpoint(text) for text in options.endpoints]
    if len({spec.name for spec in specs}) != len(specs):
        raise ConfigError("endpoints: two endpoints have the same name")
    return specs


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
            "no endpoints: give --endpoint, --pool-name in Kubernetes, or a file-discovery plugin "
            "in dataLayer.discovery"
        )
    if options.watch_config_file and options.config_file is not None:
        _follow_config(picker, options, options.config_file)
    resolver = Resolver()
    await put_endpoints(assembly.pool, specs, resolver)
    if any(not is_ip_address(spec.address) for spec in specs):
        picker.spawn(follow_names(assembly.pool, specs, resolver), "resolve")
    picker.spawn(every(_SWEEP_EVERY_S, picker.director.sweep), "sweep")


def _follow_config(picker: Picker, options: PickerOptions, path: Path) -> None:
    async def reload() -> None:
        try:
            config = load_config(options)
            picker.assembly.replace(config)
        except ConfigError as error:
            _log.error("%s; the present profiles are kept", error)
            return
        picker.director.use_profiles(picker.assembly.parts())
        for warning in config.warnings:
            _log.warning("%s", warning)
        _log.info("%s: profiles %s", path, ", ".join(each.name for each in config.profiles))

    picker.spawn(watch(lambda: [path], mark([path]), reload), "configuration")


async def _follow_objects(picker: Picker, options: PickerOptions) -> None:
    # Without a pool name or namespace, the picker accepts objects of any pool and namespace.
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
            _log.error("%s; the present objects are kept", error)

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
    # As in the reference, a selector alone belongs to no pool that objects could name. Objects in files win over
    # objects of the API.
    has_objects = options.endpoint_selector is None and not options.objects
    take_objects = picker.take_objects if has_objects else None
    picker.cluster = KubernetesDiscovery(wanted, picker.pool, take_objects=take_objects)
    picker.on_close(picker.cluster.close)
    await picker.cluster.start()
    if options.ha_enable_leader_election:
        picker.elector = LeaderElector(options.pool_namespace, wanted.pool_name)
        if options.leader_service is not None:
            picker.elector.serve_by(options.leader_service, options.ext_proc_port)
        leads, elector = picker.metrics.leader.labels(wanted.pool_name), picker.elector
        picker.metrics.before_text(lambda: leads.set(elector.is_leader))
        picker.on_close(picker.elector.close)
        picker.spawn(picker.elector.run(), "election")


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
