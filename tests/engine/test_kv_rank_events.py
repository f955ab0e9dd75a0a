"""Cache events over ZeroMQ of one of several engines, whose subscriber lives through that engine's death."""

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
import zmq

from tests.busy import PATIENCE_S, until
from tests.contract.engines import data_parallel
from tests.engine.test_kv_publisher import LOOPBACK, ON, TOPIC, Subscriber
from tests.ports import free_port
from weft.core.client import EngineClient
from weft.core.values.kv_cache import AllBlocksCleared, BlockStored, KvEvent
from weft.core.values.types import SamplingParams


async def answer(group: EngineClient, start: int) -> int:
    """One prompt of its own at engine 0; how many of its tokens were cached there."""
    prompt = {"prompt_token_ids": [(start + 7 * place) % 400 for place in range(70)]}
    params = SamplingParams(max_tokens=2)
    outputs = [
        output
        async for output in group.generate(prompt, params, f"r-{start}", data_parallel_rank=0)
    ]
    return outputs[-1].num_cached_tokens or 0


@pytest.mark.slow
async def test_a_subscriber_that_lives_through_an_engines_death_holds_what_the_pool_has():
    """Neither what the engine took along nor, of what the next one has, less than it has."""
    port = free_port(4)  # two engines, two ports each
    events = ON | {
        "endpoint": f"tcp://{LOOPBACK}:{port}",  # an address would be connected to
        "replay_endpoint": f"tcp://127.0.0.1:{port + 2}",
        "topic": TOPIC,
    }
    async with data_parallel(kv_events_config=events) as group:
        place = type(
            "Place",
            (),
            {"live": f"tcp://127.0.0.1:{port}", "replay": events["replay_endpoint"]},
        )
        starts = itertools.count()
        subscriber = Subscriber(place, zmq.DEALER)  # type: ignore[arg-type]  # it has what is read of one
        try:
            await until_it_holds(subscriber, group, starts)
            before = set(subscriber.held)
            assert before
            group._group.ranks[0].client._child.process.send_signal(signal.SIGKILL)
            await until(lambda: group.is_degraded)
            await until(lambda: not group.is_degraded)
            await until_it_holds(subscriber, group, starts)
            assert before.isdisjoint(subscriber.held)
            assert await answer(group, 0) == 0  # what the engine had is gone
        finally:
            subscriber.close()


async def own_events(client: Any) -> AsyncIterator[KvEvent]:
    """All that this engine has said since it started."""
    async with aclosing(client.subscribe_kv_events(0)) as batches:
        with suppress(TimeoutError):
            while True:
                for event in (await asyncio.wait_for(anext(batches), 0.5)).events:
                    yield event


async def until_it_holds(subscriber: Subscriber, group: Any, starts: Iterator[int]) -> None:
    """Answer prompts until the subscriber, who may have joined just now, holds what the engine does."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await answer(group, next(starts))
            held: set[int | bytes] = set()
            async for event in own_events(group._group.ranks[0].client):
                hashes = {int.from_bytes(one[-8:], "big") for one in hashes_of(event)}
                held = held | hashes if isinstance(event, BlockStored) else held - hashes
            while await subscriber.sub.poll(500):
                await subscriber.take()
            if subscriber.held == held:
                return


def hashes_of(event: KvEvent) -> list[bytes]:
    """Of the blocks it is about; here nobody clears a cache that goes on."""
    assert not isinstance(event, AllBlocksCleared)
    return event.block_hashes
