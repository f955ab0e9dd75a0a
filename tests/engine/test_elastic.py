"""weft.engine.clients.engine_group: more engines, and fewer, while they serve."""

import asyncio
import itertools

import msgspec
import psutil
import pytest

from tests.busy import PATIENCE_S, until
from tests.contract.engines import data_parallel, local
from tests.engine.test_data_parallel import by_hand, last, leave, refused, sent
from tests.engine.test_front import HandClient
from tests.engine.test_lora import adapter
from weft.core.config.elastic import ElasticConfig
from weft.core.config.engine import LoraConfig
from weft.core.errors import (
    BadRequest,
    DeadlineExceeded,
    FailedPrecondition,
    Unavailable,
    Unsupported,
)
from weft.core.observe.metrics import Metrics
from weft.core.values.types import (
    LoRARequest,
    OutputKind,
    RequestOptions,
    SamplingParams,
    StreamingInput,
)
from weft.engine.ipc.messages import Add, AddLora, Reply, UseShare
from weft.engine.start.cpu_shares import cpus_of


async def elastic_by_hand(size=2, num_threads=2, engine_bytes=0):
    """A client whose engines the test plays by hand, and how many there are may change."""
    group, engines = await by_hand(size)
    config = msgspec.structs.replace(
        group.vllm_config,
        elastic_config=ElasticConfig(num_threads=num_threads, engine_bytes=engine_bytes),
    )
    group._group.use(config)
    return group, engines


async def pieces_at(group, engines, number):
    """A prompt in pieces at an engine of the group: it cannot move. Returns how to end it."""
    before = len(engines[number].engine_ids)
    ended = asyncio.Event()

    async def pieces():
        yield StreamingInput({"prompt_token_ids": [65, 66]})
        await ended.wait()

    options = RequestOptions(request_id="pieces")
    params = SamplingParams(max_tokens=50, output_kind=OutputKind.DELTA)
    stream = group.run_pieces(pieces(), params, options)
    for rank in group._group.ranks:
        rank.is_drained = rank.number != number
    task = asyncio.create_task(anext(stream))
    await until(lambda: len(engines[number].engine_ids) > before)
    for rank in group._group.ranks:
        rank.is_drained = False
    return number, stream, task


async def test_an_engine_that_is_to_leave_gives_its_requests_up_at_once():
    """Those that stay continue them, and one that stays has all threads then."""
    group, engines = await elastic_by_hand()
    first = await sent(group, engines, data_parallel_rank=1)
    scaling = asyncio.create_task(group.scale_elastic_ep(1))
    await until(lambda: engines[0].engine_ids)
    [rest] = [command.request for command in engines[0].sent if isinstance(command, Add)]
    assert rest.resumption.num_losses == 0
    await until(lambda: any(isinstance(command, UseShare) for command in engines[0].sent))
    [share] = [command for command in engines[0].sent if isinstance(command, UseShare)]
    assert share.num_threads == 2
    assert engines[1]._is_closing
    assert group.info.data_parallel_size == 1
    with pytest.raises(BadRequest, match="data_parallel_rank"):
        await refused(group, data_parallel_rank=1)
    scaling.cancel()
    await leave(first)


async def test_requests_that_cannot_move_are_finished_first():
    """Their engine gets no more requests."""
    group, engines = await elastic_by_hand()
    stuck = await pieces_at(group, engines, 1)
    scaling = asyncio.create_task(group.scale_elastic_ep(1))
    await until(lambda: group._group.ranks[1].is_draining)
    assert await group.is_scaling_elastic_ep()
    later = [await sent(group, engines) for _ in range(2)]
    assert [number for number, *_ in later] == [0, 0]
    with pytest.raises(Unavailable, match="engine 1"):
        await refused(group, data_parallel_rank=1)
    with pytest.raises(Unavailable, match="already"):
        await group.scale_elastic_ep(2)
    assert not engines[1]._is_closing
    await leave(stuck)
    await until(lambda: engines[1]._is_closing)
    scaling.cancel()
    await leave(*later)


async def test_what_takes_too_long_is_not_dropped():
    """All engines stay, and take requests as before."""
    group, engines = await elastic_by_hand()
    slow = await pieces_at(group, engines, 1)
    with pytest.raises(DeadlineExceeded, match="had 1 open requests"):
        await group.scale_elastic_ep(1, drain_timeout=0.01)
    assert not await group.is_scaling_elastic_ep()
    again = await sent(group, engines, data_parallel_rank=1)
    assert again[0] == 1
    await leave(slow, again)


async def test_requests_that_are_paused_and_cannot_move_are_not_waited_for():
    """They could not end."""
    group, engines = await elastic_by_hand()
    open_one = await pieces_at(group, engines, 1)
    group.controls._is_paused = True
    with pytest.raises(FailedPrecondition, match="resume_generation"):
        await group.scale_elastic_ep(1)
    assert not group._group.ranks[1].is_draining
    await leave(open_one)


@pytest.mark.parametrize(
    ("size", "engine_bytes", "error", "message"),
    [
        (0, 0, BadRequest, "new_data_parallel_size must be at least 1"),
        (65, 0, BadRequest, "at most 64"),
        (3, 0, FailedPrecondition, "3 engines need at least 3 threads, but --num-threads is 2"),
        (2, 1 << 60, FailedPrecondition, "2 engines need .* are free"),
    ],
)
async def test_a_size_that_cannot_be_is_refused_with_numbers(size, engine_bytes, error, message):
    """Nothing is started for it."""
    group, _ = await elastic_by_hand(1, engine_bytes=engine_bytes)
    with pytest.raises(error, match=message):
        await group.scale_elastic_ep(size)
    assert group.info.data_parallel_size == 1


async def test_the_number_is_fixed_unless_the_start_said_otherwise():
    """Several engines or one."""
    group, _ = await by_hand()
    for client in (group, HandClient()):
        with pytest.raises(Unsupported, match="--enable-elastic-ep"):
            await client.scale_elastic_ep(1)


async def has_loaded(engine, number):
    """The engine is sent so many adapters by now, and has the last of them."""
    await until(lambda: len(loads_of(engine)) == number)
    engine._on_event(Reply(loads_of(engine)[-1].call_id))


def loads_of(engine):
    """What it was told to load."""
    return [command for command in engine.sent if isinstance(command, AddLora)]


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_an_adapter_that_changes_while_an_engine_loads_the_next_is_not_there_as_it_was(
    is_replaced,
):
    """Of several: the newcomer had it already. Who names the new one has it loaded."""
    options = {"lora_config": LoraConfig(max_loras=4, max_lora_rank=8)}
    group, [engine] = await by_hand(1, **options)
    first = LoRARequest(lora_name="a", lora_int_id=1, lora_path="/a")
    second = LoRARequest(lora_name="b", lora_int_id=2, lora_path="/b")
    newer = LoRARequest(lora_name="a", lora_int_id=1, lora_path="/c", load_inplace=True)
    for number, lora in enumerate((first, second), start=1):
        await asyncio.gather(group.add_lora(lora), has_loaded(engine, number))
    newcomer = HandClient(**options)
    catching_up = asyncio.create_task(group.controls.catch_up(newcomer))
    await has_loaded(newcomer, 1)
    await until(lambda: len(loads_of(newcomer)) == 2)
    if is_replaced:
        await asyncio.gather(group.add_lora(newer), has_loaded(engine, 3))
    else:
        assert await group.remove_lora(1)
    await has_loaded(newcomer, 2)
    await catching_up
    assert newcomer.lora_requests == {"b": second}


@pytest.mark.slow
async def test_one_engine_becomes_three_and_one_again_under_load(tmp_path):
    """No request is lost, each has the very answer of an engine alone; adapters and pauses go along."""
    async with local() as alone:
        expected = [await last(alone, number) for number in range(8)]
    metrics = Metrics()
    options = {"enable_elastic_ep": True, "num_threads": 3, "enable_lora": True}
    async with data_parallel(data_parallel_size=1, metrics=metrics, **options) as group:
        numbers, answers = itertools.count(), []
        is_over = False

        async def ask():
            while not is_over:
                number = next(numbers) % 8
                answers.append((number, await last(group, number)))

        assert await group.add_lora(adapter(tmp_path, "a"))
        workers = [asyncio.create_task(ask()) for _ in range(6)]
        await group.scale_elastic_ep(3)
        children = [psutil.Process(rank.client._child.process.pid) for rank in group._group.ranks]
        assert [child.cpu_affinity() for child in children] == [
            cpus_of(group.vllm_config.of_rank(number)) for number in range(3)
        ]
        assert [list(rank.client.lora_requests) for rank in group._group.ranks] == [["a"]] * 3
        await until(lambda: all(rank.num_open for rank in group._group.ranks))
        assert engines_shown(metrics) == {"0", "1", "2"}
        assert [load.data_parallel_rank for load in await group.get_loads()] == [0, 1, 2]
        await group.scale_elastic_ep(1, drain_timeout=PATIENCE_S)
        is_over = True
        await asyncio.gather(*workers)
        assert answers
        assert [answer for _, answer in answers] == [expected[number] for number, _ in answers]
        assert engines_shown(metrics) == {"0"}
        assert [child.is_running() for child in children] == [True, False, False]
        await group.pause_generation()
        await group.scale_elastic_ep(2)
        assert await group._group.ranks[1].client.is_paused()
        await group.resume_generation()
        assert await last(group, 0, data_parallel_rank=1) == expected[0]


def engines_shown(metrics):
    """Labels of the engines of which there are numbers."""
    [family] = [f for f in metrics.collect() if f.name == "vllm:num_requests_running"]
    return {sample.labels["engine"] for sample in family.samples}
