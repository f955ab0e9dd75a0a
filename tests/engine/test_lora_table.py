"""Which adapters are loaded: who gives way to whom, who waits, and what the engine is told."""

import asyncio
import random

import pytest

from tests.doubles.stepping import make_config
from weft.core.config.engine import LoraConfig
from weft.core.errors import BadRequest, EngineDead, FailedPrecondition, NotFound
from weft.core.values.types import LoRARequest
from weft.engine.front.lora_table import LoraTable
from weft.engine.ipc.messages import RemoveLora, Reply


def lora(name, number=None, *, path=None, **fields):
    """An adapter; its id is that of its letter."""
    return LoRARequest(
        lora_name=name,
        lora_int_id=number or ord(name[0]),
        lora_path=path or f"/{name}",
        **fields,
    )


class Engine:
    """Answers when it is told to; keeps the loads that it has."""

    def __init__(self, max_loras=2, *, answers_at_once=True):
        limits = LoraConfig(max_loras=max_loras, max_lora_rank=8)
        config = make_config()
        self.table = LoraTable(
            type(config)(
                model_config=config.model_config,
                cache_config=config.cache_config,
                scheduler_config=config.scheduler_config,
                lora_config=limits,
            ),
            self.ask,
            self.send,
        )
        self.loads = {}  # path by id
        self.num_loads = 0
        self.requested = []
        self.refusal = {}
        self.answers_at_once = answers_at_once

    def ask(self, lora_id, path):
        future = asyncio.get_running_loop().create_future()
        self.num_loads += 1
        self.requested.append((future, lora_id, path))
        if self.answers_at_once:
            self.answer()
        return future

    def answer(self):
        """Of the loads that were asked for, do the first."""
        future, lora_id, path = self.requested.pop(0)
        refusal = self.refusal.get(path)
        if refusal is None:
            assert lora_id not in self.loads, "an id was used twice"
            self.loads[lora_id] = path
            assert len(self.loads) <= self.table._limits.max_loras
        if not future.done():
            is_missing = refusal == "missing"
            future.set_result(Reply(0, refusal is None, refusal=refusal, is_missing=is_missing))

    def send(self, command):
        assert isinstance(command, RemoveLora)
        del self.loads[command.lora_id]

    @property
    def paths(self):
        """Of what is loaded."""
        return sorted(self.loads.values())

    async def hold(self, request, unless=None):
        """A request that runs with it."""
        return await self.table.hold(request, unless=unless or asyncio.Event())

    async def waiting(self, request, unless=None):
        """A request that has to wait."""
        task = asyncio.create_task(self.hold(request, unless))
        await turns()
        assert not task.done()
        return task


async def turns():
    """Let everything happen that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_least_recently_used_one_is_evicted():
    """And is loaded again, under another id, when it is asked for."""
    engine = Engine(max_loras=2)
    for name in "ab":
        await engine.table.add(lora(name))
    first = await engine.hold(lora("a"))
    engine.table.release(first)
    await engine.table.add(lora("c"))
    assert engine.paths == ["/a", "/c"]
    assert list(engine.table.requests) == ["a", "b", "c"]
    assert engine.table.loaded_ids == {ord("a"), ord("c")}
    await engine.hold(lora("b"))
    assert engine.paths == ["/b", "/c"]
    again = await engine.hold(lora("a"))
    assert again.lora_id != first.lora_id


async def test_an_adapter_in_use_is_never_evicted():
    """Who needs its room waits until a request with it has ended."""
    engine = Engine(max_loras=1)
    one, two = await engine.hold(lora("a")), await engine.hold(lora("a"))
    task = await engine.waiting(lora("b"))
    assert engine.table.usage() == (1, ["a"], ["b"])
    engine.table.release(one)
    await turns()
    assert not task.done()
    engine.table.release(two)
    assert engine.loads[(await task).lora_id] == "/b"
    assert engine.paths == ["/b"]
    assert engine.table.usage() == (1, ["b"], [])


async def test_those_who_wait_for_one_adapter_share_its_load():
    """It is read once."""
    engine = Engine(answers_at_once=False)
    tasks = [await engine.waiting(lora("a")) for _ in range(3)]
    engine.answer()
    loads = await asyncio.gather(*tasks)
    assert engine.num_loads == 1
    assert len({load.lora_id for load in loads}) == 1


async def test_a_request_that_ends_while_it_waits_leaves_nothing():
    """An abort ends the wait; what nobody waits for any more is not loaded."""
    engine = Engine(max_loras=1)
    held = await engine.hold(lora("a"))
    ended = asyncio.Event()
    task = await engine.waiting(lora("b"), ended)
    ended.set()
    assert await task is None
    cancelled = await engine.waiting(lora("c"))
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await turns()
    engine.table.release(held)
    await turns()
    assert engine.paths == ["/a"]
    assert list(engine.table.requests) == ["a"]
    assert engine.table.usage() == (1, [], [])


async def test_a_load_whose_caller_left_can_be_used_by_the_next():
    """The engine does it all the same, so it is kept."""
    engine = Engine(answers_at_once=False)
    task = await engine.waiting(lora("a"))
    task.cancel()
    await turns()
    engine.answer()
    await turns()
    await engine.hold(lora("a"))
    assert engine.num_loads == 1


async def test_pinned_adapters_stay():
    """Whoever else is asked for; when all are pinned, others are refused."""
    engine = Engine(max_loras=2)
    for name in "ab":
        await engine.table.add(lora(name))
    assert await engine.table.pin(ord("a"))
    assert not await engine.table.pin(99_999)
    await engine.table.add(lora("c"))
    assert engine.paths == ["/a", "/c"]
    assert await engine.table.pin(ord("c"))
    with pytest.raises(FailedPrecondition, match="pinned"):
        await engine.table.add(lora("d"))
    assert engine.table.remove(ord("a"))
    await engine.table.add(lora("d"))
    assert engine.paths == ["/c", "/d"]


async def test_a_removed_adapter_leaves_with_its_requests():
    """They go on to their end; its name is unknown at once."""
    engine = Engine()
    held = await engine.hold(lora("a"))
    assert engine.table.remove(ord("a"))
    assert not engine.table.remove(ord("a"))
    assert not engine.table.requests
    assert engine.paths == ["/a"]
    engine.table.release(held)
    assert engine.paths == []


async def test_loading_in_place_leaves_open_requests_what_they_have():
    """New ones get the new; the former goes with the last that runs with it."""
    engine = Engine()
    former = await engine.hold(lora("a"))
    await engine.table.add(lora("a", path="/a2", load_inplace=True))
    latter = await engine.hold(lora("a", path="/a2"))
    assert latter.lora_id != former.lora_id
    assert engine.paths == ["/a", "/a2"]
    engine.table.release(former)
    assert engine.paths == ["/a2"]
    assert not engine.table.requests["a"].load_inplace


async def test_a_load_in_place_that_fails_changes_nothing():
    """The adapter that was there goes on to answer."""
    engine = Engine()
    await engine.table.add(lora("a"))
    engine.refusal["/bad"] = "broken"
    with pytest.raises(BadRequest, match="broken"):
        await engine.table.add(lora("a", path="/bad", load_inplace=True))
    assert engine.table.requests["a"].lora_path == "/a"
    await engine.hold(lora("a"))
    assert engine.num_loads == 2


async def test_two_loads_in_place_come_one_after_the_other():
    """The later one stays, and nothing of the other two is left."""
    engine = Engine(max_loras=2, answers_at_once=False)
    first = asyncio.create_task(engine.table.add(lora("a", path="/1", load_inplace=True)))
    second = asyncio.create_task(engine.table.add(lora("a", path="/2", load_inplace=True)))
    await turns()
    engine.answer()
    await turns()
    engine.answer()
    await asyncio.gather(first, second)
    assert engine.paths == ["/2"]
    assert engine.table.requests["a"].lora_path == "/2"


async def test_an_adapter_that_was_removed_while_it_came_back_is_for_those_who_wait():
    """And for nobody after them."""
    engine = Engine(max_loras=1)
    await engine.table.add(lora("a"))
    await engine.table.add(lora("b"))
    engine.answers_at_once = False
    task = await engine.waiting(lora("a"))
    assert engine.table.remove(ord("a"))
    engine.answer()
    held = await task
    assert engine.paths == ["/a"]
    engine.table.release(held)
    assert engine.paths == []


async def test_what_cannot_be_loaded_fails_everyone_who_waits():
    """And leaves no name; the next may try again."""
    engine = Engine(answers_at_once=False)
    engine.refusal["/a"] = "missing"
    tasks = [await engine.waiting(lora("a")) for _ in range(2)]
    engine.answer()
    for task in tasks:
        with pytest.raises(NotFound, match="'a' was not loaded: missing"):
            await task
    assert not engine.table.requests
    engine.refusal.clear()
    engine.answers_at_once = True
    await engine.hold(lora("a"))


async def test_the_death_of_the_engine_ends_every_wait():
    """For room too."""
    engine = Engine(max_loras=1)
    held = await engine.hold(lora("a"))
    task = await engine.waiting(lora("b"))
    engine.table.fail(EngineDead())
    with pytest.raises(EngineDead):
        await task
    engine.table.release(held)


@pytest.mark.parametrize(
    ("request_", "parameter"),
    [
        (lora("fake"), "lora_name"),
        (lora("x,y"), "lora_name"),
        (lora(" x", 1), "lora_name"),
        (lora("ü", 1), "lora_name"),
        (lora("x" * 257), "lora_name"),
        (lora("x", -1), "lora_int_id"),
        (lora("x", True), "lora_int_id"),
        (lora("x", path="a\0b"), "lora_path"),
        (lora("x", path="/\ud800"), "lora_path"),
        (lora("x", base_model_name="other"), "base_model_name"),
        (lora("x", ord("a")), "lora_int_id"),
        (lora("a", path="/elsewhere"), "lora_name"),
        ("a", "lora_request"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(request_, parameter):
    """A name that metrics or metadata could not carry, another's id, another path for one name."""
    engine = Engine()
    await engine.table.add(lora("a"))
    with pytest.raises(BadRequest) as caught:
        await engine.hold(request_)
    assert caught.value.parameter == parameter


async def test_a_request_does_not_load_in_place():
    """It would end the adapter of others."""
    engine = Engine()
    with pytest.raises(BadRequest, match="load_inplace"):
        await engine.hold(lora("a", load_inplace=True))


class Crowd:
    """Requests that come, end, leave and find their adapter removed, at random."""

    def __init__(self, engine, seed):
        self.engine = engine
        self.rng = random.Random(seed)
        self.held = []
        self.waiting = []

    async def act(self):
        """One thing happens, and what follows from it at once."""
        name = self.rng.choice("abcdef")
        match self.rng.randrange(5):
            case 0 | 1:
                self.waiting.append(asyncio.create_task(self.engine.hold(lora(name))))
            case 2 if self.held:
                self.engine.table.release(self.held.pop(self.rng.randrange(len(self.held))))
            case 3 if self.waiting:
                self.waiting.pop(self.rng.randrange(len(self.waiting))).cancel()
            case 4:
                self.engine.table.remove(ord(name))
        await asyncio.sleep(0)
        done = [task for task in self.waiting if task.done()]
        self.waiting = [task for task in self.waiting if not task.done()]
        self.held += [task.result() for task in done]

    async def leave(self):
        """Everybody goes."""
        for task in self.waiting:
            task.cancel()
        await asyncio.gather(*self.waiting, return_exceptions=True)
        for load in self.held:
            self.engine.table.release(load)
        await turns()


@pytest.mark.parametrize("seed", range(5))
async def test_many_requests_in_any_order_leave_the_books_even(seed):
    """Random holds, releases, cancellations and removals: no load is lost, none is dropped in use."""
    engine = Engine(max_loras=3)
    crowd = Crowd(engine, seed)
    for _ in range(400):
        await crowd.act()
        assert {load.lora_id for load in crowd.held} <= set(engine.loads)
    await crowd.leave()
    assert len(engine.loads) == len(engine.table.loaded_ids)
    assert engine.table.usage() == (3, [], [])
