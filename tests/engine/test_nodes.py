"""Engines of several machines behind one head: who may join, and what becomes of those who leave."""

import asyncio
import logging
import socket
from contextlib import aclosing, asynccontextmanager
from unittest.mock import Mock

import msgspec
import psutil
import pytest

from tests.busy import PATIENCE_S, until
from tests.contract.engines import MODEL, ROOM, data_parallel, local, node, nodes, resolved
from tests.contract.engines import head as head_of
from tests.doubles.secret_file import SECRET, secret_file
from tests.engine.test_lora import adapter
from tests.engine.test_offloading import mixed
from tests.ports import free_port
from weft import __version__
from weft.core.config.ranks import LinkConfig, RanksConfig
from weft.core.errors import ConfigError, EngineDead
from weft.core.values.types import OutputKind, SamplingParams
from weft.engine.ipc.channel import Channel
from weft.engine.ipc.handshake import PeerError
from weft.engine.ipc.messages import Event
from weft.engine.nodes import head, link
from weft.engine.nodes.head import NodeListener, digest_of
from weft.engine.nodes.link import FromHead, Join, JoinRefused, LinkSocket, connect, difference

ENDLESS = SamplingParams(
    temperature=0.0, max_tokens=None, ignore_eos=True, output_kind=OutputKind.DELTA
)
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPT = {"prompt_token_ids": list(range(100, 150))}


@asynccontextmanager
async def listening(**options):
    """A head that waits for ranks 1 and 2; with how to reach it, and what rank 1 joins with."""
    place = LinkConfig("127.0.0.1", free_port(), secret_file())
    checkpoint, config = resolved(
        data_parallel_size=3, ranks=RanksConfig(start=0, num_local=1, link=place), **options
    )
    listener = NodeListener.open(config, checkpoint.tokenizer_files)
    ranks = RanksConfig(start=1, num_local=2, link=place, is_headless=True)
    theirs = msgspec.structs.replace(config, ranks=ranks, data_parallel_rank=1)
    try:
        yield listener, place, Join(theirs, digest_of(checkpoint.tokenizer_files))
    finally:
        listener.close()


async def join(place: LinkConfig, joining: Join, secret: bytes = SECRET) -> socket.socket:
    return await asyncio.to_thread(connect, place, secret, joining)


async def is_well(listener: NodeListener, place: LinkConfig, joining: Join) -> None:
    """Who should join still can."""
    with await join(place, joining):
        async with asyncio.timeout(PATIENCE_S):
            joined = await listener._next(1)
        assert joined.config == joining.config


HELLO = LinkSocket.magic + bytes(32)
HOSTILE = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(64),
    "another version": b"WEFTDPL0" + bytes(32),
    "half a hello": HELLO[:20],
    "no proof": HELLO,
    "a wrong proof": HELLO + bytes(32),
    "a huge frame": HELLO + b"\xff" * 100_000,
}


async def test_bytes_of_strangers_change_nothing():
    """Whatever they send, and however they leave."""
    async with listening() as (listener, place, joining):
        for sent in HOSTILE.values():
            with await asyncio.to_thread(socket.create_connection, (place.host, place.port)) as one:
                one.sendall(sent)
        await is_well(listener, place, joining)


async def test_many_strangers_at_once_keep_nobody_out():
    """More than are listened to at a time, none of whom says a word: those that came first go."""
    async with listening() as (listener, place, joining):
        strangers = [
            socket.create_connection((place.host, place.port))
            for _ in range(head.MAX_HANDSHAKES + 5)
        ]
        for stranger in strangers[:5]:
            assert await asyncio.to_thread(stranger.recv, 1) == b""
        await is_well(listener, place, joining)
        for stranger in strangers:
            stranger.close()


async def test_a_connection_without_a_thread_is_closed_and_the_next_is_tried(monkeypatch, caplog):
    """As without memory: the node connects again."""
    caplog.set_level(logging.INFO)
    async with listening() as (listener, place, joining):
        with monkeypatch.context() as patch:
            failing = Mock(side_effect=RuntimeError("can't start new thread"))
            patch.setattr(listener._threads, "submit", failing)
            with await asyncio.to_thread(socket.create_connection, (place.host, place.port)) as one:
                assert await asyncio.to_thread(one.recv, 1) == b""
        assert "could not join as a node: can't start new thread" in caplog.text
        await is_well(listener, place, joining)


@pytest.mark.parametrize("secret", [b"", b"another secret, just as long"])
async def test_who_does_not_know_the_secret_does_not_join(secret):
    """Nor hears anything of the head."""
    async with listening() as (listener, place, joining):
        with pytest.raises(PeerError, match="the secrets differ"):
            await join(place, joining, secret)
        await is_well(listener, place, joining)


def changed(joining: Join, part: str, **values) -> Join:
    config = joining.config
    if part:
        values = {part: msgspec.structs.replace(getattr(config, part), **values)}
    config = msgspec.structs.replace(config, **values)
    return msgspec.structs.replace(joining, config=config)


@pytest.mark.parametrize(
    ("part", "values", "words"),
    [
        ("model_config", {"dtype": "bfloat16"}, "model_config.dtype is 'bfloat16' there, and 'float32' here"),
        ("scheduler_config", {"max_num_seqs": 3}, "scheduler_config.max_num_seqs is 3 there"),
        ("cache_config", {"block_size": 32}, "cache_config.block_size is 32 there, and 16 here"),
        ("", {"data_parallel_size": 2}, "data_parallel_size is 2 there, and 3 here"),
        ("", {"data_parallel_rank": 0}, "rank 0 is not a rank of a node; these are 1, 2"),
        ("", {"data_parallel_rank": 7}, "rank 7 is not a rank of a node"),
        ("", {"data_parallel_rank": None}, "rank None is not a rank of a node"),
    ],
)  # fmt: skip
async def test_an_engine_that_would_answer_otherwise_is_refused_by_name(part, values, words):
    """For good: to try again is of no use."""
    async with listening() as (listener, place, joining):
        with pytest.raises(JoinRefused, match=words):
            await join(place, changed(joining, part, **values))
        with pytest.raises(JoinRefused, match="its tokenizer differs"):
            await join(place, msgspec.structs.replace(joining, tokenizer="0"))
        await is_well(listener, place, joining)


async def test_sizes_of_a_machine_may_differ():
    """Threads, blocks of the pool, where its files are."""
    async with listening() as (listener, place, joining):
        other = changed(joining, "cache_config", num_blocks=99)
        other = changed(other, "compute_config", num_threads=7)
        other = changed(other, "model_config", model="/elsewhere", packed_cache_bytes=0)
        assert difference(joining.config, other.config) is None
        await is_well(listener, place, other)


def greet_as(place: LinkConfig, *sent: object) -> None:
    """Somebody who knows the secret, and then says this; until the head hangs up."""
    with LinkSocket(socket.create_connection((place.host, place.port))) as peer:
        peer.prove_as_client(SECRET)
        for message in sent:
            peer.send(message)
        while True:
            peer._exactly(1)


@pytest.mark.parametrize(
    "sent", [("0.0.0",), (3,), (__version__, {"config": 1}), (__version__, "x" * 1000)]
)
async def test_who_knows_the_secret_and_says_something_else_is_hung_up_on(sent):
    """Another version before anything is read that it may write otherwise."""
    async with listening() as (listener, place, joining):
        with pytest.raises((PeerError, OSError)):
            await asyncio.to_thread(greet_as, place, *sent)
        await is_well(listener, place, joining)


async def test_a_rank_joins_once():
    """A second one may try again, and joins when the first has gone."""
    async with listening() as (listener, place, joining):
        with await join(place, joining):
            with pytest.raises(PeerError, match="rank 1 has joined already") as refused:
                await join(place, joining)
            assert not isinstance(refused.value, JoinRefused)
            joined = await listener._next(1)
            joined.channel.close()
        await is_well(listener, place, joining)


async def test_a_node_takes_no_frame_that_is_no_command():
    """Of a head that it trusts, too: no length is believed."""
    for frame in (
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x03\xc1\xc1\xc1",
        b"\x00\x00\x00\x02\x93\x01",
    ):
        ours, theirs = socket.socketpair()
        channel = await Channel.open(ours, FromHead)
        theirs.sendall(frame)
        with pytest.raises((msgspec.DecodeError, ValueError)):
            await channel.receive()
        channel.close()
        theirs.close()


def test_frames_of_both_ways_are_told_apart():
    """What link and engine say have tags of their own."""
    for kinds in (FromHead, link.FromNode, Event):
        msgspec.msgpack.Decoder(kinds)  # which refuses two of one tag


async def test_a_port_that_is_taken_is_refused_by_name():
    """At the start."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = LinkConfig("127.0.0.1", taken.getsockname()[1], secret_file())
        ranks = RanksConfig(start=0, num_local=1, link=place)
        checkpoint, config = resolved(data_parallel_size=2, ranks=ranks)
        with pytest.raises(ConfigError, match="--data-parallel-address: the head cannot listen"):
            NodeListener.open(config, checkpoint.tokenizer_files)


# -- with engines ---------------------------------------------------------------------------


def engines_of(number: int) -> list[psutil.Process]:
    """The engines' processes, first the head's own."""
    found = [
        each for each in psutil.Process().children() if "weft.engine.process" in each.cmdline()
    ]
    assert len(found) == number
    return found


async def answer(client, request_id: str, **options) -> list[int]:
    stream = client.generate(PROMPT, SHORT, request_id, **options)
    [*_, last] = [output async for output in stream]
    return list(last.outputs[0].token_ids)


async def test_an_engine_elsewhere_answers_as_one_alone():
    """Bit for bit; what the node's machine has is seen at the head."""
    place = LinkConfig("127.0.0.1", free_port(), secret_file())
    async with nodes(link=place) as client:
        here, there = [await answer(client, f"r{n}", data_parallel_rank=n) for n in (0, 1)]
        assert here == there
        loads = await client.get_loads()
        assert [load.data_parallel_rank for load in loads] == [0, 1]
        assert not client.is_degraded


async def follow(client, request_id: str, rank: int) -> tuple[list[int], BaseException | None]:
    """An answer that ends when something else does."""
    ids: list[int] = []
    stream = client.generate(PROMPT, ENDLESS, request_id, data_parallel_rank=rank)
    try:
        async with aclosing(stream) as outputs:
            async for output in outputs:
                ids += output.outputs[0].token_ids
    except EngineDead as error:
        return ids, error
    return ids, None


@pytest.mark.slow
async def test_an_engine_that_is_killed_elsewhere_is_taken_back():
    """Its requests go on here, the others notice nothing, and adapters and pauses are as they were."""
    async with nodes(**ROOM) as client:
        bystander = asyncio.create_task(follow(client, "here", 0))
        lost = [asyncio.create_task(follow(client, f"lost-{n}", 1)) for n in range(3)]
        await until(lambda: client._group.ranks[1].num_open == 3)
        [_, theirs] = engines_of(2)
        theirs.kill()
        await until(lambda: client._group.ranks[0].num_open == 4)
        assert client.is_degraded
        assert await answer(client, "meanwhile")
        await until(lambda: not client.is_degraded)
        assert await answer(client, "again", data_parallel_rank=1)
        assert not bystander.done()
        await client.abort(["here", *(f"lost-{n}" for n in range(3))])
        for _, error in await asyncio.gather(bystander, *lost):
            assert error is None


@pytest.mark.slow
async def test_what_all_are_told_one_that_joins_later_is_told_too(tmp_path):
    """Pause and adapters: it is brought to where the others are."""
    async with nodes(enable_lora=True) as client:
        request = adapter(tmp_path, "a")
        await client.add_lora(request)
        await client.pause_generation()
        engines_of(2)[1].kill()
        await until(lambda: client.is_degraded)
        await until(lambda: not client.is_degraded)
        assert await client._group.ranks[1].engine.is_paused()
        assert await client._group.ranks[1].engine.list_loras() == {request.lora_int_id}
        await client.resume_generation()
        assert await answer(client, "r", data_parallel_rank=1, lora_request=request)


async def answers_to_mixed(client, request) -> list[object]:
    """64 requests at once: seeds, several answers, log-probabilities and grammars, each third with an adapter."""
    await client.add_lora(request)

    async def one(number: int, prompt, params: SamplingParams) -> object:
        lora = None if number % 3 else request
        outputs = client.generate(prompt, params, f"r{number}", lora_request=lora)
        [*_, last] = [output async for output in outputs]
        return [(a.token_ids, a.logprobs, last.prompt_logprobs) for a in last.outputs]

    return await asyncio.gather(
        *(one(n, *given) for n, given in enumerate(zip(*mixed(64), strict=True)))
    )


@pytest.mark.slow
async def test_64_mixed_requests_are_the_same_bits_as_one_engine_alone(tmp_path):
    """Whether two engines are beside each other or one of them is elsewhere."""
    lora = adapter(tmp_path, "a")
    async with local(enable_lora=True) as alone:
        expected = await answers_to_mixed(alone, lora)
    for several in (data_parallel, nodes):
        async with several(enable_lora=True) as client:
            assert await answers_to_mixed(client, lora) == expected


@pytest.mark.slow
async def test_what_a_node_that_leaves_has_ends_as_it_would():
    """It gets no more, the head continues its requests, and another takes its place."""
    place = LinkConfig("127.0.0.1", free_port(), secret_file())
    async with node(place, **ROOM) as leaving, head_of(place, **ROOM) as client:
        params = msgspec.structs.replace(SHORT, max_tokens=400)
        stream = client.generate(PROMPT, params, "open", data_parallel_rank=1)
        await anext(stream)
        left = asyncio.create_task(leaving.leave(PATIENCE_S))
        await until(lambda: not client._group.ranks[1].is_live)
        with pytest.raises(EngineDead):
            await answer(client, "late", data_parallel_rank=1)
        [*_, last] = [output async for output in stream]
        assert last.outputs[0].finish_reason == "length"
        await left
        async with node(place, **ROOM):
            await until(lambda: not client.is_degraded)
            assert await answer(client, "new", data_parallel_rank=1)


@pytest.mark.slow
async def test_who_has_other_weights_is_let_go():
    """Though all else is alike; and the head waits for another."""
    place = LinkConfig("127.0.0.1", free_port(), secret_file())
    async with asyncio.TaskGroup() as group:
        begun = group.create_task(take_one(place))
        async with node(place, model=f"{MODEL}&seed=2") as other:
            await until(lambda: other._running is not None and other._running.done())
            assert "its weights" in str(other._running.exception())
        assert not begun.done()
        async with node(place):
            assert await begun


async def take_one(place: LinkConfig) -> list[int]:
    """An answer of the other rank, when it has come."""
    async with head_of(place) as client:
        return await answer(client, "r", data_parallel_rank=1)


@pytest.mark.slow
async def test_a_head_without_engines_has_those_of_its_nodes():
    """It computes nothing itself."""
    place = LinkConfig("127.0.0.1", free_port(), secret_file())
    async with node(place, num_local=2), head_of(place, num_local=0) as client:
        engines_of(2)
        first, second = [await answer(client, f"r{n}", data_parallel_rank=n) for n in (0, 1)]
        assert first == second


@pytest.mark.slow
async def test_a_head_that_comes_back_gets_its_engines_again():
    """Fresh ones: what the former had asked them for, nobody follows."""
    place = LinkConfig("127.0.0.1", free_port(), secret_file())
    async with node(place, **ROOM):
        async with head_of(place, **ROOM) as client:
            lost = asyncio.create_task(follow(client, "lost", 1))
            await until(lambda: client._group.ranks[1].num_open == 1)
        await lost
        async with head_of(place, **ROOM) as client:
            [_, load] = await client.get_loads()
            assert load.num_running == 0
            assert await answer(client, "r", data_parallel_rank=1)
