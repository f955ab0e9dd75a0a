"""Requests whose engine ends go on at another one; engines are played by the test, or are processes."""

import asyncio
import signal
from contextlib import aclosing, asynccontextmanager

import msgspec
import pytest

from tests.busy import PATIENCE_S, until
from tests.contract.engines import ROOM, api_server, data_parallel, local, resolved, running_engine
from tests.doubles.stepping import make_request
from tests.doubles.transfers import computed_at
from tests.engine.test_data_parallel import by_hand
from tests.engine.test_front import HandClient
from tests.engine.test_observing import ended_of, value_of
from tests.model.checkpoints import write_checkpoint
from weft.core.aio import failover
from weft.core.aio.pauses import Pauses
from weft.core.errors import ConfigError, EngineDead, GenerationError, Unavailable
from weft.core.observe.metrics import Metrics
from weft.core.values.kv_transfer import KEY, Resumption
from weft.core.values.types import FinishReason, OutputKind, SamplingParams, StructuredOutputsParams
from weft.engine.clients.data_parallel import DataParallelClient, start_engines
from weft.engine.ipc.messages import Add
from weft.text.outputs.request_stream import RequestStream

DELTAS = SamplingParams(temperature=0.0, max_tokens=50, output_kind=OutputKind.DELTA)


class Reader:
    """Reads a request of a group to its end."""

    def __init__(self, group, params=DELTAS, request_id="r", **options):
        self.outputs = []
        stream = group.generate([65, 66, 67], params, request_id, **options)
        self.task = asyncio.create_task(self._read(stream))

    async def _read(self, stream):
        async with aclosing(stream) as outputs:
            async for output in outputs:
                self.outputs.append(output)

    @property
    def token_ids(self):
        """Tokens of the first answer."""
        return [
            t
            for output in self.outputs
            for one in output.outputs
            if not one.index
            for t in one.token_ids
        ]

    async def end(self):
        """Waits for the end of the request; raises its error."""
        async with asyncio.timeout(PATIENCE_S):
            await self.task


async def asked(engine, count=1):
    """The last requests that an engine got, when it has so many."""
    await until(lambda: len(engine.engine_ids) >= count)
    return [command.request for command in engine.sent if isinstance(command, Add)]


def lose(engine):
    """The engine ends as if it were killed."""
    engine._die(EngineDead("engine 0 ended unexpectedly (signal 9)"))


def join(group, rank, engine):
    """A new engine takes the place of one that has ended."""
    group._group.ranks[rank].client = engine
    group._group.resuming.announce()


async def test_a_lost_request_goes_on_at_another_engine():
    """That engine gets the tokens so far; the reader gets each token once."""
    group, engines = await by_hand()
    reader = Reader(group)
    [first] = await asked(engines[0])
    engines[0].say(first.engine_id, [70, 71])
    await until(lambda: reader.token_ids == [70, 71])
    engines[0].say(first.engine_id, [72])
    lose(engines[0])
    [rest] = await asked(engines[1])
    assert rest.resumption.answers[0].token_ids == [70, 71, 72]
    assert rest.prompt_token_ids == first.prompt_token_ids
    assert rest.engine_id != first.engine_id
    await until(lambda: reader.token_ids == [70, 71, 72])  # before the other engine has answered
    engines[1].say(rest.engine_id, [73], finish_reason=FinishReason.STOP)
    await reader.end()
    assert reader.token_ids == [70, 71, 72, 73]
    assert [output.is_finished for output in reader.outputs][-1]
    assert group.num_active_requests == 0


async def test_answers_that_have_ended_are_not_computed_again():
    """Of three answers two go on."""
    group, engines = await by_hand()
    reader = Reader(group, SamplingParams(n=3, max_tokens=50))
    [first] = await asked(engines[0])
    engines[0].say(first.engine_id, [70], index=0)
    engines[0].say(first.engine_id, [71], index=1, finish_reason=FinishReason.STOP)
    lose(engines[0])
    [rest] = await asked(engines[1])
    given = rest.resumption.answers
    assert [one and one.token_ids for one in given] == [[70], None, []]
    assert rest.resumption.num_open_answers == 2
    for index in (0, 2):
        engines[1].say(rest.engine_id, [75], index=index, finish_reason=FinishReason.LENGTH)
    await reader.end()
    assert [one.token_ids for one in reader.outputs[-1].outputs] == [[70, 75], [71], [75]]


async def test_a_request_waits_for_an_engine_that_starts_again():
    """A pin and a full queue do not matter to it."""
    group, [engine] = await by_hand(1, max_num_queued_reqs=1)
    reader = Reader(group, data_parallel_rank=0)
    await asked(engine)
    lose(engine)
    await until(lambda: group._group.resuming._waiting)
    successor = HandClient(max_num_queued_reqs=1)
    with successor.preparing(1):
        join(group, 0, successor)
        [rest] = await asked(successor)
    successor.say(rest.engine_id, [70], finish_reason=FinishReason.STOP)
    await reader.end()
    assert reader.token_ids == [70]


async def test_a_waiting_request_can_be_aborted():
    """It ends with what it has."""
    group, [engine] = await by_hand(1)
    reader = Reader(group)
    [request] = await asked(engine)
    engine.say(request.engine_id, [70])
    lose(engine)
    await until(lambda: group._group.resuming._waiting)
    await group.abort("r")
    await reader.end()
    assert reader.token_ids == [70]
    assert reader.outputs[-1].outputs[-1].finish_reason is FinishReason.ABORT


async def test_a_waiting_request_ends_with_the_server():
    """No engine will run it."""
    group, [engine] = await by_hand(1)
    reader = Reader(group)
    await asked(engine)
    lose(engine)
    await until(lambda: group._group.resuming._waiting)
    group.shutdown()
    with pytest.raises(Unavailable, match="shutting down"):
        await reader.end()


async def test_a_request_does_not_wait_for_ever(monkeypatch):
    """After the limit it gets the error of an engine that does not run."""
    monkeypatch.setattr(failover, "RESUME_S", 0.0)
    group, [engine] = await by_hand(1)
    reader = Reader(group)
    await asked(engine)
    lose(engine)
    with pytest.raises(EngineDead, match="no engine is running"):
        await reader.end()
    assert not group._group.resuming._waiting


async def test_a_suspect_does_not_wait_for_ever_for_its_turn(monkeypatch):
    """An engine runs, but the other suspect there does not advance."""
    monkeypatch.setattr(failover, "RESUME_S", 0.0)
    suspect = Resumption(answers=[None], num_losses=2)
    first, second = (
        msgspec.structs.replace(make_request(name, [1]), resumption=suspect) for name in "ab"
    )
    resuming = failover.Resuming(lambda request: None, lambda: True)
    with resuming.turn(first), pytest.raises(EngineDead, match="continued the request"):
        await resuming.wait_for_engine(second)
    assert await resuming.wait_for_engine(second)


async def test_a_lost_request_goes_on_without_the_blocks_of_a_further_engine():
    """The lost engine may have released them. A request whose blocks are to be lent keeps its arguments."""
    engine = HandClient()
    lent, lends = (
        make_request("r", [5, 6, 7], SamplingParams(extra_args={KEY: one}))
        for one in (computed_at(1), {"do_remote_decode": True})
    )
    rest = failover.resumed(lent, RequestStream(lent, engine.renderer))
    assert rest.params.extra_args == {}
    assert failover.resumed(lends, RequestStream(lends, engine.renderer)).params == lends.params


async def test_a_request_that_ends_two_engines_is_given_up():
    """Nobody gets it a third time; others beside it that advance go on."""
    group, engines = await by_hand(3)
    poison, other = Reader(group), Reader(group, request_id="other", data_parallel_rank=0)
    first, beside = await asked(engines[0], 2)
    lose(engines[0])
    [rest] = await asked(engines[1])
    assert rest.request_id == first.request_id
    [rest_beside] = await asked(engines[2])
    lose(engines[1])
    with pytest.raises(GenerationError, match="two engines have ended"):
        await poison.end()
    engines[2].say(rest_beside.engine_id, [70], finish_reason=FinishReason.STOP)
    await other.end()
    assert len(engines[2].engine_ids) == 1
    assert beside.request_id == "other"


async def test_a_request_that_advances_is_not_to_blame():
    """A token between two losses proves that it does not end engines at that place."""
    group, engines = await by_hand(3)
    reader = Reader(group)
    await asked(engines[0])
    lose(engines[0])
    [second] = await asked(engines[1])
    engines[1].say(second.engine_id, [70])
    lose(engines[1])
    [third] = await asked(engines[2])
    assert (third.resumption.num_losses, third.resumption.number) == (1, 2)
    engines[2].say(third.engine_id, [71], finish_reason=FinishReason.STOP)
    await reader.end()
    assert reader.token_ids == [70, 71]


async def test_several_suspects_run_one_after_the_other():
    """Until each advances; so only the one at fault is given up."""
    group, engines = await by_hand(1)
    readers = {name: Reader(group, request_id=name) for name in ("innocent", "poison")}
    await asked(engines[0], 2)
    for _ in range(2):
        lose(engines[-1])
        engines.append(HandClient())
        join(group, 0, engines[-1])
        await asked(engines[-1])
        if len(engines) == 2:
            await asked(engines[-1], 2)
    [alone] = await asked(engines[-1])
    assert alone.resumption.num_losses == 2
    engines[-1].say(alone.engine_id, [70])
    first, second = await asked(engines[-1], 2)
    assert {first.request_id, second.request_id} == set(readers)
    lose(engines[-1])
    with pytest.raises(GenerationError, match="two engines have ended"):
        await readers[second.request_id].end()
    engines.append(HandClient())
    join(group, 0, engines[-1])
    [rest] = await asked(engines[-1])
    assert rest.request_id == first.request_id
    engines[-1].say(rest.engine_id, [71], finish_reason=FinishReason.STOP)
    await readers[first.request_id].end()
    assert readers[first.request_id].token_ids == [70, 71]


async def test_the_metrics_count_a_resumed_request_once():
    """The engine that ends it counts it, and that it was resumed."""
    metrics = Metrics()
    group, engines = await by_hand(1, metrics=metrics)
    reader = Reader(group)
    [first] = await asked(engines[0])
    engines[0].say(first.engine_id, [70, 71])
    lose(engines[0])
    assert not any(ended_of(metrics, "fake").values())
    join(group, 0, HandClient(metrics))
    successor = group._group.ranks[0].client
    [rest] = await asked(successor)
    successor.say(rest.engine_id, [72], finish_reason=FinishReason.STOP)
    await reader.end()
    ended, labels = ended_of(metrics, "fake"), {"engine": "1"}
    assert not any(ended.values())
    assert value_of(metrics, "fake", "resumed_requests_total", **labels) == 1
    assert value_of(metrics, "fake", "request_generation_tokens_sum", **labels) == 3
    assert value_of(metrics, "fake", "time_to_first_token_seconds_count", **labels) == 0


# -- with processes -------------------------------------------------------------------------------

LENGTH = 120
WAYS = [
    {"temperature": 0.0, "logprobs": 2, "ignore_eos": True},
    {"seed": 1, "n": 3, "ignore_eos": True},
    {"seed": 2, "structured_outputs": StructuredOutputsParams(regex="[a-c]{90}")},
    {"temperature": 0.0, "prompt_logprobs": 1, "presence_penalty": 0.5, "ignore_eos": True},
    {"seed": 3, "allowed_token_ids": [97, 98], "stop": ["abababa"], "ignore_eos": True},
]


async def whole(client, number):
    """The whole answer to one of the mixed requests, as its reader puts the deltas together."""
    params = {"max_tokens": LENGTH, "output_kind": OutputKind.DELTA, **WAYS[number % len(WAYS)]}
    prompt = {"prompt_token_ids": [*range(100, 148), *range(number, number + 5)]}
    answers, scores, reasons = {}, None, {}
    stream = client.generate(prompt, SamplingParams(**params), f"r{number}")
    async with aclosing(stream) as outputs:
        async for output in outputs:
            scores = output.prompt_logprobs or scores
            for one in output.outputs:
                text, token_ids, logprobs = answers.get(one.index, ("", [], []))
                more = list(one.logprobs or ())
                answers[one.index] = (text + one.text, token_ids + one.token_ids, logprobs + more)
                reasons[one.index] = one.finish_reason, one.stop_reason
    return answers, scores, reasons


@pytest.mark.slow
async def test_mixed_requests_survive_the_deaths_of_engines():
    """Each answer equals the undisturbed one bit for bit, with each engine killed in turn."""
    numbers = range(20)
    async with local(**ROOM) as alone:
        expected = [await whole(alone, number) for number in numbers]
    async with data_parallel(**ROOM) as group:
        tasks = [asyncio.create_task(whole(group, number)) for number in numbers]
        for rank in group._group.ranks:
            await until(lambda rank=rank: rank.is_live and rank.client._load.num_running)
            rank.client._child.process.send_signal(signal.SIGKILL)
            await until(lambda: group.is_degraded)
        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.gather(*tasks)
        assert [number for number in numbers if found[number] != expected[number]] == []
        assert group.num_active_requests == 0


@pytest.mark.slow
async def test_requests_of_an_api_server_survive_the_death_of_an_engine():
    """The API server has the tokens; the supervisor chooses the next engine."""
    groups, numbers = [], range(10)

    @asynccontextmanager
    async def behind(**options):
        async with data_parallel(**options) as group:
            groups.append(group)
            yield group

    async with local(**ROOM) as alone:
        expected = [await whole(alone, number) for number in numbers]
    async with api_server(behind, **ROOM) as client:
        tasks = [asyncio.create_task(whole(client, number)) for number in numbers]
        [first, _] = groups[0]._group.ranks
        await until(lambda: first.client._load.num_running)
        first.client._child.process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.gather(*tasks)
    assert [number for number in numbers if found[number] != expected[number]] == []


@pytest.mark.slow
async def test_a_single_engine_is_started_again_and_its_requests_go_on():
    """Health is in error meanwhile, new requests are refused, and the engine is given up after the last restart."""
    metrics = Metrics()
    async with local(**ROOM) as alone:
        expected = await whole(alone, 0)
    options = {**ROOM, "engine_restarts": 1}
    async with running_engine(start_engines, metrics=metrics, **options) as client:
        assert isinstance(client, DataParallelClient)
        task = asyncio.create_task(whole(client, 0))
        [rank] = client._group.ranks
        await until(lambda: rank.client._load.num_running)
        rank.client._child.process.send_signal(signal.SIGKILL)
        await until(lambda: client.is_degraded)
        with pytest.raises(
            EngineDead, match="no engine is running; the engines are being restarted"
        ):
            await client.check_health()
        with pytest.raises(EngineDead):
            await whole(client, 1)
        async with asyncio.timeout(PATIENCE_S):
            assert await task == expected
        await client.check_health()
        model = client.model_config.served_model_name
        assert value_of(metrics, model, "resumed_requests_total") == 1
        endless = asyncio.create_task(last_of(client))
        await until(lambda: client.num_active_requests)
        rank.client._child.process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(EngineDead, match="none is started again"):
                await endless
            await client.wait_closed()
        assert client.errored
        assert "none is started again" in str(client.dead_error)
        with pytest.raises(EngineDead, match="none is started again"):
            await client.check_health()


async def last_of(client):
    """An answer that goes on until the engine ends."""
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    async with aclosing(client.generate([65, 66], params, "endless")) as outputs:
        async for _ in outputs:
            pass


@pytest.mark.slow
async def test_an_engine_is_not_started_again_with_other_weights(tmp_path):
    """Its requests would get other tokens: it is given up, and the log has the reason."""
    directory = write_checkpoint(tmp_path / "model")
    options = {"model": str(directory), "engine_restarts": 3, "max_model_len": 64}
    async with running_engine(start_engines, **options) as client:
        [weights] = directory.glob("*.safetensors")
        weights.touch()
        client._group.ranks[0].client._child.process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            await client.wait_closed()
        assert client.errored


async def test_pauses_end_after_the_most():
    """A steady run begins to count anew."""
    pauses = Pauses(most=2, steady_s=10)
    pauses.next_s()
    assert not pauses.is_spent
    pauses.next_s()
    assert pauses.is_spent
    pauses.lasted(11)
    assert not pauses.is_spent


def test_a_negative_number_of_restarts_is_refused():
    """The error names the flag."""
    with pytest.raises(ConfigError, match="--engine-restarts"):
        resolved(engine_restarts=-1)
