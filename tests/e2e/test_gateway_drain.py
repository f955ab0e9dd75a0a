"""The preStop hook of the gateway's pods, with a real Envoy: what is open ends, and then Envoy may."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from tests.busy import PATIENCE_S, until
from tests.deploy.manifests import KUBERNETES
from tests.e2e.envoys import Running, envoy
from tests.e2e.scenes import STREAMED, split
from tests.e2e.workers import HttpWorker, http_worker
from tests.ports import free_port
from weft.cli.up.envoy import EnvoyPlan

SCRIPT = KUBERNETES / "fleet" / "drain.sh"


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[Running, HttpWorker, str]]:
    """An Envoy before a worker, without a picker, and the address of its pages for probes."""
    probes = free_port()
    async with http_worker() as worker:
        plan = EnvoyPlan(
            picker=("127.0.0.1", free_port()),
            http_workers=[split(worker.address)],
            probes=("127.0.0.1", probes),
            health_interval_s=0.1,
        )
        async with envoy(plan) as running:
            yield running, worker, f"http://127.0.0.1:{probes}"


async def drain(running: Running, limit_s: int) -> asyncio.subprocess.Process:
    """The hook at work."""
    words = (str(SCRIPT), str(limit_s), str(running.admin_port))
    return await asyncio.create_subprocess_exec("bash", *words)


async def test_a_gateway_that_drains_ends_what_is_open_and_fails_its_readiness():
    """The hook returns once no request is open; requests that come meanwhile are served, and their clients leave."""
    async with (
        gateway() as (running, worker, probes),
        running.client() as client,
        httpx2.AsyncClient(base_url=probes, timeout=PATIENCE_S) as kubelet,
    ):
        assert (await kubelet.get("/ready")).status_code == 200
        worker.may_end.clear()
        open_request = asyncio.create_task(client.post("/v1/chat/completions", content=STREAMED))
        await until(lambda: len(worker.seen) == 1)
        hook = await drain(running, 600)
        async with asyncio.timeout(PATIENCE_S):
            while (await kubelet.get("/ready")).status_code != 503:
                pass
        assert (await kubelet.get("/live")).status_code == 200
        assert (await kubelet.get("/stats")).status_code == 404
        late = await client.get("/v1/models")
        assert (late.status_code, late.headers["connection"]) == (200, "close")
        assert hook.returncode is None
        worker.may_end.set()
        assert (await open_request).text.endswith("data: [DONE]\n\n")
        async with asyncio.timeout(PATIENCE_S):
            assert await hook.wait() == 0


async def test_a_gateway_drains_no_longer_than_it_may():
    """A request that does not end is cut when Envoy ends."""
    async with gateway() as (running, worker, _), running.client() as client:
        worker.may_answer.clear()
        task = asyncio.create_task(client.post("/v1/chat/completions", content=STREAMED))
        await until(lambda: len(worker.seen) == 1)
        hook = await drain(running, 1)
        async with asyncio.timeout(PATIENCE_S):
            assert await hook.wait() == 0
        assert not task.done()
        task.cancel()
