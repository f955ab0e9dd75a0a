"""Callers who leave: what was begun for them stops, every answer of it, whatever way they came.

The engine takes as many steps as the test allows, so an answer cannot end by itself, and whether
work goes on is read from the engine and not from a clock.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import grpc
import httpx2
import pytest

from tests.doubles.engine_thread import PATIENCE_S, GatedRunner
from tests.doubles.stepping import make_config
from tests.rpc.calls import TOKENIZER_FILES, request
from tests.web.serving import http_serving
from weft.core.client import EngineClient
from weft.core.values.types import OutputKind, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub
from weft.rpc.client import RpcClient
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer
from weft.text.templates.chat import ChatTemplate
from weft.text.tokenizer import Tokenizer
from weft.web.served import Served

VOCAB = 300
MANY = {"n": 3, "max_tokens": 50, "temperature": 1.0, "ignore_eos": True}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], **MANY}
TEXTS = {"model": "fake", "prompt": ["one", "two"], **MANY}


@dataclass(frozen=True, slots=True)
class Held:
    """An engine that takes no step unasked."""

    client: LocalClient
    runner: GatedRunner
    tokenizer: Tokenizer

    async def begun(self, num_requests: int, num_answers: int) -> None:
        """Wait until so much is open, and step until a step was for all of it."""
        await self._until(lambda: self.client.num_active_requests == num_requests)
        steps = self.runner.num_logit_rows
        while steps[-1:] != [num_answers]:
            num_steps = len(steps) + 1
            self.runner.allow(1)
            await self._until(lambda: len(steps) == num_steps)  # noqa: B023 - awaited at once

    async def is_idle(self) -> bool:
        """Whether the engine has nothing in hand, once every caller is gone."""
        await self._until(lambda: self.client.num_active_requests == 0)
        self.runner.allow(1)  # the one under way, planned while they were there
        async with asyncio.timeout(PATIENCE_S):
            # Answered behind the aborts, in the order of the mailbox; refused while anything runs.
            return await self.client.reset_prefix_cache()

    async def _until(self, is_so) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():  # noqa: ASYNC110 - the other side has no event to give
                await asyncio.sleep(0.001)


async def read_all(client: EngineClient, params: SamplingParams) -> None:
    """Follow a request to its end."""
    async with aclosing(client.generate([65, 66], params, "r")) as outputs:
        async for _ in outputs:
            pass


async def leave(task: asyncio.Task) -> None:
    """Be gone, in the middle of it."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
async def held() -> AsyncIterator[Held]:
    """An engine without steps."""
    runner = GatedRunner(VOCAB)
    tokenizer = Tokenizer.from_files(tokenizer_files(VOCAB, "<|endoftext|>"))
    config = make_config(vocab_size=VOCAB)
    client = await LocalClient.start_with(runner, tokenizer, config)
    yield Held(client, runner, tokenizer)
    runner.allow(1000)
    client.shutdown()
    await client.wait_closed()


@pytest.mark.parametrize("kind", [OutputKind.DELTA, OutputKind.FINAL_ONLY])
async def test_a_generator_that_is_closed_ends_every_answer(held: Held, kind):
    """From Python: by leaving the loop over it, or by a task that is cancelled."""
    params = SamplingParams(**MANY, output_kind=kind)
    reading = asyncio.create_task(read_all(held.client, params))
    await held.begun(1, 3)
    await leave(reading)
    assert await held.is_idle()


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_cancelled_call_ends_every_answer(held: Held, is_streamed: bool):
    """Over gRPC."""
    server = RpcServer(held.client, TOKENIZER_FILES, RpcOptions(port=0))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}") as channel:
            call = VllmEngineStub(channel).Generate(request(stream=is_streamed, **MANY))
            await call.initial_metadata()
            await held.begun(1, 3)
            call.cancel()
            assert await held.is_idle()
    finally:
        await server.stop()


async def test_a_generator_over_the_wire_ends_every_answer(held: Held):
    """From Python, with the engine behind a server."""
    server = RpcServer(held.client, tokenizer_files(VOCAB, "<|endoftext|>"), RpcOptions(port=0))
    client = await RpcClient.connect(f"127.0.0.1:{await server.start()}")
    try:
        reading = asyncio.create_task(read_all(client, SamplingParams(**MANY)))
        await held.begun(1, 3)
        await leave(reading)
        assert await held.is_idle()
    finally:
        await client.close()
        await server.stop()


@asynccontextmanager
async def web(held: Held) -> AsyncIterator[httpx2.AsyncClient]:
    """The HTTP APIs before that engine."""
    template = ChatTemplate("{{ messages[0].content }}", {})
    served = Served(
        client=held.client, tokenizer=held.tokenizer, chat_template=template, started_at=1
    )
    try:
        async with (
            http_serving(served) as url,
            httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S) as http,
        ):
            yield http
    finally:
        template.close()


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize(
    ("path", "body", "num_requests", "num_answers"),
    [("/v1/chat/completions", CHAT, 1, 3), ("/v1/completions", TEXTS, 2, 6)],
    ids=["chat", "texts"],
)
async def test_a_closed_connection_ends_every_answer(
    held: Held, path: str, body: dict, num_requests: int, num_answers: int, is_streamed: bool
):
    """Over HTTP: of every prompt, where there are several."""
    async with web(held) as http:
        asking = asyncio.create_task(http.post(path, json={**body, "stream": is_streamed}))
        await held.begun(num_requests, num_answers)
        await leave(asking)
        assert await held.is_idle()
