"""A tokenizer takes its time to build; whoever asks the server meanwhile is answered."""

import asyncio
import time
from dataclasses import replace

import pytest

from tests.contract.engines import GIB, MODEL
from weft.core.config import EngineOptions
from weft.engine.configure import resolve
from weft.engine.front.local_client import LocalClient
from weft.engine.front.process_client import ProcessClient
from weft.model.open import open_model

SLOW_S = 0.6


class SlowFiles(dict):
    """Files that take long to read, as a large vocabulary does to build."""

    def __contains__(self, name):
        time.sleep(SLOW_S)
        return super().__contains__(name)


async def longest_silence_s(work):
    """The longest time in which nothing else had a turn while `work` was done."""
    longest = 0.0
    task = asyncio.ensure_future(work)
    while not task.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)
    return longest, await task


@pytest.mark.parametrize("client_class", [LocalClient, ProcessClient])
async def test_the_tokenizer_is_built_beside_the_event_loop(client_class):
    """Probes are answered while it is."""
    checkpoint = open_model(MODEL)
    options = EngineOptions(model=MODEL, max_model_len=64, num_gpu_blocks_override=16)
    config = resolve(options, checkpoint.card, GIB)
    slow = replace(checkpoint, tokenizer_files=SlowFiles(checkpoint.tokenizer_files))
    started = time.monotonic()
    silent_s, client = await longest_silence_s(client_class.start(slow, config))
    took_s = time.monotonic() - started
    client.shutdown()
    await client.wait_closed()
    assert took_s >= SLOW_S
    assert silent_s < SLOW_S
