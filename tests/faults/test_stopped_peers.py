"""SIGSTOP of nodes, of engines that lend prompts, and of an engine while the number of engines changes."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import WEFT, Server, clean_environment, running
from tests.cli.test_api_servers import KEY, MODEL, ROOM, Clients, begin
from tests.faults.test_stopped import within
from tests.ports import free_port
from weft.core.values.controls import HUNG_S

pytestmark = pytest.mark.slow

MARGIN_S = 15.0  # for beats, the end of a process and the errors
SHORT = {"prompt": [5, 6], "max_tokens": 2}


@contextmanager
def head_and_node(directory: Path) -> Iterator[tuple[Server, psutil.Process]]:
    """A server with one engine of its own and one of a node, and the node's process."""
    secret = directory / "ranks"
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    port = str(free_port())
    shared = (
        MODEL, *ROOM, "--num-threads", "1", "--data-parallel-size", "2", "--data-parallel-rpc-port", port,
        "--data-parallel-address", "127.0.0.1", "--data-parallel-secret-file", str(secret),
    )  # fmt: skip
    command = [*WEFT, "serve", "--headless", "--data-parallel-start-rank", "1", *shared]
    node = subprocess.Popen(command, env=clean_environment(), stderr=subprocess.DEVNULL)
    try:
        local = ("--data-parallel-size-local", "1", "--control-api-key", KEY)
        with running(*shared, *local) as server:
            yield server, psutil.Process(node.pid)
    finally:
        for process in (*psutil.Process(node.pid).children(), node):
            process.kill()
        node.wait()


async def until_health_is(clients: Clients, text: str) -> None:
    """Return when `/health` says so."""
    async with asyncio.timeout(2 * HUNG_S + PATIENCE_S):
        while (await clients.call("GET", "/health")).text != text:  # noqa: ASYNC110 - nobody is notified
            await asyncio.sleep(0.1)


async def asked_meanwhile(clients: Clients) -> set[int]:
    """Statuses of requests and calls that are sent while a process is stopped, each within the stated time."""
    asked = [
        asyncio.create_task(clients.call("POST", "/v1/completions", json=SHORT)) for _ in range(8)
    ]
    calls = [
        asyncio.create_task(clients.call("POST", path))
        for path in ("/reset_prefix_cache", "/resume")
    ]
    await within(HUNG_S + MARGIN_S, *asked, *calls)
    return {(await one).status_code for one in asked}


@pytest.mark.parametrize("stops_node", [True, False], ids=["node", "engine of a node"])
async def test_a_stopped_node_is_given_up(tmp_path: Path, stops_node: bool):
    """Its requests fail and those of other engines are answered. It joins again when it goes on or has a new one."""
    with head_and_node(tmp_path) as (server, node):
        clients = Clients(server)
        await until_health_is(clients, "")
        streams = await begin(clients, 4)
        stopped = node if stops_node else node.children()[0]
        stopped.suspend()
        statuses = await asked_meanwhile(clients)
        assert statuses <= {200, 503}
        assert 200 in statuses
        if stops_node:
            stopped.resume()
        await until_health_is(clients, "")
        await within(MARGIN_S, asyncio.gather(clients.call("POST", "/pause?mode=abort"), *streams))


@asynccontextmanager
async def lending(directory: Path, policy: str) -> AsyncIterator[tuple[Server, Server]]:
    """An engine that lends prompts and one that goes on with them, each a server."""
    secret = directory / "transfer"
    secret.write_text("s" * 32)
    secret.chmod(0o600)

    def config(role: str) -> tuple[str, ...]:
        extra = {"secret_file": str(secret)}
        fields = {
            "kv_connector": "TcpConnector", "kv_role": role, "kv_port": free_port(),
            "kv_load_failure_policy": policy, "kv_connector_extra_config": extra,
        }  # fmt: skip
        return ("--kv-transfer-config", json.dumps(fields), "--num-threads", "1", *ROOM)

    with (
        running(MODEL, *config("kv_producer")) as first,
        running(MODEL, *config("kv_consumer")) as second,
    ):
        yield first, second


@pytest.mark.parametrize(("policy", "statuses"), [("recompute", {200}), ("fail", {500, 503})])
async def test_a_prompt_of_a_stopped_engine_is_computed_or_refused(
    tmp_path: Path, policy: str, statuses: set[int]
):
    """Ten seconds after it was asked at most; other requests do not wait for it."""
    body = {"prompt": list(range(5, 105)), "max_tokens": 4, "temperature": 0}
    async with lending(tmp_path, policy) as (first, second):
        producer, consumer = Clients(first), Clients(second)
        lend = {**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        lent = (await producer.call("POST", "/v1/completions", json=lend)).json()
        whole = (await producer.call("POST", "/v1/completions", json=body)).json()
        first.engine.suspend()
        given = {**body, "kv_transfer_params": lent["kv_transfer_params"]}
        asked = [
            asyncio.create_task(consumer.call("POST", "/v1/completions", json=given))
            for _ in range(4)
        ]
        other = asyncio.create_task(consumer.call("POST", "/v1/completions", json=SHORT))
        await within(10 + MARGIN_S, other, *asked)
        answers = [await one for one in asked]
        assert (await other).status_code == 200
    assert {answer.status_code for answer in answers} <= statuses
    for answer in answers:
        text = answer.json().get("choices", whole["choices"])[0]["text"]
        assert text == whole["choices"][0]["text"]


async def test_scaling_returns_while_an_engine_is_stopped():
    """Whether it is taken away or stays, and later calls find a server that answers."""
    flags = ("--data-parallel-size", "2", "--num-threads", "3", "--enable-elastic-ep", *ROOM)
    with running(MODEL, *flags, "--control-api-key", KEY) as server:
        clients = Clients(server)
        server.front.children()[1].suspend()
        for size in (1, 2):
            scale = {"new_data_parallel_size": size, "drain_timeout": 5}
            call = asyncio.create_task(clients.call("POST", "/scale_elastic_ep", json=scale))
            await within(HUNG_S + MARGIN_S, call)
            assert (await call).status_code in {200, 408, 503}
        await until_health_is(clients, "")
        assert (await clients.call("POST", "/v1/completions", json=SHORT)).status_code == 200
