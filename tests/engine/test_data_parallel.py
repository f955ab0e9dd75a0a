"""weft.engine.clients.data_parallel: who gets a request, and what becomes of engines that die."""

import asyncio
import signal
import socket
from contextlib import aclosing, asynccontextmanager

import msgspec
import psutil
import pytest

from tests.busy import PATIENCE_S, until
from tests.contract.engines import ROOM, data_parallel, local, start, stop
from tests.engine.test_front import HandClient
from tests.engine.test_lora import adapter
from weft.core.config.engine import PoolerConfig
from weft.core.errors import BadRequest, ConfigError, EngineDead, FailedPrecondition, Overloaded
from weft.core.observe.metrics import Metrics
from weft.core.values.kv_cache import AllBlocksCleared, BlockStored
from weft.core.values.types import (
    OutputKind,
    PoolingKind,
    PoolingParams,
    RequestOptions,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.core.values.weight_transfer import WeightTransferConfig
from weft.engine.clients.data_parallel import DataParallelClient
from weft.engine.clients.engine_group import EngineGroup
from weft.engine.clients.engine_rank import ANSWER_TOKENS
from weft.engine.clients.local_client import LocalClient
from weft.engine.ipc.messages import FinishWeightUpdate, Reply, Wake
from weft.engine.ipc.weight_files import WeightFiles

PROMPT = {"prompt_token_ids": list(range(100, 200))}
ENDLESS = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


async def by_hand(size=2, **overrides):
    """A client whose engines the test plays by hand."""
    engines = [HandClient(**overrides) for _ in range(size)]
    config = msgspec.structs.replace(engines[0].vllm_config, data_parallel_size=size)
    group = DataParallelClient(config, engines[0].renderer)
    for rank, engine in zip(group._group.ranks, engines, strict=True):
        rank.client = engine
    return group, engines


async def sent(group, engines, num_tokens=10, start=0, params=SHORT, **options):
    """Which engine gets a prompt of so many tokens; the request stays open."""
    before = [len(engine.engine_ids) for engine in engines]
    prompt = {"prompt_token_ids": [start + place for place in range(num_tokens)]}
    request = await group.prepare(prompt, params, RequestOptions(request_id="r", **options))
    run = group.run_pooling if isinstance(params, PoolingParams) else group.run
    stream = run(request)
    task = asyncio.create_task(anext(stream))
    await until(lambda: [len(engine.engine_ids) for engine in engines] != before)
    [number] = [n for n, engine in enumerate(engines) if len(engine.engine_ids) != before[n]]
    return number, stream, task


async def refused(group, **options):
    """A request that no engine gets."""
    request = await group.prepare(PROMPT, SHORT, RequestOptions(request_id="r", **options))
    await anext(group.run(request))


async def leave(*begun):
    """Give up requests that `sent` began."""
    for _, stream, task in begun:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.aclose()


async def test_requests_take_turns():
    """The engine with least to do; of equals the one that was not chosen for longest."""
    group, engines = await by_hand()
    begun = [await sent(group, engines) for _ in range(4)]
    assert [number for number, *_ in begun] == [0, 1, 0, 1]
    await leave(*begun)
    assert [rank.backlog for rank in group._group.ranks] == [0, 0]


@pytest.mark.parametrize("kind", [OutputKind.DELTA, OutputKind.FINAL_ONLY])
async def test_a_long_prompt_weighs_as_much_as_it_has_tokens(kind):
    """Until it is computed, whenever its answer is read."""
    group, engines = await by_hand(max_model_len=1000)
    params = msgspec.structs.replace(SHORT, output_kind=kind)
    long = await sent(group, engines, 3 * ANSWER_TOKENS, params=params)
    others = [await sent(group, engines) for _ in range(3)]
    assert [number for number, *_ in (long, *others)] == [0, 1, 1, 1]
    engines[0].say(engines[0].engine_ids[0], [5])
    after = await sent(group, engines)
    assert after[0] == 0
    await leave(long, *others, after)


async def test_a_request_goes_where_its_prefix_is_unless_that_costs_more():
    """An engine may be busier by what the prefix saves, and no more."""
    group, engines = await by_hand(max_model_len=1000)
    block_size = group.info.block_size
    num_blocks = 3 * ANSWER_TOKENS // block_size
    token_ids = list(range(num_blocks * block_size))
    hashes = [bytes([number]) * 32 for number in range(num_blocks)]
    group._group.ranks[1].prefixes.take(
        [
            BlockStored(
                block_hashes=hashes,
                parent_block_hash=None,
                token_ids=token_ids,
                block_size=block_size,
            )
        ]
    )
    begun = [await sent(group, engines, len(token_ids) + 1) for _ in range(4)]
    assert [number for number, *_ in begun] == [1, 1, 1, 0]
    await leave(*begun)


async def silence():
    """The input of a session that has none yet."""
    await asyncio.Event().wait()
    yield


async def test_sessions_that_wait_for_input_are_spread():
    """What they said so far is with one engine, which is to answer the rest."""
    group, engines = await by_hand()
    streams = [group.generate(silence(), SHORT, f"s{number}") for number in range(4)]
    tasks = [asyncio.create_task(anext(stream)) for stream in streams]
    await until(lambda: group.num_active_requests == 4)
    assert [engine.num_active_requests for engine in engines] == [2, 2]
    await leave(*((0, stream, task) for stream, task in zip(streams, tasks, strict=True)))


async def test_a_pin_is_followed_and_one_out_of_range_refused():
    """Whatever the load is."""
    group, engines = await by_hand()
    begun = [await sent(group, engines, data_parallel_rank=1) for _ in range(3)]
    assert [number for number, *_ in begun] == [1, 1, 1]
    with pytest.raises(BadRequest, match="data_parallel_rank"):
        await refused(group, data_parallel_rank=2)
    await leave(*begun)


async def test_a_pin_is_followed_by_prompts_that_are_pooled():
    """The rank is of the request, whatever is to become of its prompt."""
    kinds = {"embed": PoolingKind.LAST}
    pooler = PoolerConfig(kinds=kinds, normalize=True, embedding_size=8)
    group, engines = await by_hand(pooler_config=pooler)
    params = PoolingParams(task="embed")
    begun = [await sent(group, engines, params=params, data_parallel_rank=1) for _ in range(2)]
    assert [number for number, *_ in begun] == [1, 1]
    await leave(*begun)


async def test_a_full_engine_is_passed_over():
    """The request is refused when all are full, or the one that it is pinned to."""
    group, engines = await by_hand(max_num_queued_reqs=1)
    with group.preparing(1), group.preparing(1), pytest.raises(Overloaded), group.preparing(1):
        pass
    first = await sent(group, engines, data_parallel_rank=0)
    with pytest.raises(Overloaded):
        await refused(group, data_parallel_rank=0)
    second = await sent(group, engines, start=50)
    assert second[0] == 1
    with pytest.raises(Overloaded), group.preparing(1):
        pass
    await leave(first, second)


async def test_dead_engines_are_passed_over_and_counted():
    """ "Degraded" while any lives; in error, by the request and the check of health, when none does."""
    group, engines = await by_hand()
    assert not group.is_degraded
    engines[0]._die(EngineDead("x"))
    begun = [await sent(group, engines) for _ in range(2)]
    assert [number for number, *_ in begun] == [1, 1]
    await leave(*begun)
    assert group.is_degraded
    await group.check_health()
    with pytest.raises(EngineDead, match="engine 0"):
        await refused(group, data_parallel_rank=0)
    engines[1]._die(EngineDead("x"))
    with pytest.raises(EngineDead):
        await group.check_health()
    with pytest.raises(EngineDead):
        await group.prepare(PROMPT, SHORT, RequestOptions(request_id="r"))
    assert group.is_running


class Lingering(HandClient):
    """An engine that ends when the test says so."""

    def __init__(self, **overrides):
        super().__init__(**overrides)
        self.may_end = asyncio.Event()

    async def wait_closed(self):
        await self.may_end.wait()
        self._die(EngineDead("the engine was shut down"))


async def test_who_is_shut_down_at_once_waits_for_its_engines_all_the_same():
    """Before the first of their events."""
    group, _ = await by_hand()
    engine = Lingering()
    group._group.ranks = group._group.ranks[:1]
    group._group.ranks[0].client = engine
    group._group.ranks[0].supervisor = asyncio.create_task(
        group._group._supervise(group._group.ranks[0])
    )
    group.shutdown()
    closed = asyncio.create_task(group.wait_closed())
    await asyncio.wait((closed,), timeout=0.05)
    assert not group.is_stopped
    engine.may_end.set()
    async with asyncio.timeout(PATIENCE_S):
        await closed


async def test_whatever_keeps_an_engine_from_its_start_it_is_tried_again(caplog, monkeypatch):
    """With the place of what nobody has foreseen in the log."""
    mistakes = [RuntimeError("can't start new thread")]

    async def restart(group, rank):
        if mistakes:
            raise mistakes.pop()
        rank.client = HandClient()

    monkeypatch.setattr(EngineGroup, "_restart", restart)
    group, [engine] = await by_hand(1)
    [rank] = group._group.ranks
    rank.supervisor = asyncio.create_task(group._group._supervise(rank))
    engine._die(EngineDead("x"))
    await until(lambda: not group.is_degraded)
    assert [r.exc_info is not None for r in caplog.records if "could not" in r.message] == [True]
    group.shutdown()
    rank.client._die(EngineDead("the engine was shut down"))
    await group.wait_closed()


@asynccontextmanager
async def on_threads(**options):
    """A client whose engines are real ones, on threads of ours."""
    engines = [await start(LocalClient, **options) for _ in range(2)]
    config = msgspec.structs.replace(engines[0].vllm_config, data_parallel_size=2)
    group = DataParallelClient(config, engines[0].renderer)
    for rank, engine in zip(group._group.ranks, engines, strict=True):
        rank.client = engine
    try:
        yield group, engines
    finally:
        await asyncio.gather(*(stop(engine) for engine in engines))


async def test_calls_go_to_all_engines():
    """With the results of each, and one that is not there is passed over."""
    async with on_threads() as (group, engines):
        assert await group.collective_rpc("check_health") == [None, None]
        await group.pause_generation()
        assert [await engine.is_paused() for engine in engines] == [True, True]
        assert await group.reset_prefix_cache()
        await stop(engines[0])
        await group.resume_generation()
        assert not await engines[1].is_paused()
        assert len(await group.collective_rpc("check_health")) == 1


async def left(client, call, kind):
    """A call whose caller leaves once the engine has it; the command."""
    task = asyncio.create_task(call)
    await until(lambda: any(isinstance(command, kind) for command in client.sent))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    [command] = [command for command in client.sent if isinstance(command, kind)]
    return command


async def test_who_leaves_while_engines_wake_leaves_no_other_state_behind():
    """An engine that starts later is brought to where the others are, and not to where they were."""
    group, engines = await by_hand(1)
    group.controls._is_paused, group.controls._sleep_level = True, 1
    engines[0].controls._is_paused = True
    wake = await left(engines[0], group.wake_up(), Wake)
    engines[0]._on_event(Reply(wake.call_id))
    await until(lambda: not group.controls._is_paused)
    assert group.controls._sleep_level == 0
    assert not await engines[0].is_paused()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["refused first", "refused last"])
async def test_of_two_pauses_one_refused_leaves_the_other_in_force(order):
    """Whichever is answered first, and however many engines there are."""
    group, (engine,) = await by_hand(1)
    tasks = []
    for mode in ("wait", "abort"):  # the first is refused
        tasks.append(asyncio.create_task(group.pause_generation(mode=mode)))
        await until(lambda: len(engine.sent) == len(tasks))
    answers = [Reply(engine.sent[0].call_id, False, refusal="no"), Reply(engine.sent[1].call_id)]
    for number in order:
        assert await engine.is_paused()
        engine._on_event(answers[number])
        await asyncio.wait({tasks[number]})
    assert isinstance(tasks[0].exception(), FailedPrecondition)
    assert await engine.is_paused()
    assert group.controls._is_paused


async def test_who_leaves_while_weights_are_replaced_leaves_one_kind_of_them():
    """All engines have them once one has, whoever waits for that."""
    group, engines = await by_hand()
    group.controls.weights, group.controls._is_paused = WeightFiles(), True
    group.controls._transfer = WeightTransferConfig(backend="shared_memory")
    first = await left(engines[0], group.finish_weight_update(), FinishWeightUpdate)
    engines[0]._on_event(Reply(first.call_id))
    await until(lambda: engines[1].sent)
    [second] = engines[1].sent
    assert (second.packed, second.is_elsewhere) == (first.packed, True)
    assert group.controls.weights.current.key == first.packed.key
    engines[1]._on_event(Reply(second.call_id))


async def test_an_adapter_that_one_engine_refuses_is_in_none(tmp_path):
    """A later start of an engine brings those back that all have."""
    async with on_threads(enable_lora=True) as (group, engines):
        first, second = adapter(tmp_path, "a"), adapter(tmp_path, "b")
        assert await group.add_lora(first)
        assert [engine.lora_requests for engine in engines] == [{"a": first}] * 2
        await engines[1].add_lora(second)
        clashing = msgspec.structs.replace(first, lora_name="c", lora_int_id=second.lora_int_id)
        with pytest.raises(BadRequest, match="lora_int_id"):
            await group.add_lora(clashing)
        assert set(group.lora_requests) == {"a", "b"}
        await engines[0].remove_lora(first.lora_int_id)
        await group.controls.catch_up(engines[0])
        assert list(engines[0].lora_requests) == ["a"]
        assert await group.remove_lora(first.lora_int_id)
        assert "a" not in group.lora_requests


async def test_an_adapter_that_is_removed_while_an_engine_catches_up_is_in_none(tmp_path):
    """What an engine is brought to is where the others are when it has arrived."""
    async with on_threads(enable_lora=True) as (group, engines):
        lora = adapter(tmp_path, "a")
        await group.add_lora(lora)
        await engines[0].remove_lora(lora.lora_int_id)
        catching_up = asyncio.create_task(group.controls.catch_up(engines[0]))
        await asyncio.sleep(0)
        assert await group.remove_lora(lora.lora_int_id)
        await catching_up
        assert not group.lora_requests


async def test_what_no_engine_would_take_is_refused_before_it_is_prepared(tmp_path):
    """As by one engine alone."""
    group, _ = await by_hand()
    options = RequestOptions(request_id="r", lora_request=adapter(tmp_path, "a"))
    with pytest.raises(BadRequest, match="--enable-lora"):
        await group.prepare(PROMPT, SHORT, options)


# -- with processes -------------------------------------------------------------------------------


def mixed(number: int) -> tuple[dict, SamplingParams]:
    """Requests of all sorts, some of which begin alike."""
    prompt = {"prompt_token_ids": [*range(100, 148), *range(number, number + 5)]}
    more = [
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 1.0, "seed": number, "n": 2},
        {
            "temperature": 1.0,
            "seed": number,
            "structured_outputs": StructuredOutputsParams(regex="[a-c]{5}"),
        },
        {"temperature": 0.0, "prompt_logprobs": 1},
    ][number % 4]
    return prompt, SamplingParams(max_tokens=10, **more)


async def last(client, number: int, **options):
    prompt, params = mixed(number)
    async with aclosing(client.generate(prompt, params, f"r{number}", **options)) as outputs:
        final = [output async for output in outputs][-1]
    return (
        [(one.token_ids, one.text, one.logprobs) for one in final.outputs],
        final.prompt_logprobs,
    )


@pytest.mark.slow
async def test_answers_are_those_of_one_engine():
    """Bit for bit, log-probabilities too; whichever engine computes, and both do."""
    async with local() as alone:
        expected = [await last(alone, number) for number in range(24)]
    metrics = Metrics()
    async with data_parallel(metrics=metrics) as group:
        answers = await asyncio.gather(*(last(group, number) for number in range(24)))
        loads = await group.get_loads()
        assert answers == expected
        assert [load.data_parallel_rank for load in loads] == [0, 1]
        assert all(load.num_steps for load in loads)
        pids = [engine.process.pid for engine in (r.client._child for r in group._group.ranks)]
        assert len(set(pids)) == 2
    [family] = [f for f in metrics.collect() if f.name == "vllm:request_success"]
    finished = {
        s.labels["engine"]: s.value
        for s in family.samples
        if s.labels["finished_reason"] == "length"
    }
    assert all(finished[engine] > 0 for engine in ("0", "1"))


@pytest.mark.slow
async def test_an_engine_that_dies_is_started_again_as_it_was():
    """Its requests go on at the other engine; and what was said to all holds for the new one."""
    async with data_parallel(**ROOM) as group:
        expected = await last(group, 0, data_parallel_rank=1)
        doomed = group.generate(PROMPT, ENDLESS, "doomed", data_parallel_rank=0)
        spared = group.generate(PROMPT, ENDLESS, "spared", data_parallel_rank=1)
        await asyncio.gather(anext(doomed), anext(spared))
        group._group.ranks[0].client._child.process.send_signal(signal.SIGKILL)
        async with aclosing(doomed), aclosing(spared), asyncio.timeout(PATIENCE_S):
            while group._group.ranks[1].num_open < 2:
                assert (await anext(doomed)).outputs[0].finish_reason is None
            assert (await anext(spared)).outputs[0].finish_reason is None
        assert group.is_degraded
        await group.check_health()
        await group.pause_generation()
        await until(lambda: not group.is_degraded)
        assert await group._group.ranks[0].client.is_paused()
        await group.resume_generation()
        async with asyncio.timeout(PATIENCE_S):
            assert await last(group, 0, data_parallel_rank=0) == expected
        assert group.num_active_requests == 0
        assert [rank.backlog for rank in group._group.ranks] == [0, 0]
        async with aclosing(group.subscribe_kv_events(0)) as batches, asyncio.timeout(PATIENCE_S):
            seen = [await anext(batches)]
            while seen[-1].data_parallel_rank or seen[-1].events != [AllBlocksCleared()]:
                seen.append(await anext(batches))  # to where engine 0 has lost its cache
        assert [batch.sequence_number for batch in seen] == list(range(len(seen)))
        assert 1 in {batch.data_parallel_rank for batch in seen}


@pytest.mark.slow
async def test_a_start_that_fails_for_one_engine_leaves_none_behind():
    """Here the place where the second one's cache events are published is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1] - 1}"
        events = {"enable_kv_cache_events": True, "endpoint": endpoint.replace("127.0.0.1", "lo")}
        before = set(psutil.Process().children())
        with pytest.raises(ConfigError, match="endpoint"):
            async with data_parallel(kv_events_config=events):
                pass
    assert set(psutil.Process().children()) <= before
