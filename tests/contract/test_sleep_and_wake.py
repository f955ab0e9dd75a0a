"""What every `EngineClient` that can sleep promises."""

import asyncio

import pytest
import pytest_asyncio

from tests.busy import until
from tests.contract.engines import ENGINES, kinds, shared
from tests.contract.test_engine_client import GREEDY, collect
from weft.core.errors import BadRequest, FailedPrecondition
from weft.core.values.types import FinishReason

KINDS = kinds("local", "process", "data_parallel", "nodes", "api_server", "fake")
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines():
    """For all of these tests but the one that ends them."""
    async with shared() as lent:
        yield lent


@pytest_asyncio.fixture(loop_scope="module", params=KINDS)
async def controlled(request, engines):
    """The clients that can be put to sleep; the wire has no call for it."""
    async with engines(request.param) as client:
        yield client


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_sleep_and_wake_change_no_answer(controlled, level):
    """What was frozen goes on as if nothing had been; what came meanwhile waits, and is answered."""
    expected = (await collect(controlled, GREEDY))[-1].outputs[0].token_ids
    frozen = asyncio.create_task(collect(controlled, GREEDY, "frozen"))
    await asyncio.sleep(0)
    await controlled.sleep(level, mode="keep")
    assert await controlled.is_sleeping()
    waiting = asyncio.create_task(collect(controlled, GREEDY, "waiting"))
    await asyncio.wait({waiting}, timeout=0.05)
    assert not waiting.done()
    assert await controlled.wake_up() is True
    assert not await controlled.is_sleeping()
    assert (await frozen)[-1].outputs[0].token_ids == expected
    assert (await waiting)[-1].outputs[0].token_ids == expected


@pytest.mark.parametrize("order", [["weights", "kv_cache"], ["kv_cache", "weights"]])
async def test_scheduling_resumes_when_all_memory_is_back(controlled, order):
    """Not before, whatever is called for; and then by itself."""
    expected = (await collect(controlled, GREEDY))[-1].outputs[0].token_ids
    await controlled.sleep()
    assert await controlled.wake_up(order[:1]) is False
    assert await controlled.wake_up(["scheduling"]) is False
    with pytest.raises(FailedPrecondition):
        await controlled.resume_generation()
    assert await controlled.is_sleeping()
    assert await controlled.wake_up(order[1:]) is True
    assert (await collect(controlled, GREEDY))[-1].outputs[0].token_ids == expected


async def test_sleep_of_level_0_is_woken_by_scheduling(controlled):
    """No memory is absent, so nothing else has to come back."""
    await controlled.sleep(0)
    assert await controlled.wake_up(["weights"]) is False
    assert await controlled.wake_up(["scheduling"]) is True
    assert (await collect(controlled, GREEDY))[-1].is_finished


async def test_what_sleep_and_wake_do_not_know_is_refused_by_name(controlled):
    """And nothing has changed."""
    with pytest.raises(BadRequest, match="level"):
        await controlled.sleep(3)
    with pytest.raises(ValueError, match="often"):
        await controlled.sleep(1, "often")
    with pytest.raises(BadRequest, match="tags"):
        await controlled.wake_up(["dreams"])
    assert not await controlled.is_sleeping()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sleeping_engine_ends_requests_and_shuts_down(kind):
    """An abort works, and the end does not wait for a wake."""
    async with ENGINES[kind]() as controlled:
        await controlled.sleep()
        task = asyncio.create_task(collect(controlled, GREEDY, "queued"))
        await until(lambda: controlled.num_active_requests == 1)
        await controlled.abort("queued")
        assert (await task)[-1].outputs[0].finish_reason is FinishReason.ABORT
        assert not controlled.is_stopped
        controlled.shutdown()
        await controlled.wait_closed()
        assert (controlled.is_stopped, controlled.is_running) == (True, False)
