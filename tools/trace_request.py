"""Count the functions and lines of ours that one warm request runs: `--check` holds both to the bounds below.

The engine is in this process, on a thread; the request draws eight tokens, and two of its kind went before it.
Functions and lines that did not run in every traced request ran beside them: a timer, a ping, a stroke of health. What
follows the last byte belongs to the request: the end of its exchange, and the engine's last report. Files are not
counted: a bound on them is met by joining modules.
Run it without arguments for the functions and lines of each file.
"""

import asyncio
import sys
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import httpx2
from prometheus_client import CollectorRegistry

from weft.compute.backends import load_model
from weft.core.config.engine_options import EngineOptions
from weft.engine.clients.local_client import LocalClient
from weft.engine.start.configure import resolve
from weft.model.open import open_model
from weft.pb import vllm_engine_pb2 as pb
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer
from weft.text.templates.chat import ChatTemplate
from weft.text.tokenizer import Tokenizer
from weft.web.admin.probes import probe_endpoints
from weft.web.http.options import HttpOptions
from weft.web.http.server import HttpServer
from weft.web.http.state import ServerState
from weft.web.routes import all_endpoints
from weft.web.served import Served

SOURCE = str(Path(__file__).resolve().parent.parent / "src" / "weft") + "/"
# Functions and lines that a request may run: one per cent more than the most of ten runs, which differ in the turns of
# events.
BOUNDS = {
    "HTTP chat, streamed": (404, 2385),
    "HTTP chat, whole": (398, 2330),
    "gRPC Generate, streamed": (253, 1479),
}
ONCE = ("validate_params", "validate_prompt", "resolve_params", "validate_cache_salt")
MEMORY = 1 << 30
NUM_TOKENS = 8
NUM_TRACED = 12
PATIENCE_S = 60.0  # the first request starts a process, which takes long on a busy machine
TAIL_S = 0.2  # after the last byte of an answer

Function = tuple[str, str]  # the file, and the qualified name in it
Lines = dict[Function, set[int]]


class Trace:
    """Collects the functions and lines of ours that run, on every thread, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.lines: Lines = defaultdict(set)
        self._num_calls: dict[str, int] = defaultdict(int)

    def enter(self, frame: FrameType, event: str, _argument: object) -> Any:
        """For `sys.settrace`: the calls of functions."""
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(SOURCE) or path.startswith(f"{SOURCE}pb/"):
            return None
        if self.is_on:
            self._num_calls[frame.f_code.co_name] += 1
            self._add(frame)
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        if self.is_on and event == "line":
            self._add(frame)
        return self._step

    def _add(self, frame: FrameType) -> None:
        name = frame.f_code.co_filename.removeprefix(SOURCE)
        self.lines[name, frame.f_code.co_qualname].add(frame.f_lineno)

    @contextmanager
    def on(self) -> Iterator[None]:
        """While this lasts functions and lines are collected, from nothing."""
        self.lines = defaultdict(set)
        self._num_calls.clear()
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False

    def times(self, function: str) -> int:
        """How often a function of that name was called."""
        return self._num_calls[function]


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


async def chat(address: str, *, is_streamed: bool = True) -> None:
    """One answer over HTTP, streamed or whole."""
    body = {
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": NUM_TOKENS,
        "temperature": 0.7,
        "stream": is_streamed,
    }
    async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE_S) as client:
        response = await client.post("/v1/chat/completions", json=body)
        end = "data: [DONE]" if is_streamed else "}"
        assert response.text.rstrip().endswith(end), response.text


async def generate(address: str) -> None:
    """One streamed answer over gRPC."""
    params = pb.SamplingParams(temperature=0.7, max_tokens=NUM_TOKENS)
    request = pb.GenerateRequest(text="Hello!", sampling_params=params, stream=True)
    async with grpc.aio.insecure_channel(address) as channel:
        responses = [response async for response in VllmEngineStub(channel).Generate(request)]
    assert responses[-1].WhichOneof("response") == "complete", responses


async def traced(trace: Trace, send: Callable[[str], Awaitable[None]], address: str) -> Lines:
    """What every request runs: the first two fill what is made once, and are not looked at."""
    for _ in range(2):
        await send(address)
    requests: list[Lines] = []
    for _ in range(NUM_TRACED):
        await asyncio.sleep(TAIL_S)
        with trace.on():
            await send(address)
            await asyncio.sleep(TAIL_S)
        for check in ONCE:
            if trace.times(check) > 1:
                sys.exit(f"{check} ran {trace.times(check)} times for one request")
        requests.append(trace.lines)
    everywhere = set.intersection(*(set(lines) for lines in requests))
    return {
        function: set.intersection(*(lines[function] for lines in requests))
        for function in everywhere
    }


async def run(trace: Trace) -> dict[str, Lines]:
    """What each way in runs."""
    found: dict[str, Lines] = {}
    async with servers() as (http, rpc):
        ways: list[tuple[str, Callable[[str], Awaitable[None]], str]] = [
            ("HTTP chat, streamed", chat, http),
            ("HTTP chat, whole", partial(chat, is_streamed=False), http),
            ("gRPC Generate, streamed", generate, rpc),
        ]
        for name, send, address in ways:
            found[name] = await traced(trace, send, address)
    return found


def main(arguments: list[str]) -> int:
    """Print the counts; with `--check`, fail where they exceed their bounds."""
    trace = Trace()
    enter: Any = trace.enter
    threading.settrace(enter)
    sys.settrace(enter)
    found = asyncio.run(run(trace))
    sys.settrace(None)
    status = 0
    for way, lines in found.items():
        num_functions, num_lines = len(lines), sum(map(len, lines.values()))
        most_functions, most_lines = BOUNDS[way]
        print(
            f"{way}: {num_functions} functions (at most {most_functions}), "
            f"{num_lines} lines (at most {most_lines})"
        )
        if "--check" in arguments:
            status |= not 0 < num_functions <= most_functions or num_lines > most_lines
            continue
        for file, group in groupby(sorted(lines), key=itemgetter(0)):
            functions = list(group)
            print(f"  {file}: {len(functions)}, {sum(len(lines[one]) for one in functions)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
