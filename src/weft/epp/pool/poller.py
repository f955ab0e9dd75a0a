"""Polls the load of every endpoint, each with its own timer, and counts failures."""

import asyncio
import logging
import random
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from weft.core.config.quantity import parse_duration_s
from weft.core.errors import ConfigError
from weft.epp.config.parameters import Parameters, Port
from weft.epp.metrics.series import PickerMetrics
from weft.epp.pool.endpoint import Endpoint, Load
from weft.epp.pool.http_get import GetFailed, KeepAliveGet
from weft.epp.pool.pool import Pool
from weft.http.tls import client_tls

_log = logging.getLogger(__name__)

POLL_TIMEOUT_S = 5.0
SOURCE_TYPE = "metrics-data-source"
EXTRACTOR_TYPE = "core-metrics-extractor"


class PageReader(Protocol):
    """Converts a metrics page to a load."""

    path: str  # default path of the metrics page

    async def read_page(self, page: bytes) -> Load | None:
        """Returns the load; None if the page has none of the expected series."""


_PATH = re.compile(r"/[^\s\x00-\x1f\x7f]*")
_BASE_TICK_S = 0.05  # intervals are multiples of this; also the shortest time between two polls
_HURRY = 10  # factor on the poll rate while requests arrive or wait
# Limit for all endpoints together; while requests arrive, each is still polled once an interval.
_MAX_POLLS_PER_S = 250


class MetricsSourceParameters(Parameters, frozen=True, kw_only=True):
    """Settings for fetching the metrics of endpoints."""

    scheme: str = "http"
    path: str | None = None  # None: the default path of the engine, usually /metrics
    port: Port | None = None  # None: the endpoint's metrics port
    interval: str | None = None  # None: the picker's interval
    insecure_skip_verify: bool = True
    ca_cert_path: str | None = None
    client_cert_path: str | None = None
    client_key_path: str | None = None

    def __post_init__(self) -> None:
        if self.scheme not in {"http", "https"}:
            raise ValueError(f"scheme must be http or https, got {self.scheme!r}")
        if self.path is not None and not _PATH.fullmatch(self.path):
            raise ValueError(f"path must begin with / and contain no blanks, got {self.path!r}")
        if (self.client_cert_path is None) != (self.client_key_path is None):
            raise ValueError("clientCertPath and clientKeyPath must be given together")
        if self.interval is not None:
            ticks = parse_duration_s(self.interval) / _BASE_TICK_S
            if ticks < 1 or abs(ticks - round(ticks)) > 1e-6:
                raise ValueError(f"interval must be a multiple of 50ms, got {self.interval!r}")


class Unreadable(Exception):
    """Error: the server's metrics page has none of the expected series."""


# Expected failures of servers and networks.
_FORESEEN = (Unreadable, GetFailed, OSError, EOFError, TimeoutError, ssl.SSLError)


def defect_in(error: Exception) -> Exception | None:
    """Returns the error if it is a defect of the picker, which must be logged with its traceback; None for an error
    that servers and networks cause.
    """
    return None if isinstance(error, _FORESEEN) else error


class LoadSource(Protocol):
    """A source of one endpoint's load."""

    port: int | None  # the polled port; None if the metrics are on another host than the server

    async def load(self) -> Load:
        """Returns the current load. Raises `OSError`, `GetFailed` or `Unreadable`."""

    async def close(self) -> None:
        """Closes the connection."""


class HttpLoadSource:
    """Reads an endpoint's load from its metrics page."""

    def __init__(
        self, get: KeepAliveGet, reader: PageReader, *, is_elsewhere: bool = False
    ) -> None:
        self.port = None if is_elsewhere else get.port
        self._get = get
        self._reader = reader

    async def load(self) -> Load:
        """Fetches and reads the metrics page."""
        body = await self._get.fetch()
        load = await self._reader.read_page(body)
        if load is None:
            raise Unreadable("the page has none of the expected series, or too many")
        return load

    async def close(self) -> None:
        """Close the connection."""
        self._get.close()


class Poller:
    """Polls each endpoint for as long as the endpoint is in the pool."""

    def __init__(
        self,
        pool: Pool,
        metrics: PickerMetrics,
        make_source: Callable[[Endpoint], LoadSource],
        interval_s: float,
        types: tuple[str, str] = (SOURCE_TYPE, EXTRACTOR_TYPE),
    ) -> None:
        self._pool = pool
        self._make_source = make_source
        self._metrics = metrics
        self._types = types  # types of the source and the extractor, as in the series' labels
        self._interval_s = interval_s
        self._tasks: dict[Endpoint, asyncio.Task[None]] = {}
        pool.on_left(self._stop)
        pool.on_joined(self._start)

    def count_failure(self) -> None:
        """Counts a failed poll."""
        self._metrics.poll_errors.labels(self._types[0]).inc()

    async def close(self) -> None:
        """Ends every task."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, endpoint: Endpoint) -> None:
        name = f"poll {endpoint.host_port}"
        self._tasks[endpoint] = asyncio.create_task(self._follow(endpoint), name=name)

    def _stop(self, endpoint: Endpoint) -> None:
        task = self._tasks.pop(endpoint, None)
        if task is not None:
            task.cancel()

    async def _follow(self, endpoint: Endpoint) -> None:
        source = self._make_source(endpoint)
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self.poll(endpoint, source, loop.time)
                await self._pause(endpoint)
        finally:
            await source.close()

    async def _pause(self, endpoint: Endpoint) -> None:
        """Waits until the next poll of the endpoint is due. The wait is shorter while requests are sent or wait, also
        to other endpoints: an endpoint that is avoided because of its queue must report when the queue is empty.
        """
        # Random, so that not all endpoints are polled in the same millisecond.
        spread = random.uniform(0.9, 1.1)
        soonest_s, longest_s = self._soonest_s(), max(self._interval_s, self._for_all_s())
        # Load that is old because nothing happens must not count as stale.
        endpoint.rest_s = longest_s - self._interval_s
        num_stirs = self._pool.num_stirs
        await asyncio.sleep(soonest_s * spread)
        if self._pool.num_stirs != num_stirs or self._pool.loads_wanted:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout((longest_s - soonest_s) * spread):
                await self._pool.stirred.wait()
                # Random, because many tasks wait for the same event.
                await asyncio.sleep(soonest_s * random.random())

    def _soonest_s(self) -> float:
        """Minimum seconds between two polls of the same endpoint. It grows with the number of endpoints, so that there
        are at most `_MAX_POLLS_PER_S` polls a second in all, but never exceeds the interval.
        """
        in_hurry_s = max(_BASE_TICK_S, self._interval_s / _HURRY, self._for_all_s())
        return min(self._interval_s, in_hurry_s)

    def _for_all_s(self) -> float:
        """Seconds between two polls of the same endpoint at which all endpoints have `_MAX_POLLS_PER_S`."""
        return len(self._pool) / _MAX_POLLS_PER_S

    async def poll(
        self, endpoint: Endpoint, source: LoadSource, clock: Callable[[], float]
    ) -> None:
        """Polls an endpoint once. A failure is counted, and the last known load stays."""
        polled_at = clock()
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                load = await source.load()
        except ConnectionRefusedError as error:
            self._refused(endpoint, source)
            self._failed(endpoint, error)
        except Unreadable as error:
            self._metrics.extract_errors.labels(*self._types).inc()
            self._failed(endpoint, error)
        except Exception as error:  # noqa: BLE001 - one server's odd answer must not end its polls
            self._failed(endpoint, error)
        else:
            self._took(endpoint, load, polled_at)

    def _took(self, endpoint: Endpoint, load: Load, polled_at: float) -> None:
        if endpoint.num_poll_failures:
            _log.info("load of %s is known again", endpoint.host_port)
        endpoint.observe(load, polled_at=polled_at)

    def _refused(self, endpoint: Endpoint, source: LoadSource) -> None:
        endpoint.is_refusing = source.port in {endpoint.spec.port, endpoint.grpc_port}

    def _failed(self, endpoint: Endpoint, error: Exception) -> None:
        self.count_failure()
        endpoint.num_poll_failures += 1
        if endpoint.num_poll_failures == 1:
            _log.warning(
                "load of %s cannot be read: %r",
                endpoint.host_port,
                error,
                exc_info=defect_in(error),
            )


def own_metrics_host(endpoint: Endpoint) -> str | None:
    """Returns the host of an endpoint's metrics page; None for the endpoint itself."""
    return endpoint.spec.metrics_address


def http_sources(
    parameters: MetricsSourceParameters,
    reader_of: Callable[[Endpoint], PageReader],
    key: str | None = None,
    host_of: Callable[[Endpoint], str | None] = own_metrics_host,
) -> Callable[[Endpoint], LoadSource]:
    """Returns a function that creates the load source of an endpoint that has a metrics page. `host_of` names the host
    of the page if it is not the endpoint. `key` is sent to endpoints only, not to other hosts.
    """
    tls = make_tls(parameters) if parameters.scheme == "https" else None

    def make(endpoint: Endpoint) -> LoadSource:
        port = parameters.port or endpoint.metrics_port
        reader = reader_of(endpoint)
        path = parameters.path or reader.path
        host = host_of(endpoint)
        is_elsewhere = host is not None
        get = KeepAliveGet(
            host or endpoint.host,
            port,
            path,
            tls=tls,
            name=host or endpoint.spec.address,
            key=None if is_elsewhere else key,
        )
        return HttpLoadSource(get, reader, is_elsewhere=is_elsewhere)

    return make


def make_tls(parameters: MetricsSourceParameters) -> ssl.SSLContext:
    """Returns the TLS context that verifies servers' certificates and presents the picker's own. Raises
    `ConfigError`.
    """
    try:
        context = client_tls(parameters.ca_cert_path, is_insecure=parameters.insecure_skip_verify)
        if parameters.client_cert_path and parameters.client_key_path:
            context.load_cert_chain(parameters.client_cert_path, parameters.client_key_path)
    except OSError as error:
        raise ConfigError(f"dataLayer.sources: a certificate cannot be read: {error}") from error
    return context
