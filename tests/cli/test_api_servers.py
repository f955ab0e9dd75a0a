"""`weft serve --api-server-count`: several processes on one port, the same engines behind all of them."""

import asyncio
import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import httpx2 as httpx
import msgspec
import psutil
import pytest

from tests.busy import PATIENCE_S, until
from tests.cli.running import SMALL, Server, running
from tests.engine.test_data_parallel import by_hand
from tests.model.adapters import write_adapter
from weft.cli.options import ServeOptions
from weft.cli.serving.api_servers import ApiServers, _Process
from weft.cli.serving.api_serving import plain_options, read_options
from weft.core.aio import heartbeat, pauses
from weft.core.aio.pauses import Pauses
from weft.core.checks.object_ids import store_of
from weft.core.errors import EngineDead
from weft.core.values.types import SamplingParams
from weft.engine.api_servers import attached
from weft.engine.api_servers.messages import (
    Acknowledged,
    EnginesStopped,
    FromServer,
    Open,
    Opened,
    Prepared,
    Start,
    State,
    ToServer,
)
from weft.engine.clients.data_parallel import DataParallelClient
from weft.engine.ipc.channel import Channel
from weft.model.open import open_model
from weft.rpc.client import RpcClient
from weft.rpc.connection import Credentials

KEY = "operator"
HEADERS = {"Authorization": f"Bearer {KEY}"}
ROOM = ("--max-model-len", "16384", "--num-gpu-blocks-override", "2048")
MODEL = f"{SMALL}&max_len=16384"
# As long as the context lets it be: it ends when it is ended.
ENDLESS = {"prompt": [5, 6, 7], "max_tokens": 16_000, "ignore_eos": True, "temperature": 0}


def test_options_cross_to_another_process(tmp_path):
    """Paths and lists among them."""
    options = ServeOptions(api_key=["a", "b"], ssl_certfile=tmp_path / "cert", port=0)
    plain = json.loads(json.dumps(plain_options(options)))
    assert read_options(plain) == options


class Started:
    """Stands for an API server's process, and does at once what it is asked."""

    def __init__(self, channel: Channel[ToServer]) -> None:
        self._channel = channel
        self._serving = asyncio.create_task(self._serve())
        self._ended = asyncio.Event()
        self.is_open = self.is_hung = False

    async def _serve(self) -> None:
        async for message in self._channel.messages():
            match message:
                case _ if self.is_hung:
                    pass
                case Start():
                    self._channel.send(Prepared())
                case State():
                    self._channel.send(Acknowledged(message.call_id))
                case Open():
                    self.is_open = True
                    self._channel.send(Opened(None))
                case EnginesStopped():
                    self.kill()

    async def wait(self) -> int:
        """As a process's."""
        await self._ended.wait()
        return -9

    def kill(self) -> None:
        """As a process's."""
        self._channel.close()
        self._ended.set()


class Processes:
    """Those that were started, of a system that may refuse more for a while."""

    def __init__(self) -> None:
        self.started: list[Started] = []
        self.num_refused = 0

    async def spawn(self) -> _Process:
        """As `_Process.spawn`."""
        if self.num_refused:
            self.num_refused -= 1
            raise BlockingIOError
        ours, theirs = socket.socketpair()
        self.started.append(Started(await Channel.open(theirs, ToServer)))
        return _Process(self.started[-1], await Channel.open(ours, FromServer))


def start_of(group: DataParallelClient) -> Callable[[str], Start]:
    """What makes the first message to an API server before these engines."""
    return lambda name: Start(
        name=name,
        directory="/nowhere",
        options={},
        config=group.vllm_config,
        http_port=None,
        grpc_port=None,
        store_name="m0123456789ab",
    )


@pytest.mark.parametrize("has_engines", [False, True], ids=["no engine", "no process"])
async def test_an_api_server_comes_back_whatever_else_is_missing_just_then(
    has_engines, monkeypatch
):
    """Engines come back too, and the system has room again: nobody waits for what does not happen."""
    processes = Processes()
    monkeypatch.setattr(_Process, "spawn", processes.spawn)
    monkeypatch.setattr(pauses, "Pauses", partial(Pauses, first_s=0.0))
    group, engines = await by_hand()
    servers = await ApiServers.spawn(1)
    await servers.start(group, list, start_of(group), partial(asyncio.sleep, 0))
    if has_engines:
        processes.num_refused = 1
    else:
        for engine in engines:
            engine._die(EngineDead("x"))
    processes.started[0].kill()
    await until(lambda: len(processes.started) == 2 and processes.started[1].is_open)
    await servers.stop()


async def test_calls_return_though_an_api_server_hangs(monkeypatch):
    """What it is to know waits for it, and the lock that they take is free for the next."""
    processes = Processes()
    monkeypatch.setattr(_Process, "spawn", processes.spawn)
    monkeypatch.setattr(attached, "USE_S", 0.01)
    group, _ = await by_hand()
    servers = await ApiServers.spawn(2)
    await servers.start(group, list, start_of(group), partial(asyncio.sleep, 0))
    processes.started[0].is_hung = True
    async with asyncio.timeout(PATIENCE_S):
        for size in (3, 4):
            group._group.use(msgspec.structs.replace(group.vllm_config, data_parallel_size=size))
            await servers._share_state()
    processes.started[0].kill()
    processes.started[0].is_hung = False
    await servers.stop()


async def test_an_api_server_that_does_not_answer_is_killed_and_started_again(monkeypatch):
    """It may have been stopped: half of all connections would go there, and wait."""
    processes = Processes()
    monkeypatch.setattr(_Process, "spawn", processes.spawn)
    monkeypatch.setattr(pauses, "Pauses", partial(Pauses, first_s=0.0))
    monkeypatch.setattr(heartbeat, "PERIOD_S", 0.02)
    group, _ = await by_hand()
    servers = await ApiServers.spawn(1)
    await servers.start(group, list, start_of(group), partial(asyncio.sleep, 0))
    found = servers._places[0].server.heartbeat
    found._max_unanswered = found._num_unanswered = 0  # the time that it may take is over
    await until(lambda: len(processes.started) == 2 and processes.started[1].is_open)
    await servers.stop()


@contextmanager
def served(*argv: str, count: int = 2) -> Iterator[Server]:
    """A server with an operator's key."""
    flags = ("--api-server-count", str(count), "--control-api-key", KEY, *ROOM, *argv)
    with running(MODEL, *flags) as server:
        yield server


def api_servers(server: Server) -> list[psutil.Process]:
    """The API server processes."""
    found = []
    for child in server.front.children():
        with suppress(psutil.NoSuchProcess):  # nor of those whose end nobody has seen yet
            if "weft.cli.serving.api_server" in child.cmdline():
                found.append(child)
    return found


class Clients:
    """A connection of its own for each call, so that each process has some."""

    def __init__(self, server: Server) -> None:
        self._url = server.http

    async def call(self, method: str, path: str, **options) -> httpx.Response:
        async with httpx.AsyncClient(
            base_url=self._url, timeout=PATIENCE_S, headers=HEADERS
        ) as client:
            return await client.request(method, path, **options)

    async def many(self, method: str, path: str, count: int = 16, **options) -> list:
        """The answers of so many connections: that all are one process's is one case in 2^15."""
        calls = (self.call(method, path, **options) for _ in range(count))
        return [answer.json() for answer in await asyncio.gather(*calls)]

    async def stream(self, began: asyncio.Event, body: dict | None = None) -> str:
        """An endless answer's last lines; `began` is set with its first event."""
        text = ""
        async with httpx.AsyncClient(base_url=self._url, timeout=PATIENCE_S) as client:
            sent = (body or ENDLESS) | {"stream": True}
            async with client.stream("POST", "/v1/completions", json=sent) as answer:
                async for line in answer.aiter_lines():
                    began.set()
                    text = line or text
        return text


async def begin(clients: Clients, count: int) -> list[asyncio.Task]:
    """So many endless streams, each under way."""
    events = [asyncio.Event() for _ in range(count)]
    tasks = [asyncio.create_task(clients.stream(event)) for event in events]
    await asyncio.gather(*(event.wait() for event in events))
    return tasks


async def num_open(clients: Clients) -> int | None:
    """Of all API servers, as any of them says; None from one that is just dying."""
    try:
        return (await clients.call("GET", "/load")).json()["server_load"]
    except httpx.HTTPError:
        return None


@pytest.mark.slow
async def test_two_processes_are_one_server():
    """Answers, load, series, pauses and aborts are those of all, whichever process is asked."""
    with served() as server:
        clients = Clients(server)
        assert len(api_servers(server)) == 2
        assert "2 API servers" in server.banner
        body = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answers = await clients.many("POST", "/v1/completions", json=body)
        assert len({answer["choices"][0]["text"] for answer in answers}) == 1

        series = (await clients.call("GET", "/metrics")).text
        done = re.search(
            r'vllm:request_success_total\{.*finished_reason="length".*\} (\S+)', series
        )
        assert done is not None
        assert float(done[1]) == 16
        count = re.search(r'http_requests_total\{handler="/v1/completions".*2xx.*\} (\S+)', series)
        assert count is not None
        assert float(count[1]) == 16
        stores = set(re.findall(r'weft:store_info\{store="(\w+)"\}', series))
        body = {"input": "Hi", "max_output_tokens": 1}
        made = await clients.many("POST", "/v1/responses", json=body)
        assert {store_of(response["id"]) for response in made} == stores
        assert len(stores) == 1
        shown = set(re.findall(r'process_resident_memory_bytes\{process="(\w+)"\}', series))
        assert shown == {"supervisor", "api_server_0", "api_server_1"}

        await clients.call("POST", "/pause")
        assert {one["is_paused"] for one in await clients.many("GET", "/is_paused")} == {True}
        await clients.call("POST", "/resume")
        assert {one["is_paused"] for one in await clients.many("GET", "/is_paused")} == {False}

        tasks = await begin(clients, 8)
        loads = await clients.many("GET", "/load")
        assert {one["server_load"] for one in loads} == {8}
        assert {one["loads"][0]["num_running"] for one in loads} == {8}
        await clients.call("POST", "/abort_requests", json={"request_ids": []})
        await clients.call("POST", "/pause", params={"mode": "abort"})
        assert await asyncio.gather(*tasks) == ["data: [DONE]"] * 8
        assert await num_open(clients) == 0


@pytest.mark.slow
async def test_an_adapter_that_one_process_loads_is_there_for_all(tmp_path):
    """By the time that the call returns, over HTTP and gRPC; and so is its removal."""
    adapter = write_adapter(tmp_path / "a", open_model(MODEL).spec)
    with served("--enable-lora", "--allow-runtime-lora-updating") as server:
        clients = Clients(server)
        body = {"lora_name": "sql", "lora_path": str(adapter)}
        loaded = await clients.call("POST", "/v1/load_lora_adapter", json=body)
        assert loaded.status_code == 200
        assert {len(one["data"]) for one in await clients.many("GET", "/v1/models")} == {2}
        asked = {"model": "sql", "prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0}
        answers = await clients.many("POST", "/v1/completions", json=asked)
        assert len({answer["choices"][0]["text"] for answer in answers}) == 1
        await clients.call("POST", "/v1/unload_lora_adapter", json={"lora_name": "sql"})
        assert {len(one["data"]) for one in await clients.many("GET", "/v1/models")} == {1}


@pytest.mark.slow
async def test_grpc_is_served_by_all_too():
    """Each connection by one of them, of which it gets the same tokens and the same state."""
    with served() as server:
        credentials = Credentials(control_api_key=KEY)
        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
        said = set()
        for number in range(8):
            client = await RpcClient.connect(server.address, credentials=credentials)
            stream = client.generate({"prompt_token_ids": [5, 6, 7]}, params, f"r{number}")
            outputs = [output async for output in stream]
            said.add(tuple(outputs[-1].outputs[0].token_ids))
            assert await client.is_paused() is False
            assert [load.num_running for load in await client.get_loads()] == [0]
            await client.close()
        assert len(said) == 1
        assert len(said.pop()) == 8


@pytest.mark.slow
async def test_who_asks_for_a_stored_response_is_told_why_there_is_none():
    """Another process would be asked for it."""
    with served() as server:
        clients = Clients(server)
        body = {"input": "Hi", "max_output_tokens": 4}
        made = (await clients.call("POST", "/v1/responses", json=body)).json()
        assert made["store"] is False
        for name, value in (("store", True), ("background", True), ("previous_response_id", "r")):
            refused = await clients.call("POST", "/v1/responses", json=body | {name: value})
            assert refused.status_code == 400
            assert refused.json()["error"]["message"].startswith(f"{name} needs --store-file")
        for method, path in (("POST", "/v1/conversations"), ("GET", "/v1/batches"), ("GET", "/v1/files"),
                             ("GET", "/v1/messages/batches")):  # fmt: skip
            refused = await clients.call(method, path, json={})
            assert refused.status_code == 400
            assert "without --store-file" in refused.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("engines", ["1", "2"])
async def test_an_api_server_that_dies_takes_its_own_requests_along_and_comes_back(engines):
    """Those of the other go on; the engines forget the rest; counts of both stay."""
    with served("--data-parallel-size", engines, "--num-threads", "2") as server:
        clients = Clients(server)
        tasks = await begin(clients, 12)
        await clients.call("POST", "/pause", params={"mode": "keep"})  # nobody ends meanwhile
        first, second = api_servers(server)
        first.send_signal(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            while len(api_servers(server)) < 2 or await num_open(clients) != running_of(tasks):  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # nobody is notified
        assert second in api_servers(server)
        # With all on one side it could not fail: one case in 2^11.
        assert 0 < running_of(tasks) < 12
        going = [task for task in tasks if not task.done()]
        for task in set(tasks) - set(going):
            assert isinstance(task.exception(), httpx.HTTPError)
        assert {one["is_paused"] for one in await clients.many("GET", "/is_paused")} == {True}
        await clients.call("POST", "/resume")
        await clients.call("POST", "/pause", params={"mode": "abort"})
        assert await asyncio.gather(*going) == ["data: [DONE]"] * len(going)
        assert await num_open(clients) == 0


def running_of(tasks: list[asyncio.Task]) -> int:
    """How many have not ended."""
    return sum(not task.done() for task in tasks)


@pytest.mark.slow
async def test_a_drain_lets_the_requests_of_all_processes_finish():
    """SIGTERM to the first process: nothing is cut that has time to end, and none is left behind."""
    with served("--shutdown-timeout", str(PATIENCE_S)) as server:
        clients = Clients(server)
        body = ENDLESS | {"max_tokens": 400}
        events = [asyncio.Event() for _ in range(8)]
        tasks = [asyncio.create_task(clients.stream(event, body)) for event in events]
        await asyncio.gather(*(event.wait() for event in events))
        family = [*api_servers(server), *server.front.children()]
        server.send(signal.SIGTERM)
        assert await asyncio.gather(*tasks) == ["data: [DONE]"] * 8
        status, _ = await asyncio.to_thread(server.wait)
        assert status == 0
        await until(lambda: not any(process.is_running() for process in family))


@pytest.mark.slow
async def test_an_engine_that_dies_ends_every_request_once_and_the_server():
    """One engine alone: as with one process, the server ends, and says why."""
    with served() as server:
        clients = Clients(server)
        tasks = await begin(clients, 6)
        (engine,) = set(server.front.children()) - set(api_servers(server))
        engine.send_signal(signal.SIGKILL)
        for last in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(last, httpx.HTTPError) or "engine" in last or "DONE" in last
        status, err = await asyncio.to_thread(server.wait)
        assert status == 1
        assert "the engine process ended" in err


@pytest.mark.slow
async def test_a_first_process_that_is_killed_leaves_no_other():
    """Neither API servers nor engines."""
    with served() as server:
        family = server.front.children()
        assert len(family) == 3
        server.send(signal.SIGKILL)
        await until(lambda: not any(one.is_running() for one in family))
