"""Engines that are drained give their requests to others; engines are played by the test, or are processes."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.busy import PATIENCE_S, until
from tests.contract.engines import ROOM, api_server, data_parallel, head, local, node
from tests.doubles.secret_file import secret_file
from tests.engine.test_data_parallel import by_hand, leave, refused
from tests.engine.test_elastic import elastic_by_hand, pieces_at
from tests.engine.test_failover import DELTAS, Reader, asked, lose, whole
from tests.engine.test_front import HandClient
from tests.ports import free_port
from weft.core.config.ranks import LinkConfig
from weft.core.errors import BadRequest, FailedPrecondition, Unavailable, Unsupported
from weft.core.observe.metrics import Metrics
from weft.core.values.controls import Drained
from weft.core.values.types import FinishReason, OutputKind, SamplingParams
from weft.engine.clients import draining
from weft.engine.ipc.messages import Abort


async def test_a_drained_engine_gives_its_requests_to_another():
    """That one gets the tokens so far; the drained one is told to stop, and gets no more requests."""
    group, engines = await by_hand()
    reader = Reader(group, data_parallel_rank=0)
    [first] = await asked(engines[0])
    engines[0].say(first.engine_id, [70, 71])
    drained = await group.drain([0])
    assert drained == [Drained(data_parallel_rank=0, moved={1: 1}, recomputed=1)]
    [rest] = await asked(engines[1])
    assert rest.resumption.answers[0].token_ids == [70, 71]
    assert Abort([first.engine_id], is_silent=True) in engines[0].sent
    engines[0].say(first.engine_id, [99])  # a late output
    engines[1].say(rest.engine_id, [72], finish_reason=FinishReason.STOP)
    await reader.end()
    assert reader.token_ids == [70, 71, 72]
    with pytest.raises(Unavailable, match="engine 0 accepts no requests"):
        await refused(group, data_parallel_rank=0)


async def test_requests_go_to_an_engine_again_that_is_drained_no_longer():
    """An operator says so."""
    group, engines = await by_hand()
    await group.drain([0])
    await group.undrain([0])
    reader = Reader(group, data_parallel_rank=0)
    [request] = await asked(engines[0])
    engines[0].say(request.engine_id, [70], finish_reason=FinishReason.STOP)
    await reader.end()


async def test_several_engines_are_drained_together():
    """No request goes from one of them to the next."""
    group, engines = await by_hand(3)
    readers = [Reader(group, request_id=f"r{rank}", data_parallel_rank=rank) for rank in (0, 1)]
    for engine in engines[:2]:
        await asked(engine)
    drained = await group.drain([0, 1, 0])
    assert [one.moved for one in drained] == [{2: 1}, {2: 1}]
    for request in await asked(engines[2], 2):
        engines[2].say(request.engine_id, [70], finish_reason=FinishReason.STOP)
    await asyncio.gather(*(reader.end() for reader in readers))


async def test_a_drain_is_no_loss():
    """A request whose next engine ends is not blamed for two ends."""
    group, engines = await by_hand(3)
    reader = Reader(group, data_parallel_rank=0)
    await asked(engines[0])
    await group.drain([0])
    [second] = [engine for engine in engines[1:] if engine.engine_ids]
    lose(second)
    [third] = [engine for engine in engines[1:] if engine is not second]
    [rest] = await asked(third)
    assert (rest.resumption.number, rest.resumption.num_losses) == (2, 1)
    third.say(rest.engine_id, [70], finish_reason=FinishReason.STOP)
    await reader.end()


async def test_a_drain_waits_for_prompts_in_pieces_and_says_so():
    """They cannot move; past the time of the call they run on."""
    group, engines = await by_hand()
    stuck = await pieces_at(group, engines, 0)
    [first] = await group.drain([0], timeout=0.0)
    assert (first.waited, first.running) == (0, 1)
    waiting = asyncio.create_task(group.drain([0]))
    await until(lambda: group._group.draining._followed)
    await leave(stuck)
    assert await waiting == [Drained(data_parallel_rank=0, waited=1)]


async def test_a_caller_that_does_not_read_continues_when_it_reads(monkeypatch):
    """The drain does not wait for it, and its engine may end meanwhile."""
    monkeypatch.setattr(draining, "MOVE_S", 0.0)
    group, engines = await elastic_by_hand()
    stream = group.generate([65, 66], DELTAS, "r", data_parallel_rank=1)
    reading = asyncio.create_task(anext(stream))
    [request] = await asked(engines[1])
    engines[1].say(request.engine_id, [70])
    await reading
    [drained] = await group.drain([1])
    assert (drained.moved, drained.left) == ({}, 1)
    lose(engines[1])
    reading = asyncio.create_task(anext(stream))
    [rest] = await asked(engines[0])
    assert rest.resumption.num_losses == 0
    engines[0].say(rest.engine_id, [71], finish_reason=FinishReason.STOP)
    assert (await reading).outputs[0].token_ids == [71]
    await stream.aclose()


async def test_what_has_nowhere_to_go_stays():
    """The last engine is not drained."""
    group, engines = await by_hand()
    with pytest.raises(FailedPrecondition, match="no other engine takes requests"):
        await group.drain([0, 1])
    await group.drain([1])
    with pytest.raises(FailedPrecondition, match="data_parallel_ranks 0 cannot be drained"):
        await group.drain([0])
    reader = Reader(group)
    await asked(engines[0])
    reader.task.cancel()


@pytest.mark.parametrize(
    ("ranks", "message"), [([], "at least one"), ([2], "must be of 0, 1, got 2")]
)
async def test_ranks_that_do_not_exist_are_refused(ranks, message):
    """The error names those that do."""
    group, _ = await by_hand()
    for call in (group.drain, group.undrain):
        with pytest.raises(BadRequest, match=message):
            await call(ranks)


async def test_a_server_with_one_engine_has_no_drain():
    """The error says why."""
    client = HandClient()
    for call in (client.drain, client.undrain):
        with pytest.raises(Unsupported, match="the server has one engine"):
            await call([0])


async def test_an_engine_that_is_started_again_takes_requests():
    """The supervisor of the engines clears the mark."""
    async with data_parallel() as group:
        await group.drain([0])
        rank = group._group.ranks[0]
        rank.client._child.process.kill()
        await until(lambda: rank.is_live and not rank.is_drained)


# -- with processes -------------------------------------------------------------------------------


async def begun(client, numbers):
    """Tasks that read mixed requests; returned once an engine computes some."""
    tasks = [asyncio.create_task(whole(client, number)) for number in numbers]
    await until(lambda: client.num_active_requests == len(tasks))
    return tasks


async def check(tasks, expected):
    """All answers are those of an undisturbed run."""
    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.gather(*tasks)
    assert [n for n, answer in enumerate(found) if answer != expected[n]] == []


async def alone(numbers):
    """The answers of an undisturbed run."""
    async with local(**ROOM) as engine:
        return [await whole(engine, number) for number in numbers]


@pytest.mark.slow
async def test_mixed_requests_survive_drains():
    """Each answer equals the undisturbed one bit for bit, with each engine drained in turn, and one removed."""
    numbers = range(20)
    expected = await alone(numbers)
    async with data_parallel(enable_elastic_ep=True, num_threads=2, **ROOM) as group:
        tasks = await begun(group, numbers)
        for rank in (0, 1):
            await until(lambda rank=rank: group._group.ranks[rank].client._load.num_running)
            [drained] = await group.drain([rank])
            assert drained.recomputed == drained.moved[1 - rank] > 0
            await until(lambda rank=rank: not group._group.ranks[rank].client._load.num_running)
            await group.undrain([rank])
        await group.scale_elastic_ep(1)
        await check(tasks, expected)
        assert group.num_active_requests == 0


def num_fetched(metrics, rank):
    """The number of blocks that an engine has fetched."""
    [blocks] = [one for one in metrics.collect() if one.name == "vllm:nixl_num_descriptors"]
    sums = {s.labels["engine"]: s.value for s in blocks.samples if s.name.endswith("_sum")}
    return sums[str(rank)]


async def long_answer(client, number):
    """The tokens that follow a prompt which no other request shares."""
    prompt = [(31 * place + 7 * number) % 250 for place in range(400)]
    params = SamplingParams(max_tokens=300, temperature=0.0, ignore_eos=True)
    params = replace(params, output_kind=OutputKind.DELTA)
    stream = client.generate({"prompt_token_ids": prompt}, params, f"long{number}")
    return [token async for output in stream for token in output.outputs[0].token_ids]


SHARED = {
    "kv_connector": "ShmConnector",
    "kv_role": "kv_both",
    "kv_port": 0,
    "kv_load_failure_policy": "fail",
}


@pytest.mark.slow
async def test_blocks_go_with_drained_requests():
    """The next engine fetches them where a transfer is configured, also from an engine that is removed. A fetch that
    fails is no error of the request, whatever the policy for requests of a router.
    """
    numbers, metrics = range(4), Metrics()
    async with local(**ROOM) as engine:
        expected = [await long_answer(engine, number) for number in numbers]
    options = {"kv_transfer_config": SHARED, "enable_elastic_ep": True, "num_threads": 2, **ROOM}
    async with data_parallel(metrics=metrics, **options) as group:
        tasks = [asyncio.create_task(long_answer(group, number)) for number in numbers]
        await until(lambda: group._group.ranks[0].client._load.num_running)
        [drained] = await group.drain([0])
        await group.undrain([0])
        await group.scale_elastic_ep(1)
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*tasks) == expected
        assert drained.transferred + drained.recomputed == sum(drained.moved.values()) > 0
        assert not drained.transferred or num_fetched(metrics, rank=0)
        assert group.num_active_requests == 0


@pytest.mark.slow
async def test_requests_of_an_api_server_survive_a_drain():
    """It asks the supervisor, which hands the requests over; the answer counts them."""
    numbers = range(10)
    expected = await alone(numbers)
    async with api_server(data_parallel, **ROOM) as client:
        tasks = await begun(client, numbers)
        [drained] = await client.drain([0])
        assert drained.moved[1] > 0
        await check(tasks, expected)


@pytest.mark.slow
async def test_a_node_that_shuts_down_gives_its_requests_to_the_head(monkeypatch):
    """It does not wait until they have ended."""
    numbers = range(10)
    expected = await alone(numbers)
    link = LinkConfig("127.0.0.1", free_port(), secret_file())
    async with node(link, **ROOM) as leaving, head(link, **ROOM) as group:
        handovers, hand_over = [], group._group.draining._hand_over
        monkeypatch.setattr(
            group._group.draining,
            "_hand_over",
            lambda rank: handovers.append(hand_over(rank)) or handovers[-1],
        )
        tasks = await begun(group, numbers)
        await until(lambda: group._group.ranks[1].client._load.num_running)
        async with asyncio.timeout(PATIENCE_S):
            await leaving.leave(3600.0)
        [given_up] = handovers
        assert given_up.engine_ids
        await check(tasks, expected)
