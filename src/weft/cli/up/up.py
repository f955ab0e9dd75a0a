"""`weft up`: starts workers, a picker and Envoy on one machine, behind one address."""

import asyncio
import json
import os
import re
import secrets
import shlex
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from weft.cli.picker.options import UpOptions
from weft.cli.process.children import Child, ChildFailed, inherited_environment, weft_command
from weft.cli.process.limits import raise_open_files
from weft.cli.process.signals import Signalled, Signals
from weft.cli.up.binary import find_envoy
from weft.cli.up.envoy import EnvoyPlan, envoy_config
from weft.cli.up.picker_config import PICKER_CONFIG, PREFILL_CONFIG
from weft.core.aio.pauses import Pauses
from weft.core.callers import HostRule
from weft.core.errors import ConfigError, Unavailable
from weft.core.observe.log import configure_logging
from weft.core.values.kv_transfer import KvConnector, KvRole
from weft.epp.server.limits import PickerLimits

_STOP_S: Final = 10.0
_POLL_S: Final = 0.1
# Maximum bytes of the path, so that the path of a socket inside stays below 108 bytes
_MAX_TMPDIR: Final = 80
_PAUSES_S: Final = (0.25, 30.0)  # first and longest pause before a process is started again
_SERVES: Final = re.compile(r"^Weft \S+ serves (.+), loaded in ", re.MULTILINE)
_MAX_WORKERS: Final = 256
_FREE_PORTS: Final = ("--port", "0", "--grpc-port", "0")
_AROUND_BODY_BYTES: Final = 2**16  # bytes around a body in Envoy's message
_ROLE: Final = "llm-d.ai/role"
_CONNECTOR: Final = KvConnector.SHM if hasattr(os, "memfd_create") else KvConnector.TCP
_KV_ROLES: Final = {"prefill": KvRole.PRODUCER, "decode": KvRole.CONSUMER}


def up(model: str, options: UpOptions) -> int:
    """Starts workers, picker and Envoy, and stops them on a signal; returns the exit status."""
    configure_logging(options.log_level, log_format=options.log_format)
    if not 1 <= options.workers <= _MAX_WORKERS:
        raise ConfigError(f"--workers must be between 1 and {_MAX_WORKERS}, not {options.workers}")
    most, limit = options.buffered_body_bytes, PickerLimits().max_body_bytes
    if most is not None and not 1 <= most <= limit:
        raise ConfigError(f"--buffered-body-bytes must be between 1 and {limit}, not {most}")
    for name, count in (("--prefill", options.prefill), ("--decode", options.decode)):
        if not 0 <= count <= _MAX_WORKERS:
            raise ConfigError(f"{name} must be between 1 and {_MAX_WORKERS}, not {count}")
    if bool(options.prefill) != bool(options.decode):
        raise ConfigError(
            "--prefill and --decode need each other: give the number of workers of each kind"
        )
    binary = find_envoy(options.envoy)
    _check_free(options.host, options.port, "--port")
    _check_free(options.host, options.metrics_port, "--metrics-port")
    raise_open_files()
    return asyncio.run(Stack(model, options, binary).run())


@dataclass(frozen=True, slots=True)
class Worker:
    """Addresses of a worker."""

    http: str | None  # None if --no-http is set
    grpc: str
    model: str = ""
    role: str | None = None  # "prefill" or "decode", if there are both kinds

    @classmethod
    def from_banner(cls, lines: Sequence[str], role: str | None = None) -> "Worker":
        """Reads the worker's addresses from the banner that its server prints when it is ready."""
        words = {line.split()[0]: line.split()[1] for line in lines if line.startswith("  ")}
        grpc, http = words.get("gRPC"), words.get("HTTP")
        if grpc is None:
            raise ConfigError(
                "--worker-args must not contain --no-grpc: the picker reads the load over gRPC"
            )
        if http is not None and not http.startswith("http://"):
            raise ConfigError(
                "--worker-args must not turn on TLS: only Envoy connects to the workers"
            )
        found = _SERVES.search("\n".join(lines))
        assert found is not None, lines
        if role is not None and http is None:
            raise ConfigError(
                "--worker-args must not contain --no-http together with --prefill and --decode"
            )
        return cls(None if http is None else http.removeprefix("http://"), grpc, found[1], role)

    @property
    def ports(self) -> list[str]:
        """Flags of a server at the same addresses."""
        ports = ["--grpc-port", str(_split(self.grpc)[1])]
        return ports if self.http is None else [*ports, "--port", str(_split(self.http)[1])]

    @property
    def endpoint(self) -> str:
        """The worker as the value of the picker's flag --endpoint."""
        if self.http is None:
            return self.grpc
        role = "" if self.role is None else f",{_ROLE}={self.role}"
        return f"{self.http},grpcPort={_split(self.grpc)[1]}{role}"


def _transfer(role: str, scratch: Path) -> str:
    """Returns the `--kv-transfer-config` of a worker. All workers of this start share one secret."""
    path = scratch / "transfer"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32), encoding="ascii")
    given = {
        "kv_connector": _CONNECTOR.value,
        "kv_role": _KV_ROLES[role],
        "kv_port": 0,
        "kv_connector_extra_config": {"secret_file": str(path)},
    }
    return json.dumps(given)


class Stack:
    """All processes of `weft up`, in the order of their start. They are stopped in the same order."""

    def __init__(self, model: str, options: UpOptions, binary: Path) -> None:
        self._model = model
        self._options = options
        self._binary = binary
        self._hosts = HostRule(options.host, options.allowed_hosts or ())
        self._started = time.monotonic()
        self._signals = Signals()
        self._workers: list[Child] = []
        self._worker_argvs: list[list[str]] = []  # without the ports
        self._worker_ports: list[list[str]] = []
        self._picker: Child | None = None
        self._envoy: Child | None = None

    async def run(self) -> int:
        """Runs until a signal arrives or a necessary process has ended; returns the exit status."""
        self._signals.listen()
        # The path of TMPDIR may be too long for a socket; /tmp is short.
        short = None if len(os.fsencode(tempfile.gettempdir())) < _MAX_TMPDIR else "/tmp"  # noqa: S108
        with tempfile.TemporaryDirectory(prefix="weft-up-", dir=short) as scratch:
            try:
                async with asyncio.timeout(self._options.start_timeout):
                    await self._signals.unless(self._start(Path(scratch)))
                await self._signals.unless(self._watch())
            except Signalled:
                self._say("stopping")
            except TimeoutError as error:
                limit = self._options.start_timeout
                raise Unavailable(f"not ready after {limit:g} s (--start-timeout)") from error
            finally:
                await self._stop_all()
        return 0

    async def _start(self, scratch: Path) -> None:
        workers = await self._start_workers(scratch)
        self._picker_argv = self._argv_of_picker(workers)
        picker = await self._start_picker(port=0)
        self._picker_port = _split(picker)[1]
        self._say(f"the picker is ready at {picker}")
        await self._start_envoy(scratch, picker, workers)
        host, port = self._options.host, self._options.port
        http = f"  HTTP     http://{host}:{port} (for a browser; /v1)\n" if workers[0].http else ""
        print(
            f"ready after {time.monotonic() - self._started:.1f} s; Ctrl-C stops everything\n"
            f"{http}"
            f"  gRPC     {host}:{port} (vllm.grpc.engine.VllmEngine)\n"
            f"  routing  http://{host}:{self._options.metrics_port} (for a browser: which worker, and why)\n"
            f"  metrics  http://{host}:{self._options.metrics_port}/metrics\n"
            f"  why      weft epp explain REQUEST_ID --metrics-port {self._options.metrics_port}\n"
            f'  try      weft complete --address {host}:{port} "The capital of France is"',
            flush=True,
        )

    async def _start_workers(self, scratch: Path) -> list[Worker]:
        options = self._options
        roles: list[str | None] = [None] * options.workers
        if options.prefill:
            roles = [*["prefill"] * options.prefill, *["decode"] * options.decode]
        count = len(roles)
        self._say(f"starting {count} workers with {self._model}")
        for number, role in enumerate(roles, 1):
            argv = [*weft_command(), "serve", self._model, "--log-level", "warning"]
            argv += ["--log-format", options.log_format]
            if options.otlp_traces_endpoint is not None:
                argv += ["--otlp-traces-endpoint", options.otlp_traces_endpoint]
            if role is not None:
                argv += ["--kv-transfer-config", _transfer(role, scratch)]
            argv += shlex.split(options.worker_args)
            self._worker_argvs.append(argv)
            self._workers.append(await self._start_worker(number, _FREE_PORTS))
        workers = []
        for child, role in zip(self._workers, roles, strict=True):
            workers.append(Worker.from_banner(await child.read_until("  try"), role))
            self._say(f"{child.name} of {count} is ready at {workers[-1].grpc}")
        self._worker_ports = [worker.ports for worker in workers]
        return workers

    async def _start_worker(self, number: int, ports: Sequence[str]) -> Child:
        """Starts worker 1, 2 and so on."""
        argv, count = self._worker_argvs[number - 1], len(self._worker_argvs)
        environment = inherited_environment(count)
        return await self._child(f"worker {number}", [*argv, *ports], environment)

    async def _child(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Child:
        return await Child.start(name, argv, environment, log_format=self._options.log_format)

    def _argv_of_picker(self, workers: Sequence[Worker]) -> list[str]:
        options = self._options
        argv = [*weft_command(), "epp", "--grpc-health-port", "0"]
        argv += ["--host", options.host, "--metrics-port", str(options.metrics_port)]
        argv += ["--default-engine", "vllm-grpc", "--log-level", options.log_level]
        argv += ["--log-format", options.log_format]
        if options.otlp_traces_endpoint is not None:
            argv.append("--tracing")
        argv += ["--drain-timeout", "1s", "--default-model", workers[0].model]
        if options.config_file is None:
            argv += ["--config-text", PREFILL_CONFIG if options.prefill else PICKER_CONFIG]
        else:
            argv += ["--config-file", str(options.config_file)]
        for name in options.allowed_hosts or ():
            argv += ["--allowed-hosts", name]
        if options.explain_header:
            argv.append("--explain-header")
        if (most := options.buffered_body_bytes) is not None:
            argv += ["--grpc-max-recv-msg-size", str(most + _AROUND_BODY_BYTES)]
        for worker in workers:
            argv += ["--endpoint", worker.endpoint]
        return argv

    async def _start_picker(self, port: int) -> str:
        argv = [*self._picker_argv, "--grpc-port", str(port)]
        environment = inherited_environment(1)
        if (endpoint := self._options.otlp_traces_endpoint) is not None:
            environment["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = endpoint
        self._picker = await self._child("picker", argv, environment)
        lines = await self._picker.read_until("  metrics")
        return next(line.split()[1] for line in lines if line.startswith("  ext_proc"))

    async def _start_envoy(self, scratch: Path, picker: str, workers: Sequence[Worker]) -> None:
        # A socket, because the admin pages can stop Envoy, and web pages can reach ports.
        admin = scratch / "admin"
        plan = EnvoyPlan(
            listen=(self._options.host.strip("[]"), self._options.port),
            picker=_split(picker),
            grpc_workers=[_split(worker.grpc) for worker in workers],
            http_workers=[_split(worker.http) for worker in workers if worker.http],
            admin=admin,
            host_pattern=self._hosts.pattern if self._hosts.checks else None,
            is_fail_open=self._options.fail_open,
            buffered_bytes=self._options.buffered_body_bytes,
            routing_port=self._options.metrics_port,
        )
        path = scratch / "envoy.json"
        path.write_text(json.dumps(envoy_config(plan), indent=1))
        argv = [str(self._binary), "-c", str(path), "--disable-hot-restart"]
        argv += ["--log-level", "warning", "--concurrency", "2"]
        # Envoy would log a warning for every request while the picker is down; the picker's end is logged once.
        argv += ["--component-log-level", "ext_proc:error"]
        self._envoy = envoy = await self._child("envoy", argv)
        while not await asyncio.to_thread(_is_envoy_ready, admin):
            if envoy.process.returncode is not None:
                raise envoy.failure()
            await asyncio.sleep(_POLL_S)
        self._say("Envoy is ready")

    async def _watch(self) -> None:
        """Waits until a process has ended that the others need; raises its failure."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(1, 1 + len(self._workers)):
                    group.create_task(self._watch_worker(number))
                group.create_task(self._watch_envoy())
                group.create_task(self._watch_picker())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _watch_worker(self, number: int) -> None:
        """Restarts a worker each time it ends. Raises the worker's failure if no other worker runs."""
        pauses = Pauses(*_PAUSES_S)
        while True:
            worker, since = self._workers[number - 1], time.monotonic()
            await worker.process.wait()
            num_alive = sum(each.process.returncode is None for each in self._workers)
            if num_alive == 0:
                raise worker.failure()
            self._say(f"{worker.failure()}; {num_alive} workers are left")
            pauses.lasted(time.monotonic() - since)
            await self._restart_worker(number, pauses)
            self._say(f"worker {number} is back")

    async def _restart_worker(self, number: int, pauses: Pauses) -> None:
        """Restarts a worker, at the same addresses, until it serves."""
        while True:
            await asyncio.sleep(pauses.next_s())
            worker = await self._start_worker(number, self._worker_ports[number - 1])
            self._workers[number - 1] = worker
            try:
                async with asyncio.timeout(self._options.start_timeout):
                    await worker.read_until("  try")
            except (ChildFailed, TimeoutError) as error:
                self._say(f"{str(error) or f'worker {number} is not ready'}; trying again")
                await worker.stop(_STOP_S)
            else:
                return

    async def _watch_envoy(self) -> None:
        """Waits for the end of Envoy and raises its failure: without Envoy, clients cannot reach the workers."""
        assert self._envoy is not None
        await self._envoy.process.wait()
        raise self._envoy.failure()

    async def _watch_picker(self) -> None:
        """Waits for the end of the picker and restarts it; requests go round robin meanwhile. If requests must not
        bypass the picker (no --fail-open), raises the picker's failure instead.
        """
        pauses = Pauses(*_PAUSES_S)
        while True:
            assert self._picker is not None
            since = time.monotonic()
            await self._picker.process.wait()
            failure = self._picker.failure()
            if not self._options.fail_open:
                raise failure
            pauses.lasted(time.monotonic() - since)
            self._say(f"{failure}; requests go round robin until it is back")
            await self._restart_picker(pauses)
            self._say("the picker is back")

    async def _restart_picker(self, pauses: Pauses) -> None:
        """Restarts the picker at the same address until a start succeeds."""
        while True:
            await asyncio.sleep(pauses.next_s())
            try:
                async with asyncio.timeout(self._options.start_timeout):
                    await self._start_picker(self._picker_port)
            except (ChildFailed, TimeoutError) as error:
                self._say(f"{str(error) or 'the picker is not ready'}; trying again")
                assert self._picker is not None
                await self._picker.stop(_STOP_S)
            else:
                return

    async def _stop_all(self) -> None:
        """Stops the workers first: they end their open requests, whose answers still pass Envoy."""
        await asyncio.gather(*(child.stop(_STOP_S) for child in self._workers))
        for child in (self._picker, self._envoy):
            if child is not None:
                await child.stop(_STOP_S)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:5.1f} s  {text}", flush=True)


def _check_free(host: str, port: int, flag: str) -> None:
    if not 1 <= port <= 65535:
        raise ConfigError(f"{flag} must be between 1 and 65535, not {port}")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host.strip("[]"), port), family=family):
            pass
    except OSError as err:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {err.strerror}; choose another with {flag} or --host"
        ) from err


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _is_envoy_ready(admin: Path) -> bool:
    connection = HTTPConnection("localhost", timeout=2)
    try:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(2)
        connection.sock.connect(str(admin))
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
