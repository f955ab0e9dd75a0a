"""An `AsyncLLM` of which only little is there, and a client of it; no vLLM is needed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

from weft.core.config.engine_options import EngineOptions
from weft.engine.start.configure import resolve
from weft.model.open import open_model
from weft.text.tokenizer import Tokenizer
from weft.vllm.client import VllmClient
from weft.vllm.load import LoadMeter


class HangingLlm:
    """Answers nothing, until `answer` is set. It can be made larger, if it is elastic."""

    def __init__(self, *, is_elastic: bool = False) -> None:
        self.vllm_config = SimpleNamespace(
            structured_outputs_config=SimpleNamespace(reasoning_parser=""),
            profiler_config=SimpleNamespace(profiler=None),
            weight_transfer_config=None,
            kv_transfer_config=None,
            parallel_config=SimpleNamespace(enable_elastic_ep=is_elastic),
        )
        self.answer = asyncio.Event()
        self.errored = self.is_shut_down = False
        self.output_handler = asyncio.get_running_loop().create_future()
        self.logger_manager = SimpleNamespace(
            stat_loggers=[SimpleNamespace(is_ours=True), SimpleNamespace()]
        )
        self.scaled: list[tuple[int, int]] = []

    def _run_output_handler(self) -> None:
        """It is there already."""

    async def is_paused(self) -> bool:
        await self.answer.wait()
        return False

    async def abort(self, request_ids) -> None:
        raise RuntimeError(f"no abort of {request_ids}")

    async def scale_elastic_ep(self, new_data_parallel_size: int, drain_timeout: int) -> None:
        """As vLLM's: for more ranks it makes new loggers, of its own alone; it waits by its own clock."""
        self.scaled.append((new_data_parallel_size, drain_timeout))
        await self.answer.wait()
        if new_data_parallel_size > 4:
            raise TimeoutError("Timeout reached")
        if new_data_parallel_size > 1:
            self.logger_manager = SimpleNamespace(stat_loggers=[SimpleNamespace()])

    def get_num_queued_tokens(self) -> int:
        return 0

    def shutdown(self, timeout: float) -> None:
        self.is_shut_down = True
        self.output_handler.get_loop().call_soon_threadsafe(self.output_handler.cancel)


@asynccontextmanager
async def connected(
    *, is_elastic: bool = False
) -> AsyncIterator[tuple[VllmClient, HangingLlm, list[float]]]:
    """The client of one, with a clock that is set by hand."""
    now = [1000.0]
    found = open_model("embedded:tiny")
    llm = HangingLlm(is_elastic=is_elastic)
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
