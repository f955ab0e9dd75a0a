"""Whether an engine that still lives answers too: with an `AsyncLLM` of which only that is there."""

import asyncio
from types import SimpleNamespace

import pytest

from weft.core.config import EngineOptions
from weft.core.controls import STALL_S
from weft.core.errors import EngineDead, Unavailable
from weft.core.types import RequestOptions, SamplingParams
from weft.engine.configure import resolve
from weft.model.open import open_model
from weft.text.tokenizer import Tokenizer
from weft.vllm.client import VllmClient
from weft.vllm.load import LoadMeter


class HangingLlm:
    """Answers nothing, until `answer` is set."""

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(
            structured_outputs_config=SimpleNamespace(reasoning_parser=""),
            profiler_config=SimpleNamespace(profiler=None),
            weight_transfer_config=None,
            kv_transfer_config=None,
        )
        self.answer = asyncio.Event()
        self.errored = self.is_shut_down = False
        self.output_handler = asyncio.get_running_loop().create_future()

    def _run_output_handler(self) -> None:
        """It is there already."""

    async def is_paused(self) -> bool:
        await self.answer.wait()
        return False

    async def abort(self, request_ids) -> None:
        raise RuntimeError(f"no abort of {request_ids}")

    def shutdown(self, timeout: float) -> None:
        self.is_shut_down = True
        self.output_handler.get_loop().call_soon_threadsafe(self.output_handler.cancel)


@pytest.fixture
async def hanging():
    """The client of one, with a clock that is set by hand."""
    now = [1000.0]
    found = open_model("embedded:tiny")
    llm = HangingLlm()
    client = VllmClient(
        llm,
        resolve(EngineOptions(), found.card, 1 << 30),
        Tokenizer.from_files(found.tokenizer_files),
        meters={0: LoadMeter(0, clock=lambda: now[0])},
        events=None,
        clock=lambda: now[0],
    )
    yield client, llm, now
    client.shutdown()
    await client.wait_closed()


async def test_an_engine_that_hangs_is_unhealthy(hanging):
    """Once it has not answered a ping for long; not because nobody asked it anything."""
    client, llm, now = hanging
    now[0] += 10 * STALL_S
    await client.check_health()  # an idle engine: this is the ping
    now[0] += STALL_S + 1
    with pytest.raises(Unavailable, match="has not answered for 31 s"):
        await client.check_health()
    llm.answer.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await client.check_health()


async def test_a_dead_engine_is_unhealthy_at_once(hanging):
    """And takes nothing."""
    client, llm, _ = hanging
    llm.errored = True
    with pytest.raises(EngineDead):
        await client.check_health()
    with pytest.raises(EngineDead), client.preparing(1):
        pass
    assert client.errored


async def test_an_engine_that_cannot_abort_is_shut_down_all_the_same(hanging):
    """Else its processes would stay, and who waits for the end would get the error of a request."""
    client, llm, _ = hanging
    request = await client.prepare("a", SamplingParams(), RequestOptions(request_id="r"))
    with client._following(request):  # vLLM's package is not there to run it
        client.shutdown()
        await client.wait_closed()
    assert llm.is_shut_down
