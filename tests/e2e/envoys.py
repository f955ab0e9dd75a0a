"""Real Envoys: started on free ports, ready when they route, and never left behind."""

import asyncio
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx2

from tests.busy import PATIENCE_S
from tests.ports import free_port
from weft.cli.up.binary import find_envoy
from weft.cli.up.envoy import PICKER, EnvoyPlan, envoy_config
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub

START_TIMEOUT_S = PATIENCE_S


class Running:
    """One Envoy process, its log and its ports."""

    def __init__(self, config: Mapping[str, Any], port: int, admin: int, scratch: Path) -> None:
        self.port, self.admin_port = port, admin
        self._log_path = scratch / "envoy.log"
        path = scratch / "envoy.json"
        path.write_text(json.dumps(config))
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [str(find_envoy(None)), "-c", str(path), "--disable-hot-restart",
                 "--concurrency", "1", "--log-level", "warning"],
                stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def log(self) -> str:
        """What it has to say."""
        return self._log_path.read_text()

    def client(self, **how: Any) -> httpx2.AsyncClient:
        """One that speaks HTTP through it."""
        base = f"http://127.0.0.1:{self.port}"
        return httpx2.AsyncClient(base_url=base, **{"timeout": PATIENCE_S, **how})

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[VllmEngineStub]:
        """The generated client of gRPC through it."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            yield VllmEngineStub(channel)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    async def wait_ready(self) -> None:
        """Return when it says that it is live; health checks have had their first round then."""
        async with asyncio.timeout(START_TIMEOUT_S):
            await self.wait_for("/ready", b"LIVE")

    async def wait_for_picker(self) -> None:
        """Return when requests go through the picker; on a busy machine its first check may fail."""
        async with asyncio.timeout(START_TIMEOUT_S):
            await self.wait_for("/clusters?filter=^picker$", b"health_flags::healthy")

    async def wait_for(self, path: str, text: bytes) -> None:
        """Return when a page of its admin interface has this text."""
        while text not in await self.get(path):
            assert self.process.poll() is None, self.log
            await asyncio.sleep(0.02)

    async def get(self, path: str) -> bytes:
        """One page of its admin interface; nothing while it does not listen."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.admin_port)
        except OSError:
            return b""
        writer.write(f"GET {path} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer


def _make_patient(config: dict[str, Any]) -> None:
    """Health checks wait for their answer as long as tests do."""
    for cluster in config["static_resources"]["clusters"]:
        for check in cluster.get("health_checks", ()):
            check["timeout"] = f"{PATIENCE_S}s"


def _add_pickers(config: dict[str, Any], addresses: Sequence[tuple[str, int]]) -> None:
    (cluster,) = (each for each in config["static_resources"]["clusters"] if each["name"] == PICKER)
    (locality,) = cluster["load_assignment"]["endpoints"]
    for host, port in addresses:
        address = {"socket_address": {"address": host, "port_value": port}}
        locality["lb_endpoints"].append({"endpoint": {"address": address}})


@asynccontextmanager
async def envoy(
    plan: EnvoyPlan, *, is_patient: bool = True, more_pickers: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[Running]:
    """An Envoy of this plan on a port of its own. More pickers are found as by a name with several addresses.

    A patient one passes by none that only answers late: what a test runs may have to wait for a processor.
    """
    port, admin = free_port(), free_port()
    plan = replace(plan, listen=("127.0.0.1", port), admin=("127.0.0.1", admin))
    config = envoy_config(plan)
    if is_patient:
        _make_patient(config)
    _add_pickers(config, more_pickers)
    with tempfile.TemporaryDirectory() as scratch:
        running = Running(config, port, admin, Path(scratch))
        try:
            await running.wait_ready()
            yield running
        finally:
            running.stop()
