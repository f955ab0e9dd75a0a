"""Large bodies, whatever is in them: nobody else waits for them, and they arrive as they were sent."""

import asyncio
import gzip
import json
import random
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.doubles.fake_director import FakeDirector
from tests.doubles.loop_probe import check_pauses
from tests.epp.pools import Bench, bench, pool_of
from tests.epp.server.messages import (
    Stream,
    grpc_headers,
    request_body,
    request_headers,
    response_headers,
)
from tests.slow import slow_but
from weft.epp.request.values import Refused
from weft.epp.request.vllm import VLLM
from weft.epp.server.limits import PickerLimits
from weft.epp.server.streams.stream import ProtocolError
from weft.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from weft.pb.vllm_engine_pb2 import GenerateRequest, MultimodalInputs, TokenizedInput

MIB = 2**20
# A pause that the body makes comes each time; one that the machine makes, finding memory, does not.
PIECE = 2**16
CONFIG = """\
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
- {type: precise-prefix-cache-producer, name: p, parameters: {speculativeIndexing: true}}
- {type: prefix-cache-scorer, name: q, parameters: {prefixMatchInfoProducerName: p}}
"""
MAX_VALUES = 8000  # about as many are read at once
Make = Callable[..., bytes]


def repeated(head: bytes, item: bytes, tail: bytes) -> Make:
    """A body of about so many bytes, of one item over and over, at most so many times."""

    def make(num_bytes: int, most: int = 10**9) -> bytes:
        count = min(most, (num_bytes - len(head) - len(tail)) // (len(item) + 1))
        return head + b",".join([item] * count) + tail

    return make


def filled(head: bytes, text: bytes, tail: bytes) -> Make:
    """A body of so many bytes, most of them one string."""
    return lambda num_bytes, _=0: head + text * ((num_bytes - len(head + tail)) // len(text)) + tail


def ids(num_bytes: int, most: int = 10**9) -> bytes:
    """As most write them."""
    some = [b"%d" % random.randrange(2**17) for _ in range(min(most, 100_000))]
    body = b",".join(some)
    times = 1 if most < 100_000 else num_bytes // len(body)
    return b'{"model":"m","prompt":[' + b",".join([body] * times) + b"]}"


def length_delimited(number: int, value: bytes) -> bytes:
    """A field of a message, as protobuf writes it: of a list of millions that takes seconds."""
    head, size = bytes((number << 3 | 2,)), len(value)
    while size > 127:
        head += bytes((size & 127 | 128,))
        size >>= 7
    return head + bytes((size,)) + value


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def frames(num_bytes: int) -> bytes:
    ids = length_delimited(TokenizedInput.INPUT_IDS_FIELD_NUMBER, b"\7" * num_bytes)
    return framed(length_delimited(GenerateRequest.TOKENIZED_FIELD_NUMBER, ids))


def hashes(num_bytes: int) -> bytes:
    one = length_delimited(MultimodalInputs.MM_HASHES_FIELD_NUMBER, b"a")
    media = length_delimited(GenerateRequest.MM_INPUTS_FIELD_NUMBER, one * (num_bytes // 3))
    return framed(GenerateRequest(text="hi").SerializeToString() + media)


def packed(num_bytes: int) -> bytes:
    return gzip.compress(repeated(b'{"model":"m","prompt":[', b"[1]", b"]}")(num_bytes), 1)


VERTEX = "/google.cloud.aiplatform.v1.PredictionService/ChatCompletions"
PROMPT = b'{"model":"m","prompt":'
CHAT = b'{"model":"m","messages":['
SHAPES = {
    "ids": ids,
    "lists": repeated(PROMPT + b"[", b"[1]", b"]}"),
    "texts": repeated(PROMPT + b"[", b'"a"', b"]}"),
    "text": filled(PROMPT + b'"', b"word ", b'"}'),
    "keys": repeated(b'{"model":"m","prompt":"hi",', b'"key":1', b"}"),
    "messages": repeated(CHAT, b'{"role":"user"}', b"]}"),
    "parts": repeated(CHAT + b'{"content":[', b"{}", b"]}]}"),
    "salt": filled(b'{"model":"m","prompt":"hi","cache_salt":"', b"s", b'"}'),
    "model": filled(b'{"prompt":"hi","model":"', b"m", b'"}'),
    "empty lists": repeated(b'{"model":"m","prompt":"hi","x":[', b"[]", b"]}"),
    "no JSON": repeated(CHAT, b"[", b""),
}
GRPC_SHAPES = {"ids": frames, "hashes": hashes}


def wide(head: bytes, tail: bytes) -> Make:
    """One text, each of whose characters takes four bytes in memory."""
    return filled(head + "\U0001f600".encode(), b"a", tail)


def keys(num_bytes: int, _: int = 0) -> bytes:
    """No two of them alike."""
    some = b"".join(b',"#%04x":1' % i for i in range(2**16))
    all_of_them = (some.replace(b"#", b"%03x" % i) for i in range(num_bytes // (12 * 2**16)))
    return b'{"model":"m"' + b"".join(all_of_them) + b"}"


# Bodies that took many times their length: path, body, and whether it is read all the same.
GREEDY: dict[str, tuple[str, Make, bool]] = {
    "messages": ("/v1/chat/completions", repeated(CHAT, b'{"role":"user"}', b"]}"), False),
    "parts": ("/v1/chat/completions", repeated(CHAT + b'{"content":[', b"{}", b"]}]}"), False),
    "numbers": ("/v1/chat/completions", repeated(CHAT + b'{"content":[', b"1", b"]}]}"), False),
    "blocks": ("/v1/messages", repeated(b'{"messages":[{}],"system":[', b"{}", b"]}"), False),
    "turns": ("/v1/messages", repeated(b'{"messages":[', b"{}", b"]}"), False),
    "items": ("/v1/responses", repeated(b'{"input":[', b"{}", b"]}"), False),
    "hashes": (
        "/inference/v1/generate",
        repeated(b'{"token_ids":[1],"features":{"mm_hashes":{"a":[', b'""', b"]}}}"),
        False,
    ),
    "salts": ("/generate", repeated(b'{"text":"a","extra_key":[', b'"a"', b"]}"), False),
    "sampling": ("/generate", repeated(b'{"text":"a","sampling_params":[', b"{}", b"]}"), False),
    "salt": ("/v1/completions", wide(b'{"prompt":"a","cache_salt":"', b'"}'), False),
    "text": ("/v1/completions", wide(PROMPT + b'"', b'"}'), True),
    "texts": ("/v1/completions", wide(PROMPT + b'["a","', b'"]}'), True),
    "content": ("/v1/chat/completions", wide(CHAT + b'{"content":"', b'"}]}'), True),
    "part": ("/v1/chat/completions", wide(CHAT + b'{"content":[{"text":"', b'"}]}]}'), True),
    "ids": ("/v1/completions", ids, True),
}


@asynccontextmanager
async def stream(made: Bench) -> AsyncIterator[Stream]:
    """A stream to this director; it leaves no process behind."""
    opened = Stream(made.director)  # type: ignore[arg-type]  # a real one
    try:
        yield opened
    finally:
        await opened.reader.close()


async def answers_to(messages: list[ProcessingRequest]) -> list[ProcessingResponse]:
    """What is answered to this request by the picker of a new pool."""
    made = bench(CONFIG, pool_of(3))
    answers: list[ProcessingResponse] = []
    async with stream(made) as one:
        for message in messages:
            for answer in await one.exchange.receive(message):
                answers.append(answer)
                await asyncio.sleep(0)  # as the server does when it writes one
            await asyncio.sleep(0)
    return answers


def sent_on(answers: list[ProcessingResponse]) -> bytes:
    return b"".join(
        each.request_body.response.body_mutation.streamed_response.body for each in answers
    )


async def check(head: ProcessingRequest, body: bytes) -> None:
    """Nobody waits longer than allowed; what is routed arrives whole."""
    pieces = [request_body(body[i : i + PIECE], end=False) for i in range(0, len(body), PIECE)]
    answers = await check_pauses(lambda: answers_to([head, *pieces, request_body(b"")]))
    if not answers[-1].HasField("immediate_response"):
        assert sent_on(answers) == body
    else:
        assert answers[-1].immediate_response.status.code in {400, 413}


def path_of(name: str) -> str:
    return "/v1/chat/completions" if name in {"messages", "parts", "no JSON"} else "/v1/completions"


@pytest.mark.parametrize("name", ["ids", "lists", "messages"])
async def test_no_body_holds_up_other_requests(name: str):
    """Reading sixteen megabytes of them takes up to seconds."""
    await check(request_headers(path_of(name)), SHAPES[name](16 * MIB))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
async def test_not_even_the_largest_body_holds_up_other_requests(name: str):
    """Sixty megabytes."""
    await check(request_headers(path_of(name)), SHAPES[name](60 * MIB))


@pytest.mark.parametrize("name", SHAPES)
async def test_bodies_that_are_read_at_once_are_small_enough_for_it(name: str):
    """Just below the bounds beyond which they are read apart."""
    await check(request_headers(path_of(name)), SHAPES[name](2 * MIB - 100, MAX_VALUES))


@pytest.mark.parametrize("name", GRPC_SHAPES)
@pytest.mark.parametrize(
    "num_bytes", [250_000, 4 * MIB, pytest.param(60 * MIB, marks=pytest.mark.slow)]
)
async def test_no_message_holds_up_other_requests(name: str, num_bytes: int):
    """Of gRPC as well."""
    await check(grpc_headers(), GRPC_SHAPES[name](num_bytes))


async def test_a_compressed_body_holds_up_nobody():
    """However small it is on the wire."""
    await check(request_headers("/v1/completions", content_encoding="gzip"), packed(32 * MIB))


@pytest.mark.parametrize("name", slow_but({"messages", "parts"}, SHAPES))
async def test_a_body_of_two_kilobytes_that_unpacks_to_two_megabytes_holds_up_nobody(name: str):
    """Its parts are counted when it is unpacked."""
    body = gzip.compress(SHAPES[name](2 * MIB))
    await check(request_headers(path_of(name), content_encoding="gzip"), body)


@pytest.mark.parametrize("name", GRPC_SHAPES)
async def test_a_compressed_message_holds_up_nobody(name: str):
    """Its parts are counted when it is unpacked, too."""
    body = gzip.compress(GRPC_SHAPES[name](2 * MIB)[5:])
    frame = b"\1" + len(body).to_bytes(4, "big") + body
    await check(grpc_headers(grpc_encoding="gzip"), frame)


async def test_fields_of_a_prediction_request_are_bounded():
    """They are read one by one."""
    body = framed(b"\x0a\0" * 100_000)
    await check(request_headers(VERTEX, content_type="application/grpc"), body)


async def test_a_short_body_waits_for_no_long_one():
    """The two are read in processes of their own."""
    one = Stream()
    long = one.call("/v1/completions", SHAPES["texts"](3 * MIB))
    await one.reader.read(*long)
    one.reader._long._process.send_signal(signal.SIGSTOP)
    waiting = asyncio.create_task(one.reader.read(*long))
    short = await one.reader.read(*one.call("/v1/completions", SHAPES["lists"](MIB)))
    assert short.model == "m"
    assert not waiting.done()
    one.reader._long._process.send_signal(signal.SIGCONT)
    assert (await waiting).prompts[0].text == "a"
    await one.reader.close()


async def test_empty_members_hold_up_nobody():
    """Sixteen megabytes of gzip's empty members took minutes."""
    body = gzip.compress(b"") * (16 * MIB // 20)
    await check(request_headers("/v1/completions", content_encoding="gzip"), body)
    frame = b"\1" + len(body).to_bytes(4, "big") + body
    await check(grpc_headers(grpc_encoding="gzip"), frame)


async def test_a_large_request_is_understood_as_a_small_one_is():
    """Model, count of tokens, prefix: where it was read changes nothing."""
    made = bench(CONFIG, pool_of(3))
    token_ids = [random.randrange(2**17) for _ in range(400_000)]
    body = json.dumps({"model": "m", "prompt": token_ids, "max_tokens": 5}).encode()
    async with stream(made) as one, stream(made) as again:
        await one.send(request_headers("/v1/completions", x_request_id="a"), request_body(body))
        await again.send(request_headers("/v1/completions", x_request_id="b"), request_body(body))
    first, second = made.director.decisions.get("a"), made.director.decisions.get("b")
    assert (first.model, first.num_prompt_tokens) == ("m", 400_000)
    assert first.endpoints == second.endpoints
    assert second.cached_tokens["approx-prefix-cache-producer"] == {first.endpoints[0]: 131_072}
    assert second.cached_tokens["p"] == {first.endpoints[0]: 262_144}


async def test_a_large_body_gets_another_model_too():
    """It is written into the body where that is read, and the rest keeps its bytes."""
    body = SHAPES["lists"](3 * MIB)
    made = bench(CONFIG, pool_of(3), default_model="served")
    nameless = body.replace(b'"model":"m",', b"", 1)
    async with stream(made) as one:
        await one.send(request_headers("/v1/completions"), request_body(nameless))
        assert one.body == nameless[:-1] + b',"model":"served"}'


async def test_what_cannot_be_read_apart_is_refused_with_its_sentence():
    """The same sentence as if it was read at once."""
    made = bench(CONFIG, pool_of(3))
    async with stream(made) as one:
        await one.send(request_headers("/v1/completions"), request_body(b'{"a":' + b"[" * 3 * MIB))
        assert one.refusal.status.code == 400
        assert b"nested too deeply" in one.refusal.body


async def test_the_process_that_reads_may_die():
    """The next large body starts another."""
    made = bench(CONFIG, pool_of(3))
    body = SHAPES["lists"](3 * MIB)
    async with stream(made) as one:
        assert await one.reader.read(*one.call("/v1/completions", body))
        process = one.reader._long._process
        process.kill()
        await process.wait()
        assert await one.reader.read(*one.call("/v1/completions", body))
    assert one.reader._long._process is None


async def test_a_client_that_leaves_while_its_body_is_read_leaves_nothing():
    """Nor does who comes next get an answer that was meant for it."""
    made = bench(CONFIG, pool_of(3))
    lists, texts = SHAPES["lists"](3 * MIB), SHAPES["texts"](3 * MIB)
    async with stream(made) as one:
        for _ in range(3):
            left = asyncio.create_task(one.reader.read(*one.call("/v1/completions", lists)))
            await asyncio.sleep(0)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            found = await one.reader.read(*one.call("/v1/completions", texts))
            assert found.prompts[0].text == "a"


async def test_a_body_beyond_the_bound_of_what_it_unpacks_to_is_refused():
    """Where it is read does not matter."""
    small = Stream(limits=PickerLimits(max_body_bytes=4 * MIB))
    try:
        await small.send(
            request_headers("/v1/completions", content_encoding="gzip"),
            request_body(gzip.compress(b" " * 5 * MIB)),
        )
        assert small.refusal.status.code == 413
        assert b"unpacks to more than 4194304 bytes" in small.refusal.body
    finally:
        await small.reader.close()


async def read_peak(path: str, body: bytes, *, model: str | None = None) -> tuple[int, bool]:
    """Bytes that the process held at its most, and whether the body was read."""
    one = Stream()
    parser, call, pieces = one.call(path, body)
    status = 200
    try:
        if model is None:
            await one.reader.read(parser, call, pieces)
        else:
            await one.reader.renamed(parser, call, pieces, model)
    except Refused as refused:
        status = refused.status
    assert status in {200, 413}
    (process,) = filter(None, (one.reader._short._process, one.reader._long._process))
    peak = peak_bytes(process.pid)
    await one.reader.close()
    return peak, status == 200


def peak_bytes(pid: int) -> int:
    """What a process held at its most."""
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(peak) * 1024


FEW = {"messages", "parts", "text"}


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in GREEDY]
)
async def test_reading_a_body_takes_at_most_four_times_the_largest(name: str):
    """Whatever is in it. Of a long text only the beginning is decoded, and lists of parts are counted before."""
    path, make, is_read = GREEDY[name]
    peak, was_read = await read_peak(path, make(60 * MIB))
    assert peak < 4 * PickerLimits().max_body_bytes
    assert was_read == is_read


@pytest.mark.parametrize("name", GRPC_SHAPES)
async def test_reading_a_message_takes_at_most_four_times_the_largest(name: str):
    """Its strings are counted before; of ids nobody sends so many."""
    peak, was_read = await read_peak(f"/{VLLM.service}/Generate", GRPC_SHAPES[name](60 * MIB))
    assert peak < 4 * PickerLimits().max_body_bytes
    assert not was_read


async def test_a_body_of_very_many_keys_gets_no_other_model():
    """Each would be an object; in a body that is only read, they are passed over."""
    peak, was_read = await read_peak("/v1/completions", keys(60 * MIB), model="other")
    assert peak < 4 * PickerLimits().max_body_bytes
    assert not was_read


async def test_a_second_empty_end_of_a_body_is_passed_over():
    """Envoy 1.35 to 1.37 may end a body larger than 1 MB twice; the response is followed on."""
    stream = Stream(FakeDirector(tracks_response=True))
    await stream.send(request_headers(), request_body())
    assert not await stream.send(request_body(b"", end=True), request_body(b"", end=True))
    assert not stream.exchange.is_done
    answers = await stream.send(response_headers())
    assert [answer.WhichOneof("response") for answer in answers] == ["response_headers"]
    with pytest.raises(ProtocolError, match="out of order"):
        await stream.send(request_body(b"more", end=True))
