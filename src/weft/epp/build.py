"""Opens a picker: reads its configuration, builds its plugins, and starts what watches the pool."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

from weft import __version__
from weft.core.errors import ConfigError
from weft.epp.assemble import Assembly
from weft.epp.config.config import BUILT_IN, PickerConfig, read_config
from weft.epp.config.options import DEFAULT_NAME, PickerOptions, parse_endpoint
from weft.epp.config.settings import FileDiscoveryParameters
from weft.epp.decision.director import Director, DirectorSettings
from weft.epp.decision.explain import DecisionRing
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.discovery import (
    RESOLVE_EVERY_S,
    every,
    follow_names,
    is_ip_address,
    put_endpoints,
)
from weft.epp.pool.endpoint import EndpointSpec
from weft.epp.pool.endpoints_file import EndpointsFile
from weft.epp.pool.objects_files import ObjectFiles
from weft.epp.pool.pool import Pool
from weft.epp.pool.watch import mark, watch
from weft.epp.resolve import ResolvedConfig, resolve
from weft.epp.state import Telemetry

_log = logging.getLogger(__name__)

_SWEEP_EVERY_S = 5.0


class Picker:
    """A running picker: its director, and the tasks that keep its state fresh."""

    def __init__(self, director: Director, assembly: Assembly) -> None:
        self.director = director
        self.assembly = assembly
        self._tasks: list[asyncio.Task[None]] = []
        self._closers: list[Callable[[], Awaitable[None]]] = []

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

    def metrics_text(self) -> bytes:
        """All series in Prometheus's text format."""
        return self.metrics.text()

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
    specs = [parse_endpoint(text) for text in options.endpoints]
    if len({spec.name for spec in specs}) != len(specs):
        raise ConfigError("endpoints: two endpoints have the same name")
    for warning in config.warnings:
        _log.warning("%s", warning)
    pool, metrics = Pool(), PickerMetrics()
    metrics.info.labels("", __version__).set(1)
    assembly = Assembly(config, pool, metrics, options.max_load_age_s)
    picker = Picker(Director(assembly.parts(), _settings(options)), assembly)
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
    elif not specs:
        _log.warning("no endpoints: name some, or a file-discovery plugin in dataLayer.discovery")
    await put_endpoints(assembly.pool, specs)
    if any(not is_ip_address(spec.address) for spec in specs):
        picker.spawn(follow_names(assembly.pool, specs), "resolve")
    picker.spawn(_sweep(picker.director), "sweep")


async def _follow_objects(picker: Picker, options: PickerOptions) -> None:
    # Without names of its own, the picker takes the objects of any pool and namespace.
    files = ObjectFiles(
        options.objects,
        pool_name=None if options.pool_name == DEFAULT_NAME else options.pool_name,
        pool_group=options.pool_group,
        namespace=None if options.pool_namespace == DEFAULT_NAME else options.pool_namespace,
    )
    seen = mark(files.list_files())

    def read() -> None:
        picker.director.objects = files.read()
        picker.metrics.model_names.kept = picker.director.objects.model_names

    async def reload() -> None:
        try:
            read()
        except ConfigError as error:
            _log.error("%s; keeping the objects there are", error)

    read()
    picker.spawn(watch(files.list_files, seen, reload), "objects")


async def _follow_file(picker: Picker, parameters: FileDiscoveryParameters) -> None:
    file = EndpointsFile(Path(parameters.path), picker.pool)
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
        pool_name=options.pool_name,
        max_load_age_s=options.max_load_age_s,
        ticket_ttl_s=options.ticket_ttl_s,
        unseen_ttl_s=options.unseen_ttl_s,
        num_kept_decisions=options.num_kept_decisions,
        ignores_subset=options.disable_endpoint_subset_filter,
        tracks_responses=options.track_responses,
        emits_scores=options.emit_endpoint_scores,
    )


async def _sweep(director: Director) -> None:
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        director.sweep()
