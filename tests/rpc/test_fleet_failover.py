"""Requests of a fleet whose server is lost continue at an equal one, over gRPC, with engines of our own."""

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import msgspec
import pytest
from msgspec.structs import replace

from tests.busy import PATIENCE_S, until
from tests.contract.engines import ROOM, local
from tests.engine.test_lora import adapter
from weft.core.errors import EngineDead, GenerationError, Unavailable
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.types import (
    FinishReason,
    OutputKind,
    RequestOptions,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.model.open import open_model
from weft.rpc.failover import members
from weft.rpc.fleet import Fleet
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer

PROMPT = list(b"the cat sat on the mat; the cat sat on the ")
LETTERS = {97: 100.0, 98: 100.0}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
_CALL = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "ab", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "cd"},
}  # fmt: skip
CALL = msgspec.json.encode(_CALL).decode()
CASES = {
    "greedy": {"temperature": 0.0},
    "not seeded": {"top_p": 0.9},
    "seeded": {"seed": 3, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
    "penalties": {
        "seed": 4,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.6,
        "repetition_penalty": 1.3,
    },
    "three answers": {"seed": 5, "n": 3},
    "logprobs of three answers": {"seed": 6, "n": 3, "logprobs": 2, "prompt_logprobs": 2},
    "ends": {"seed": 8, "stop_token_ids": list(range(0, 400, 23)), "n": 3},
    "ends not before": {"seed": 7, "min_tokens": 6, "stop_token_ids": list(range(0, 400, 3))},
    "stop strings": {"seed": 1, "logit_bias": LETTERS, "stop": ["aab", "bbb"], "n": 3},
    "stop strings not before": {
        "seed": 1,
        "logit_bias": LETTERS,
        "stop": ["ab"],
        "min_tokens": 6,
        "include_stop_str_in_output": True,
    },
    "regex": {"seed": 2, "structured_outputs": StructuredOutputsParams(regex="(ab|cd|ef){4,9}")},
    "schema": {"seed": 2, "n": 2, "structured_outputs": StructuredOutputsParams(json=SCHEMA)},
    "tool": {"seed": 2, "structured_outputs": StructuredOutputsParams(structural_tag=CALL)},
    "whole": {"seed": 3, "output_kind": OutputKind.FINAL_ONLY},
    "cumulative": {"seed": 3, "n": 2, "output_kind": OutputKind.CUMULATIVE},
}  # fmt: skip


class Cutter:
    """Ends the engines' parts of the next requests after so many outputs, as if the engines were killed."""

    def __init__(self):
        self.places = []
        self.stays_dead = False
        self.silent_at = None
        self.is_silent = asyncio.Event()
        self.requests = []

    def take_place(self):
        """The number of outputs of the request that begins now; None for all."""
        return self.places.pop(0) if self.places else None

    async def wait_if_silent(self, num_outputs):
        """Never returns at the place where the server falls silent."""
        if num_outputs == self.silent_at:
            self.silent_at = None
            self.is_silent.set()
            await asyncio.Event().wait()

    def wrap(self, engine, *, is_busy=False):
        """An engine whose requests this object can cut; a busy one gets no new requests."""
        return _Cut(engine, self, is_busy=is_busy)


class _Cut:
    def __init__(self, engine, cutter, *, is_busy):
        self._engine, self._cutter, self._is_busy = engine, cutter, is_busy
        self._is_dead = False

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def check_health(self):
        if self._is_dead:
            raise EngineDead("the engine has stopped: killed")

    def _die(self):
        self._is_dead = self._cutter.stays_dead
        return EngineDead("the engine has stopped: killed")

    async def get_loads(self):
        return [EngineLoad(num_waiting=100 * self._is_busy)]

    async def run(self, request):
        place = self._cutter.take_place()
        self._cutter.requests.append(request)
        num_outputs = 0
        async with aclosing(self._engine.run(request)) as outputs:
            async for output in single_tokens(outputs, request.params.output_kind):
                await self._cutter.wait_if_silent(num_outputs)
                if num_outputs == place:
                    raise self._die()
                num_outputs += 1
                yield output
        if place is not None:
            raise self._die()


async def single_tokens(outputs, kind):
    """The outputs with one token each, so that a place is the same on every machine."""
    async for output in outputs:
        if kind is not OutputKind.DELTA:
            yield output
            continue
        answers = [part for answer in output.outputs for part in _parts(answer)]
        for place, answer in enumerate(answers, start=1):
            yield replace(
                output, outputs=[answer], is_finished=output.is_finished and place == len(answers)
            )


def _parts(answer):
    if len(answer.token_ids) < 2:
        return [answer]
    logprobs = answer.logprobs or [None] * len(answer.token_ids)
    parts = [
        replace(
            answer,
            token_ids=[token_id],
            logprobs=row and [row],
            finish_reason=None,
            stop_reason=None,
        )
        for token_id, row in zip(answer.token_ids, logprobs, strict=True)
    ]
    ends = {"finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}
    return [*parts[:-1], replace(parts[-1], **ends)]


async def serve(engine, stack):
    """The address of a gRPC server for an engine."""
    files = open_model(engine.model_config.model).tokenizer_files
    server = RpcServer(engine, files, RpcOptions(port=0))
    port = await server.start()
    stack.push_async_callback(server.stop)
    return f"127.0.0.1:{port}"


@asynccontextmanager
async def fleet_of(*engines):
    """A fleet over one server for each engine; it knows their fingerprints."""
    async with AsyncExitStack() as stack:
        fleet = await Fleet.connect([await serve(engine, stack) for engine in engines])
        stack.push_async_callback(fleet.wait_closed)
        stack.callback(fleet.shutdown)
        await look(fleet)
        yield fleet


async def look(fleet):
    """The fleet looks at its servers now."""
    await fleet._members.refresh()


async def answers_of(fleet, request):
    """What the reader got of each answer, put together, and the number of outputs."""
    answers, num_outputs, kind = {}, 0, request.params.output_kind
    async with aclosing(fleet.run(request)) as outputs:
        async for output in outputs:
            num_outputs += 1
            for one in output.outputs:
                text, token_ids, logprobs = answers.get(one.index, ("", [], []))[:3]
                if kind is not OutputKind.DELTA:
                    text, token_ids, logprobs = "", [], []
                answers[one.index] = (
                    text + one.text,
                    token_ids + one.token_ids,
                    logprobs + list(one.logprobs or ()),
                    one.finish_reason,
                    one.stop_reason,
                    one.cumulative_logprob,
                )
    assert output.is_finished
    return answers, num_outputs


async def check_cuts(fleet, cutter, params, *, step=3, **options):
    """Cuts a request after every so many of its outputs; the reader gets the same as without a cut."""
    given = {"max_tokens": 8, "output_kind": OutputKind.DELTA, **params}
    prompt = {"prompt_token_ids": PROMPT}
    request = await fleet.prepare(
        prompt, SamplingParams(**given), RequestOptions(request_id="r", **options)
    )
    whole, num_outputs = await answers_of(fleet, request)
    for place in range(0, num_outputs + 1, step):
        cutter.places = [place]
        found, _ = await answers_of(fleet, request)
        assert not cutter.places, "no engine was cut"
        assert found == whole, place
        await look(fleet)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
async def test_every_cut_gives_the_undisturbed_answer(step):
    """Text, tokens, logprobs and reasons are equal, whatever rules the sampling."""
    cutter = Cutter()
    async with (
        local() as one,
        local() as other,
        fleet_of(cutter.wrap(one), cutter.wrap(other)) as fleet,
    ):
        for name, params in CASES.items():
            try:
                await check_cuts(fleet, cutter, params, step=step)
            except AssertionError as error:
                raise AssertionError(name) from error


async def test_an_adapter_goes_on_with_its_own_weights(tmp_path):
    """Another server has the adapter by its name, with equal weights."""
    cutter = Cutter()
    lora = adapter(tmp_path, "a")
    async with local(enable_lora=True) as one, local(enable_lora=True) as other:
        for engine in (one, other):
            await engine.add_lora(lora)
        async with fleet_of(cutter.wrap(one), cutter.wrap(other)) as fleet:
            await check_cuts(fleet, cutter, {"seed": 1}, lora_request=lora)


async def test_an_adapter_with_other_weights_does_not_continue(tmp_path):
    """The servers are equal without their adapters; the request waits for the server that was lost."""
    cutter = Cutter()
    lora = adapter(tmp_path, "a")
    other_lora = msgspec.structs.replace(lora, lora_path=adapter(tmp_path, "b").lora_path)
    async with local(enable_lora=True) as one, local(enable_lora=True) as other:
        await one.add_lora(lora)
        await other.add_lora(other_lora)
        async with fleet_of(cutter.wrap(one), cutter.wrap(other, is_busy=True)) as fleet:
            request = await prepared(fleet, lora_request=lora)
            cutter.places = [2]
            found, _ = await answers_of(fleet, request)
            assert len(cutter.requests) == 2
            assert found == (await answers_of(fleet, request))[0]


async def prepared(fleet, request_id="r", lora_request=None, **params):
    """A request for a stream."""
    given = {
        "max_tokens": 24,
        "temperature": 0.0,
        "ignore_eos": True,
        "output_kind": OutputKind.DELTA,
        **params,
    }
    options = RequestOptions(request_id=request_id, lora_request=lora_request)
    return await fleet.prepare({"prompt_token_ids": PROMPT}, SamplingParams(**given), options)


async def lost(fleet):
    """Waits until a request waits for a server that can continue it."""
    await until(lambda: fleet._members.resuming._waiting)


async def test_a_server_with_other_settings_continues_nothing():
    """The request waits for an equal server, and continues there when it is back."""
    cutter = Cutter()
    async with (
        local() as one,
        local(quantization="int8") as other,
        fleet_of(cutter.wrap(one), cutter.wrap(other, is_busy=True)) as fleet,
    ):
        first, second = fleet._members.all
        assert first.fingerprint != second.fingerprint
        request = await prepared(fleet)
        cutter.places = [2]
        answers, _ = await answers_of(fleet, request)
        assert len(cutter.requests) == 2
        assert cutter.requests[1].resumption.num_tokens == 2
        assert answers == (await answers_of(fleet, request))[0]


async def test_a_server_that_refuses_the_fingerprint_is_not_asked_again():
    """A server may have been replaced since the fleet last looked."""
    cutter = Cutter()
    async with (
        local() as one,
        local(quantization="int8") as other,
        fleet_of(cutter.wrap(one), cutter.wrap(other, is_busy=True)) as fleet,
    ):
        first, second = fleet._members.all
        second.fingerprint = first.fingerprint
        cutter.places = [2]
        answers, _ = await answers_of(fleet, await prepared(fleet))
        assert len(answers[0][1]) == 24
        assert second.fingerprint != first.fingerprint


async def test_a_request_that_ends_two_servers_is_given_up():
    """No third server gets it; the error says so."""
    cutter = Cutter()
    async with local() as one, fleet_of(*(cutter.wrap(one) for _ in range(3))) as fleet:
        request = await prepared(fleet)
        cutter.places = [0, 0]
        with pytest.raises(GenerationError, match="two servers have ended"):
            await answers_of(fleet, request)
        assert len(cutter.requests) == 2


async def test_a_request_that_advances_is_not_given_up():
    """Each server gives one token before it is lost."""
    cutter = Cutter()
    async with local() as one, fleet_of(*(cutter.wrap(one) for _ in range(3))) as fleet:
        request = await prepared(fleet)
        whole, _ = await answers_of(fleet, request)
        cutter.places = [1, 1, 1]
        assert (await answers_of(fleet, request))[0] == whole
        assert [one.resumption and one.resumption.number for one in cutter.requests[1:]] == [
            None,
            1,
            2,
            3,
        ]


async def test_a_waiting_request_can_be_aborted():
    """It ends with the tokens that it has."""
    cutter = Cutter()
    async with local() as one, fleet_of(cutter.wrap(one)) as fleet:
        request = await prepared(fleet)
        cutter.places, cutter.stays_dead = [3], True
        reading = asyncio.create_task(answers_of(fleet, request))
        await lost(fleet)
        await fleet.abort("r")
        async with asyncio.timeout(PATIENCE_S):
            answers, _ = await reading
    assert answers[0][3] is FinishReason.ABORT
    assert len(answers[0][1]) == 3


async def test_a_continued_request_can_be_aborted():
    """The server knows it by another id than the caller."""
    cutter = Cutter()
    async with (
        local(**ROOM) as one,
        local(**ROOM) as other,
        fleet_of(cutter.wrap(one), cutter.wrap(other)) as fleet,
    ):
        request = await prepared(fleet, max_tokens=16_000)
        cutter.places = [3]
        reading = asyncio.create_task(answers_of(fleet, request))
        await until(lambda: len(cutter.requests) == 2)
        await until(lambda: one.num_active_requests + other.num_active_requests == 1)
        await fleet.abort("r")
        async with asyncio.timeout(PATIENCE_S):
            answers, _ = await reading
    assert answers[0][3] is FinishReason.ABORT


async def test_waiting_requests_end_with_the_fleet():
    """No server will continue them."""
    cutter = Cutter()
    async with local() as one, fleet_of(cutter.wrap(one)) as fleet:
        request = await prepared(fleet)
        cutter.places, cutter.stays_dead = [3], True
        reading = asyncio.create_task(answers_of(fleet, request))
        await lost(fleet)
        fleet.shutdown()
        with pytest.raises(Unavailable, match="was closed"):
            await reading


async def test_streams_of_a_silent_server_are_continued(monkeypatch):
    """A server whose machine is gone sends no error; after a while others continue its requests."""
    monkeypatch.setattr(members, "GIVE_UP_S", 0.0)
    cutter = Cutter()
    async with (
        local() as one,
        local() as other,
        fleet_of(cutter.wrap(one), cutter.wrap(other)) as fleet,
    ):
        request = await prepared(fleet)
        whole, _ = await answers_of(fleet, request)
        cutter.silent_at = 4
        reading = asyncio.create_task(answers_of(fleet, request))
        await cutter.is_silent.wait()
        [silent] = [member for member in fleet._members.all if member.num_open]
        monkeypatch.setattr(silent.client, "check_health", unavailable)
        async with asyncio.timeout(PATIENCE_S):
            assert (await reading)[0] == whole


async def unavailable():
    """A health check without an answer."""
    raise Unavailable("no answer")


async def serving(engine, stack):
    """A server that can be drained, and its address."""
    files = open_model(engine.model_config.model).tokenizer_files
    server = RpcServer(engine, files, RpcOptions(port=0))
    stack.push_async_callback(server.stop)
    return f"127.0.0.1:{await server.start()}", server


@asynccontextmanager
async def drainable(*engines):
    """A fleet, and its servers by address."""
    async with AsyncExitStack() as stack:
        servers = dict([await serving(engine, stack) for engine in engines])
        fleet = await Fleet.connect(list(servers))
        stack.push_async_callback(fleet.wait_closed)
        stack.callback(fleet.shutdown)
        await look(fleet)
        yield fleet, servers


async def test_streams_of_a_server_that_drains_are_continued():
    """The server ends long before its requests; a drain is no loss, and nobody is blamed for it."""
    async with (
        local(**ROOM) as one,
        local(**ROOM) as other,
        drainable(one, other) as (fleet, servers),
    ):
        request = await prepared(fleet, max_tokens=6_000)
        whole, _ = await answers_of(fleet, request)
        reading = asyncio.create_task(answers_of(fleet, request))
        await until(lambda: any(one.service.generate.in_flight.ids for one in servers.values()))
        [leaving] = [member for member in fleet._members.all if member.num_open]
        async with asyncio.timeout(PATIENCE_S):
            await servers[leaving.target].drain(3600.0)
            assert (await reading)[0] == whole
        assert not any(member.suspects for member in fleet._members.all)


async def test_a_draining_server_without_an_equal_one_finishes_its_requests():
    """The fleet has nowhere to go with them."""
    async with local(**ROOM) as engine, drainable(engine) as (fleet, servers):
        request = await prepared(fleet, max_tokens=1_000)
        whole, _ = await answers_of(fleet, request)
        reading = asyncio.create_task(answers_of(fleet, request))
        [server] = servers.values()
        await until(lambda: server.service.generate.in_flight.ids)
        draining = asyncio.create_task(server.drain(3600.0))
        await until(lambda: server.service.generate.is_closed)
        await look(fleet)
        assert (await reading)[0] == whole
        await draining


async def test_a_fleet_has_the_adapters_of_its_servers(tmp_path):
    """A request goes to a server that has its adapter, and a fingerprint covers the adapter's files."""
    lora = adapter(tmp_path, "a")
    async with local(enable_lora=True) as one, local(enable_lora=True) as other:
        await other.add_lora(lora)
        cutter = Cutter()
        async with fleet_of(one, cutter.wrap(other, is_busy=True)) as fleet:
            known = fleet.lora_requests[lora.lora_name]
            request = await prepared(fleet, lora_request=known)
            await answers_of(fleet, request)
            assert len(cutter.requests) == 1
            model, alone = await fleet.fingerprint(None), await fleet.fingerprint(known)
            assert model
            assert alone.startswith(f"{model}:")
            other_files = adapter(tmp_path, "b").lora_path
            await one.add_lora(msgspec.structs.replace(lora, lora_path=other_files))
            await look(fleet)
            assert await fleet.fingerprint(known) == ""
            for member in fleet._members.all:
                member.set_healthy(False, "away")
            fleet._members.loras = fleet._members._find_loras()
            assert lora.lora_name in fleet.lora_requests
