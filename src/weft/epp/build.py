"""Opens a picker: reads its configuration, builds its plugins, and starts what watches the pool."""

import asyncio
import logging
from collections.abc import Sequence

from weft import __version__
from weft.core.errors import ConfigError
from weft.epp.assemble import Assembly
from weft.epp.config import BUILT_IN, PickerConfig, read_config
from weft.epp.director import Director, DirectorSettings
from weft.epp.discovery import watch_endpoints
from weft.epp.explain import DecisionRing
from weft.epp.metrics import PickerMetrics
from weft.epp.options import PickerOptions, parse_endpoint
from weft.epp.pool import Pool
from weft.epp.resolve import ResolvedConfig, resolve

_log = logging.getLogger(__name__)

_SWEEP_EVERY_S = 5.0


class Picker:
    """A running picker: its director, and the tasks that keep its state fresh."""

    def __init__(
        self, director: Director, assembly: Assembly, tasks: Sequence[asyncio.Task[None]]
    ) -> None:
        self.director = director
        self.assembly = assembly
        self._tasks = list(tasks)

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
        self.director.update_gauges()
        return self.metrics.text()

    async def close(self) -> None:
        """Refuse new requests and end every task; safe to call twice."""
        self.director.close()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
    director = Director(assembly.parts(), _settings(options))
    tasks = [
        asyncio.create_task(_sweep(director), name="picker-sweep"),
        *await watch_endpoints(pool, specs),
    ]
    return Picker(director, assembly, tasks)


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
