"""What crosses between API servers and their supervisor; requests are in `tests/contract`."""

import asyncio
import socket
from contextlib import asynccontextmanager

import msgspec
import pytest
import zmq
from prometheus_client import CollectorRegistry, Counter, Gauge

from tests.busy import PATIENCE_S, until
from tests.contract.engines import ROOM, api_server, stop
from tests.doubles.stepping import make_request
from tests.doubles.transfers import computed_at
from tests.engine.test_data_parallel import by_hand, leave
from tests.engine.test_elastic import elastic_by_hand, pieces_at
from tests.engine.test_failover import Reader, asked, lose
from tests.engine.test_front import HandClient
from tests.engine.test_observing import ended_of
from weft.core import errors
from weft.core.errors import BadRequest, EngineDead, Key, NotFound, RateLimited, WeftError
from weft.core.observe.metrics import Metrics
from weft.core.operator_calls import CALLS, OperatorCalls
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_transfer import KEY, RemotePrompt
from weft.core.values.types import FinishReason, OutputKind, SamplingParams, SequenceOutput
from weft.engine.api_servers import attached as attached_servers
from weft.engine.api_servers.attached import AttachedServer
from weft.engine.api_servers.calls import ANSWERS
from weft.engine.api_servers.client import ApiServerClient
from weft.engine.api_servers.faults import Fault
from weft.engine.api_servers.messages import (
    Cancel,
    Collected,
    Drain,
    EnginesStopped,
    Family,
    Forward,
    FromServer,
    Opened,
    Prepared,
    ToServer,
)
from weft.engine.api_servers.series import families_of, page, summed
from weft.engine.clients.group_controls import GroupControls
from weft.engine.front.counted_stream import CountedStream
from weft.engine.ipc.channel import Channel
from weft.engine.ipc.messages import Abort, Add, Ready, ReleaseRemote, Reply, StepOutput, UseShare
from weft.engine.ipc.output_ports import OutputPorts

ENDLESS = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
PROMPT = {"prompt_token_ids": [5, 6, 7]}

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, WeftError) and not issubclass(kind, BadRequest)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_is_the_same_elsewhere(kind):
    """Its class, by which each API answers, and its words."""
    error = Fault.of(kind("what was wrong")).to_error()
    assert type(error) is kind
    assert str(error) == "what was wrong"


def test_a_rate_limit_says_elsewhere_when_to_try_again():
    """Clients read it from the header retry-after, whichever process answers."""
    again = Fault.of(RateLimited("too many", 12.5)).to_error()
    assert isinstance(again, RateLimited)
    assert again.retry_after_s == 12.5


def test_a_field_that_an_error_names_is_renamed_elsewhere_too():
    """Each API has names of its own, and the error crosses before one is chosen."""
    error = BadRequest("max_tokens", (Key("max_tokens"), " is too large"))
    again = Fault.of(error).to_error()
    assert isinstance(again, BadRequest)
    assert (
        str(again.renamed({"max_tokens": "max_output_tokens"})) == "max_output_tokens is too large"
    )
    assert again.renamed({"max_tokens": "max_output_tokens"}).parameter == "max_output_tokens"
    missing = Fault.of(NotFound("no such model", "model")).to_error()
    assert isinstance(missing, NotFound)
    assert missing.parameter == "model"


def test_every_call_for_all_engines_is_handed_on():
    """What a group does with each engine, an API server must not do with itself."""
    to_all = {
        name for name in vars(OperatorCalls) if name[0] != "_" and name in vars(GroupControls)
    }
    assert to_all <= CALLS.keys() <= ANSWERS.keys()
    assert all(getattr(ApiServerClient, name) is getattr(OperatorCalls, name) for name in CALLS)


async def test_messages_come_whole_however_they_are_cut():
    """A stream of bytes has no borders."""
    ours, theirs = socket.socketpair()
    sent = [EnginesStopped("x" * size) for size in (0, 1, 100_000, 7)]
    writer, reader = await Channel.open(ours, ToServer), await Channel.open(theirs, ToServer)
    for message in sent:
        writer.send(message)
    assert [await reader.receive() for _ in sent] == sent
    writer.close()
    assert await reader.receive() is None
    reader.close()


async def test_what_comes_when_nobody_waits_for_it_any_more_is_no_failure():
    """A signal may end the start of a server whose API servers are just about to be prepared."""
    ours, theirs = socket.socketpair()
    channel, other = await Channel.open(ours, FromServer), await Channel.open(theirs, ToServer)
    server = AttachedServer(channel, None, None, None)
    server.prepared.cancel()
    server.opened.cancel()
    other.send(Prepared())
    other.send(Opened(None))
    await other.drain()
    other.close()
    await server.serve()
    assert server.is_closed


@asynccontextmanager
async def attached(client, changed=None):
    """An API server's end of the channel to a supervisor with these engines, and the supervisor's part."""
    ours, theirs = socket.socketpair()
    channel, other = await Channel.open(ours, FromServer), await Channel.open(theirs, ToServer)
    server = AttachedServer(channel, client, changed, None)
    serving = asyncio.create_task(server.serve())
    try:
        yield other, server
    finally:
        other.close()
        await serving


async def test_series_of_an_api_server_that_hangs_are_those_it_had(monkeypatch):
    """Whoever asks for the series of all is answered, and what comes late is no failure."""
    monkeypatch.setattr(attached_servers, "COLLECT_S", PATIENCE_S)
    then, late = ([Family("x", "", "gauge", [("x", {}, value)])] for value in (1.0, 2.0))
    async with attached(None) as (other, server), asyncio.timeout(PATIENCE_S):
        asked = asyncio.create_task(server.collect())
        other.send(Collected((await other.receive()).call_id, then))
        assert await asked == then
        monkeypatch.setattr(attached_servers, "COLLECT_S", 0.01)
        assert await server.collect() == then
        other.send(Collected((await other.receive()).call_id, late))
        other.send(Prepared())
        await server.prepared
        assert server.families == then


@pytest.mark.parametrize("is_alone", [False, True])
async def test_an_api_server_outlives_engines_that_could_release_a_prompt(is_alone):
    """All have died, and may be started again: who computed it elsewhere has it until its lease ends."""
    group, engines = await by_hand()
    for engine in engines:
        engine._die(EngineDead("x"))
    async with attached(engines[0] if is_alone else group) as (other, server):
        other.send(ReleaseRemote(RemotePrompt("e", "r", [1], "127.0.0.1", 1)))
        other.send(Prepared())
        async with asyncio.timeout(PATIENCE_S):
            await server.prepared
    assert not any(engine.sent for engine in engines)


async def test_a_request_that_is_aborted_as_it_comes_frees_its_prompt():
    """Both may come at once: no engine has heard of it then, and who computed its prompt would keep that."""
    source = RemotePrompt("e", "r", [1], "127.0.0.1", 1)
    params = msgspec.structs.replace(ENDLESS, extra_args={KEY: computed_at(1)})
    _, [engine] = await by_hand(1)
    async with attached(engine) as (other, _):
        request = make_request("r", [5, 6, 7], params)
        other.send(Add(request))
        other.send(Abort([request.engine_id]))
        await until(lambda: engine.sent)
    assert engine.sent == [ReleaseRemote(source)]


async def test_a_number_of_engines_is_known_to_all_whoever_waits_for_it():
    """It changes without its caller too, and later than he has left."""
    group, engines = await elastic_by_hand()
    seen = []

    async def look():
        seen.append(group.info.data_parallel_size)

    first = await pieces_at(group, engines, 1)
    async with attached(group, look) as (other, _):
        other.send(Forward(0, "scale_elastic_ep", [1]))
        await until(lambda: group._group.ranks[1].is_draining)
        other.send(Cancel(0))
        other.send(Forward(1, "is_scaling_elastic_ep"))
        await other.receive()
        await leave(first)
        await until(lambda: any(isinstance(command, UseShare) for command in engines[0].sent))
        [share] = [command for command in engines[0].sent if isinstance(command, UseShare)]
        engines[0]._on_event(Reply(share.call_id))
        await until(lambda: 1 in seen)


async def test_an_api_server_that_was_to_listen_soon_ends_when_all_do(tmp_path):
    """One that is just started again is not waited for as if it had requests."""
    engine = HandClient()
    config = msgspec.structs.replace(engine.vllm_config, api_server_directory=str(tmp_path))
    ours, theirs = socket.socketpair()
    channel, other = await Channel.open(ours, ToServer), await Channel.open(theirs, FromServer)
    client = await ApiServerClient.open("0.0", channel, config, engine.renderer)
    other.send(Drain())
    async with asyncio.timeout(PATIENCE_S):
        assert not await client.wait_open()
    assert not client.is_orphaned
    other.close()


def output(engine_id, *token_ids, **fields):
    """One step's output for the first answer."""
    return SequenceOutput(engine_id=engine_id, index=0, token_ids=list(token_ids), **fields)


def test_outputs_go_where_their_requests_came_from(tmp_path):
    """Each API server gets its own, whole; who counts gets all, without what only readers need."""
    context = zmq.Context()
    pulls = {name: context.socket(zmq.PULL) for name in ("0.0", "1.3")}
    for name, pull in pulls.items():
        pull.bind(f"ipc://{tmp_path}/{name}")
    ports = OutputPorts(context, str(tmp_path))
    logprobs = [[(7, -0.5, 1)]]
    first, second = output("0.0/a/b-1", 7, logprobs=logprobs), output("1.3/a-2", 8, 9)
    step = StepOutput(outputs=[first, second], load=EngineLoad(num_running=2))
    kept = ports.divert(step)
    assert isinstance(kept, StepOutput)
    assert kept.load.num_running == 2
    assert kept.outputs == [output("0.0/a/b-1", 7), second]
    for name, one in (("0.0", first), ("1.3", second)):
        assert pulls[name].poll(10_000)
        event = msgspec.msgpack.decode(pulls[name].recv(), type=StepOutput)
        assert event.outputs == [one]
    ready = Ready(EngineLoad())
    assert ports.divert(ready) is ready
    ports.close()
    context.destroy(linger=0)


def test_series_of_several_processes_are_added_up_and_their_own_told_apart():
    """Counters are sums; what a process says of itself, or of the file that all share, has its name."""
    registries = {"api_server_0": CollectorRegistry(), "api_server_1": CollectorRegistry()}
    for number, registry in enumerate(registries.values(), start=1):
        Counter("http_requests", "Requests.", ("handler",), registry=registry).labels("/v1").inc(
            number
        )
        Gauge("process_open_fds", "Files.", registry=registry).set(10 * number)
        Gauge("weft:store_bytes", "Bytes.", registry=registry).set(7)
    families = summed({name: families_of(one) for name, one in registries.items()})
    text = page(families).decode()
    assert 'http_requests_total{handler="/v1"} 3.0' in text
    assert 'process_open_fds{process="api_server_0"} 10.0' in text
    assert 'process_open_fds{process="api_server_1"} 20.0' in text
    assert text.count("weft:store_bytes{") == 2


@pytest.fixture
async def counted():
    """The stream of a request for two answers."""
    return CountedStream(make_request("r", [1], SamplingParams(n=2), engine_id="0.0/r"))


async def test_a_counted_request_is_over_when_all_its_answers_are(counted):
    """By the engine's word, or by a stop string that its reader has found."""
    counted.is_confirmed = True
    counted.push(output("0.0/r", 5, 6))
    counted.end(0, FinishReason.STOP)
    assert counted.pop() is None
    counted.push(
        SequenceOutput(engine_id="0.0/r", index=1, token_ids=[7], finish_reason=FinishReason.LENGTH)
    )
    assert counted.progress(0) == (2, FinishReason.STOP)
    assert counted.progress(1) == (1, FinishReason.LENGTH)
    assert counted.pop().is_aborted is False


@asynccontextmanager
async def reading(tmp_path, behind):
    """An API server and its supervisor, whose engines the test plays: outputs arrive only where the test says."""
    config = msgspec.structs.replace(behind.vllm_config, api_server_directory=str(tmp_path))

    async def changed():
        """Other API servers would learn of the call."""

    ours, theirs = socket.socketpair()
    server = AttachedServer(await Channel.open(ours, FromServer), behind, changed, None)
    serving = asyncio.create_task(server.serve())
    channel = await Channel.open(theirs, ToServer)
    client = await ApiServerClient.open("0.0", channel, config, behind.renderer)
    try:
        yield client
    finally:
        client.shutdown()
        await serving


async def begun(client, engine):
    """A request of an API server, and its id at the engine."""
    deltas = msgspec.structs.replace(ENDLESS, output_kind=OutputKind.DELTA)
    reader = Reader(client, deltas)
    [request] = await asked(engine)
    return reader, request.engine_id


def receive(client, *outputs):
    """The API server gets a step's outputs, which the supervisor counts separately."""
    client._on_event(StepOutput(outputs=list(outputs), load=EngineLoad()))


async def test_a_finish_that_is_lost_with_the_engine_is_reported(tmp_path):
    """The supervisor has counted the last output, which the killed engine has not sent to the API server."""
    engine = HandClient()
    async with reading(tmp_path, engine) as client:
        reader, engine_id = await begun(client, engine)
        engine.say(engine_id, [70], finish_reason=FinishReason.STOP)
        lose(engine)
        with pytest.raises(EngineDead):
            await reader.end()
        assert engine.num_active_requests == 0


async def test_a_request_whose_finish_is_lost_goes_on_at_another_engine(tmp_path):
    """It goes on from the tokens that the API server has, not from those that the supervisor has counted."""
    group, engines = await by_hand()
    async with reading(tmp_path, group) as client:
        reader, engine_id = await begun(client, engines[0])
        engines[0].say(engine_id, [70])
        receive(client, output(engine_id, 70))
        engines[0].say(engine_id, [71], finish_reason=FinishReason.STOP)
        lose(engines[0])
        [rest] = await asked(engines[1])
        assert rest.resumption.answers[0].token_ids == [70]
        last = output(rest.engine_id, 71, finish_reason=FinishReason.STOP)
        engines[1].say(rest.engine_id, [71], finish_reason=FinishReason.STOP)
        receive(client, last)
        await reader.end()
        assert reader.token_ids == [70, 71]
        await until(lambda: group.num_active_requests == 0)


@pytest.mark.parametrize("is_reader_first", [False, True])
async def test_a_finished_request_is_closed_once_both_processes_have_its_end(
    tmp_path, is_reader_first
):
    """Whichever has it first: the engine gets no abort, and the metrics count one finished request."""
    metrics = Metrics()
    engine = HandClient(metrics)
    async with reading(tmp_path, engine) as client:
        reader, engine_id = await begun(client, engine)
        last = output(engine_id, 70, finish_reason=FinishReason.STOP)
        steps = [lambda: engine.say(engine_id, [70], finish_reason=FinishReason.STOP)]
        steps.insert(0 if is_reader_first else 1, lambda: receive(client, last))
        steps[0]()
        if is_reader_first:
            await reader.end()
            await client.do_log_stats()  # the supervisor has read all earlier messages
        assert engine.num_active_requests == 1
        steps[1]()
        await reader.end()
        await until(lambda: engine.num_active_requests == 0)
        assert [type(command) for command in engine.sent if isinstance(command, Abort)] == []
        assert ended_of(metrics, engine.model_config.served_model_names[0]) == {"stop": 1}


@pytest.mark.slow
async def test_an_abort_that_came_another_way_ends_the_request_here():
    """By its caller's id, at the supervisor: "abort", once."""
    async with api_server(**ROOM) as client:
        answer = client.generate(PROMPT, ENDLESS, "r")
        await anext(answer)
        await client.forward("abort", ["r"])
        outputs = [one async for one in answer]
        assert outputs[-1].outputs[0].finish_reason is FinishReason.ABORT
        assert client.num_active_requests == 0


@pytest.mark.slow
async def test_who_has_left_has_left_the_engine_too():
    """An API server that ends takes its requests along."""
    async with api_server(**ROOM) as client, api_server(**ROOM):
        answer = client.generate(PROMPT, ENDLESS, "r")
        await anext(answer)
        await stop(client)
        with pytest.raises(EngineDead):
            async for _ in answer:
                pass
