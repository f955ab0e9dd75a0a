"""Which files of ours one warm request runs through: `--check` holds the counts to the bounds below.

The engine is in this process, on a thread; the request has eight tokens, and two of its kind went before it.
What did not run in each of the requests that are traced ran beside them, and so did what runs without one: a timer, a
ping, a stroke of health.
Run it without arguments for the files and how many functions of each were called.
"""

import asyncio
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import httpx2
from prometheus_client import CollectorRegistry

from weft.compute.backends import load_model
from weft.core.engine_options import EngineOptions
from weft.engine.configure import resolve
from weft.engine.front.local_client import LocalClient
from weft.model.open import open_model
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer
from weft.text.chat import ChatTemplate
from weft.text.tokenizer import Tokenizer
from weft.web.admin.probes import probe_endpoints
from weft.web.http.options import HttpOptions
from weft.web.http.server import HttpServer
from weft.web.http.state import ServerState
from weft.web.routes import all_endpoints
from weft.web.served import Served

SOURCE = str(Path(__file__).resolve().parent.parent / "src" / "weft") + "/"
# Files that a request may run through.
BOUNDS = {"HTTP chat, streamed": 40, "gRPC Generate, streamed": 28}
ONCE = ("validate_params", "validate_prompt", "resolve_params", "validate_cache_salt")
MEMORY = 1 << 30
NUM_TOKENS = 8
NUM_TRACED = 12
IDLE_S = 3.0  # what runs by the clock comes every second

# How often each function of each file was called.
Calls = dict[str, dict[str, int]]


class Trace:
    """Collects the calls of our functions, on every thread, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def see(self, frame: FrameType, event: str, _argument: object) -> None:
        """For `sys.setprofile`."""
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            name = frame.f_code.co_filename.removeprefix(SOURCE)
            if name.startswith("pb/"):
                return  # the stub of the client that asks
            self.calls[name][frame.f_code.co_qualname] += 1

    @contextmanager
    def on(self) -> Iterator[None]:
        """While this lasts calls are collected, from nothing."""
        self.calls.clear()
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False

    def times(self, function: str) -> int:
        """How often a function of that name was called."""
        return sum(names.get(function, 0) for names in self.calls.values())


@asynccontextmanager
async def servers() -> AsyncIterator[tuple[str, str]]:
    """The addresses of an HTTP and a gRPC server over one small engine."""
    options = EngineOptions(model="embedded:tiny", max_model_len=512, num_gpu_blocks_override=64)
    checkpoint = open_model("embedded:tiny")
    config = resolve(options, checkpoint.card, MEMORY)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer_files)
    runner, _ = load_model(checkpoint, config)
    client = await LocalClient.start_with(runner, tokenizer, config)
    state = ServerState(CollectorRegistry())
    http = HttpServer(state, HttpOptions(port=0), probe_endpoints(state))
    rpc = RpcServer(client, checkpoint.tokenizer_files, RpcOptions(port=0))
    assert checkpoint.chat_template is not None
    with ChatTemplate(checkpoint.chat_template, tokenizer.special_tokens) as template:
        served = Served(
            client=client,
            tokenizer=tokenizer,
            chat_template=template,
            started_at=int(time.time()),
        )
        http_port, rpc_port = await http.start(), await rpc.start()
        http.open(served, all_endpoints(state))
        try:
            yield f"http://127.0.0.1:{http_port}", f"127.0.0.1:{rpc_port}"
        finally:
            await http.stop()
            await rpc.stop()
            client.shutdown()
            await client.wait_closed()


async def chat(address: str) -> None:
    """One streamed answer over HTTP."""
    body = {
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    async with httpx2.AsyncClient(base_url=address) as client:
        response = await client.post("/v1/chat/completions", json=body)
        assert response.text.rstrip().endswith("data: [DONE]"), response.text


async def generate(address: str) -> None:
    """One streamed answer over gRPC."""
    params = pb.SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    request = pb.GenerateRequest(text="Hello!", sampling_params=params, stream=True)
    async with grpc.aio.insecure_channel(address) as channel:
        responses = [response async for response in VllmEngineStub(channel).Generate(request)]
    assert responses[-1].WhichOneof("response") == "complete", responses


async def traced(trace: Trace, send: Callable[[str], Awaitable[None]], address: str) -> Calls:
    """The calls that every request makes: the first two fill what is made once, and are not looked at."""
    for _ in range(2):
        await send(address)
    with trace.on():
        await asyncio.sleep(IDLE_S)
    idle = {file: set(names) for file, names in trace.calls.items()}
    requests: list[Calls] = []
    for _ in range(NUM_TRACED):
        with trace.on():
            await send(address)
        for check in ONCE:
            if trace.times(check) > 1:
                sys.exit(f"{check} ran {trace.times(check)} times for one request")
        requests.append(without(idle, trace.calls))
    first, *others = requests
    return {file: names for file, names in first.items() if all(file in calls for calls in others)}


def without(idle: dict[str, set[str]], calls: Calls) -> Calls:
    """What is left of the calls, and of the files, when those that nobody asked for are taken out."""
    left = {
        file: {name: times for name, times in names.items() if name not in idle.get(file, ())}
        for file, names in calls.items()
    }
    return {file: names for file, names in left.items() if names}


async def run(trace: Trace) -> dict[str, Calls]:
    """The calls of each way in."""
    found: dict[str, Calls] = {}
    async with servers() as (http, rpc):
        ways: list[tuple[str, Callable[[str], Awaitable[None]], str]] = [
            ("HTTP chat, streamed", chat, http),
            ("gRPC Generate, streamed", generate, rpc),
        ]
        for name, send, address in ways:
            found[name] = await traced(trace, send, address)
    return found


def main(arguments: list[str]) -> int:
    """Print the counts; with `--check`, fail where they exceed their bounds."""
    trace = Trace()
    see: Any = trace.see
    threading.setprofile(see)
    sys.setprofile(see)
    found = asyncio.run(run(trace))
    sys.setprofile(None)
    status = 0
    for name, calls in found.items():
        num_functions = sum(map(len, calls.values()))
        print(f"{name}: {len(calls)} files (at most {BOUNDS[name]}), {num_functions} functions")
        if "--check" in arguments:
            status |= len(calls) > BOUNDS[name]
            continue
        for file, names in sorted(calls.items()):
            print(f"  {file}: {len(names)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
