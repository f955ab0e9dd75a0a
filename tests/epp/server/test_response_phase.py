"""The response phase: what is learned of it, however its bytes are cut."""

import gzip
import json
import time

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.fake_director import FakeDirector
from tests.epp.server.messages import (
    CHAT,
    Stream,
    cut,
    grpc_headers,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    set_headers,
)
from weft.epp.decision.tickets import Ending
from weft.epp.request.parsers.payload import frame
from weft.epp.request.values import Usage
from weft.epp.server.ext_proc import STREAMED
from weft.pb.vllm_engine_pb2 import (
    EmbedResponse,
    GenerateComplete,
    GenerateRequest,
    GenerateResponse,
    GenerateStreamChunk,
)

CUTS = st.lists(st.integers(0, 100_000), max_size=30)
JSON_USAGE = (
    b'{"id":"x","model":"served","usage":{"prompt_tokens":9,"completion_tokens":4,'
    b'"prompt_tokens_details":{"cached_tokens":8}}}'
)
SSE = (
    b'data: {"model":"served","choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
    b': a comment\r\ndata: {"model": "served","choices":[{"delta":{"content":"\\"usage\\":{"}}]}\r\n\r\n'
    b'data: {"model":"served","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
    b"data: [DONE]\n\n"
)


def chunk(ids: list[int], counted: int) -> bytes:
    message = GenerateStreamChunk(token_ids=ids, prompt_tokens=10, completion_tokens=counted)
    return GenerateResponse(chunk=message).SerializeToString()


def complete(counted: int, index: int = 0) -> bytes:
    message = GenerateComplete(
        prompt_tokens=10, completion_tokens=counted, cached_tokens=6, index=index
    )
    return GenerateResponse(complete=message).SerializeToString()


async def followed(path: str = "/v1/chat/completions", **decision: object) -> Stream:
    """A stream whose HTTP request is on its way."""
    stream = Stream(FakeDirector(**({"tracks_response": True} | decision)))
    await stream.send(request_headers(path, accept_encoding="gzip"), request_body())
    assert not stream.exchange.is_done
    return stream


async def followed_call(method: str = "Generate") -> Stream:
    """The same of a call."""
    stream = Stream(FakeDirector(tracks_response=True))
    message = GenerateRequest(text="hi", stream=True)
    if method == "Embed":
        message = GenerateRequest()
        message.tokenized.input_ids.append(1)
    await stream.send(grpc_headers(method), request_body(frame(message.SerializeToString())))
    return stream


@given(places=CUTS)
async def test_usage_of_an_event_stream_survives_any_cut(places: list[int]):
    """Events are split over pieces; the bytes pass unchanged."""
    stream = await followed()
    await stream.send(response_headers(content_type="text/event-stream"))
    await stream.send(*(response_body(piece) for piece in cut(SSE, places)))
    await stream.send(response_body(b"", end=True))
    assert stream.response == SSE
    assert stream.director.usages == [Usage(num_prompt_tokens=9, num_completion_tokens=4)]
    assert stream.director.num_first_tokens == 1
    assert stream.director.endings == [Ending.NATURAL]
    assert stream.exchange.is_done


@given(places=CUTS)
async def test_a_whole_body_tells_its_usage(places: list[int]):
    """Whole or in pieces."""
    stream = await followed()
    pieces = cut(JSON_USAGE, places)
    await stream.send(response_headers(), *(response_body(piece) for piece in pieces[:-1]))
    await stream.send(response_body(pieces[-1], end=True))
    assert stream.director.usages == [
        Usage(num_prompt_tokens=9, num_completion_tokens=4, num_cached_tokens=8)
    ]


@given(places=CUTS, is_packed=st.booleans())
async def test_frames_split_and_joined_tell_the_same(places: list[int], is_packed: bool):
    """A frame over several pieces, several frames in one, compressed or not."""
    messages = [chunk([1], 1), chunk([2, 3], 2), chunk([4], 1), complete(4)]
    body = b"".join(_frame(message, is_packed) for message in messages)
    stream = await followed_call()
    encoding = "gzip" if is_packed else "identity"
    await stream.send(response_headers(content_type="application/grpc", grpc_encoding=encoding))
    await stream.send(*(response_body(piece) for piece in cut(body, places)))
    await stream.send(response_trailers(grpc_status="0"))
    assert stream.response == body
    assert stream.director.usages == [
        Usage(num_prompt_tokens=10, num_completion_tokens=4, num_cached_tokens=6)
    ]
    assert stream.director.num_first_tokens == 1
    assert stream.kinds[-1] == "response_trailers"
    assert stream.director.endings == [Ending.NATURAL]


def _frame(message: bytes, is_packed: bool) -> bytes:
    if not is_packed:
        return frame(message)
    packed = gzip.compress(message)
    return b"\1" + len(packed).to_bytes(4, "big") + packed


@pytest.mark.parametrize(
    "messages",
    [
        [chunk([1], 1), chunk([2], 1), chunk([3], 1), complete(0)],  # each counts its own
        [chunk([1], 1), chunk([2], 2), chunk([3], 3), complete(0)],  # each counts all so far
        [chunk([], 1), chunk([], 2), chunk([], 3)],  # counts without ids
        [chunk([1, 2], 2), complete(2), chunk([3], 1), complete(1)],  # two answers of one request
        [complete(3)],
    ],
)
async def test_tokens_are_counted_right_by_any_servers_convention(messages: list[bytes]):
    """Versions disagree on what a chunk counts; its ids decide."""
    stream = await followed_call()
    await stream.send(response_headers(content_type="application/grpc"))
    await stream.send(*(response_body(frame(message)) for message in messages))
    await stream.send(response_trailers(grpc_status="0"))
    assert stream.director.usages[0].num_completion_tokens == 3


async def test_an_embedding_tells_its_prompt():
    """Embed has another message."""
    stream = await followed_call("Embed")
    message = EmbedResponse(embedding=[0.5] * 3000, prompt_tokens=7, embedding_dim=3000)
    await stream.send(response_headers(content_type="application/grpc"))
    await stream.send(response_body(frame(message.SerializeToString())))
    await stream.send(response_trailers(grpc_status="0"))
    assert stream.director.usages[0].num_prompt_tokens == 7


@pytest.mark.parametrize(
    ("path", "events", "expected"),
    [
        (
            "/v1/messages",
            [
                {"type": "message_start", "message": {"usage": {
                    "input_tokens": 3, "cache_read_input_tokens": 20, "output_tokens": 1}}},
                {"type": "message_delta", "usage": {"output_tokens": 42}},
            ],
            Usage(num_prompt_tokens=23, num_completion_tokens=42, num_cached_tokens=20),
        ),
        (
            "/v1/responses",
            [
                {"type": "response.created", "response": {"usage": None}},
                {"type": "response.completed", "response": {"usage": {
                    "input_tokens": 5, "output_tokens": 6,
                    "input_tokens_details": {"cached_tokens": 4}}}},
            ],
            Usage(num_prompt_tokens=5, num_completion_tokens=6, num_cached_tokens=4),
        ),
        (
            "/v1/chat/completions",
            [{"usage": {"prompt_tokens": "5", "completion_tokens": "6",
                        "prompt_tokens_details": {"cached_tokens": "4"}}}],
            Usage(num_prompt_tokens=5, num_completion_tokens=6, num_cached_tokens=4),
        ),
        (
            "/generate",
            [
                {"meta_info": {"prompt_tokens": 5, "completion_tokens": 1, "cached_tokens": 2}},
                {"meta_info": {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 2}},
            ],
            Usage(num_prompt_tokens=5, num_completion_tokens=2, num_cached_tokens=2),
        ),
    ],
)  # fmt: skip
async def test_each_dialect_tells_usage_its_own_way(path: str, events: list, expected: Usage):
    """Merged where it comes in parts."""
    stream = Stream(FakeDirector(tracks_response=True))
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "input": "x", "text": "x"}
    await stream.send(request_headers(path), request_body(json.dumps(body).encode()))
    await stream.send(response_headers(content_type="text/event-stream; charset=utf-8"))
    for event in events:
        await stream.send(response_body(b"event: e\ndata: %s\n\n" % json.dumps(event).encode()))
    await stream.send(response_body(b"", end=True))
    assert stream.director.usages == [expected]


@given(places=CUTS, is_sse=st.booleans())
async def test_the_client_is_told_the_model_it_asked_for(places: list[int], is_sse: bool):
    """Even where the name is cut in two; nothing else changes."""
    body = SSE if is_sse else JSON_USAGE
    stream = await followed(rewritten_model="served", tracks_response=False)
    await stream.send(response_headers(content_type="text/event-stream" if is_sse else "x/json"))
    await stream.send(*(response_body(piece) for piece in cut(body, places)))
    await stream.send(response_body(b"", end=True))
    expected = body.replace(b'"model":"served"', b'"model":"m"')
    assert stream.response == expected.replace(b'"model": "served"', b'"model": "m"')


async def test_a_response_that_must_be_read_may_not_be_compressed():
    """So the client's offer does not reach the model server."""
    stream = await followed()
    assert "accept-encoding" in stream.removed
    plain = Stream()
    await plain.send(request_headers(accept_encoding="gzip"), request_body())
    assert "accept-encoding" not in plain.removed


async def test_headers_for_the_client_are_added():
    """The decision's, the director's, and the one that says the picker saw the response."""
    stream = await followed(tracks_response=False, response_headers={"x-session-token": "t"})
    stream.director.response_headers = {"x-more": "1"}
    await stream.send(response_headers(201))
    mutation = stream.answers[-1].response_headers.response.header_mutation
    assert set_headers(mutation) == {
        "x-went-into-resp-headers": "true", "x-session-token": "t", "x-more": "1",
    }  # fmt: skip
    assert stream.director.statuses == [201]


async def test_metadata_of_the_end_goes_with_the_last_message():
    """Access logs and other filters read it there."""
    stream = await followed()
    made = {"tokens": 13, "ok": True, "parts": ["a", {"b": None}]}
    stream.director.end_metadata = {"envoy.lb": made}
    await stream.send(response_headers(), response_body(b"x" * 100_000, end=True))
    told = [MessageToDict(one.dynamic_metadata) for one in stream.answers[-2:]]
    assert told == [{}, {"envoy.lb": {"tokens": 13.0, "ok": True, "parts": ["a", {"b": None}]}}]


@pytest.mark.parametrize(
    "messages",
    [
        (response_headers(503, end=True),),
        (response_headers(500), response_body(b"oops", end=True)),
        (response_headers(200, end=True, grpc_status="14"),),
        (response_headers(200), response_body(b""), response_trailers(grpc_status="13")),
    ],
)
async def test_failures_of_the_server_are_seen(messages):
    """As an HTTP status, or as a gRPC one, in trailers or in headers that end everything."""
    stream = await followed_call()
    await stream.send(*messages)
    assert stream.director.endings == [Ending.ERROR]
    assert stream.director.usages == []
    assert stream.exchange.is_done


async def test_a_client_that_leaves_is_reported_once():
    """Whatever counts requests in flight must hear of it."""
    stream = await followed()
    await stream.send(response_headers(), response_body(b"part"))
    stream.exchange.close()
    stream.exchange.close()
    assert stream.director.endings == [Ending.DISCONNECTED]


async def test_a_finished_response_is_not_abandoned():
    """The stream's end after the response's is no news."""
    stream = await followed()
    await stream.send(response_headers(), response_body(JSON_USAGE, end=True))
    stream.exchange.close()
    assert stream.director.endings == [Ending.NATURAL]


@given(places=CUTS)
async def test_events_may_be_parted_by_one_newline(places: list[int]):
    """As some servers write them: each line of data is an event, and the first is the first token."""
    stream = await followed()
    await stream.send(response_headers(content_type="text/event-stream"))
    body = SSE.replace(b"\r\n", b"\n").replace(b"\n\n", b"\n")
    await stream.send(response_body(body[:80]))
    assert stream.director.num_first_tokens == 1
    await stream.send(*(response_body(piece) for piece in cut(body[80:], places)))
    await stream.send(response_body(b"", end=True))
    assert stream.director.usages == [Usage(num_prompt_tokens=9, num_completion_tokens=4)]


async def kept(**decision: object) -> Stream:
    """A stream whose gateway keeps each piece of the response until it is answered."""
    message = request_headers()
    message.protocol_config.response_body_mode = STREAMED
    stream = Stream(FakeDirector(**({"tracks_response": True} | decision)))
    await stream.send(message, request_body())
    return stream


@given(places=CUTS)
async def test_pieces_that_the_gateway_keeps_are_answered_one_by_one(places: list[int]):
    """Without their bytes, which the gateway has."""
    stream = await kept()
    await stream.send(response_headers(content_type="text/event-stream"))
    pieces = cut(SSE, places)
    answers = await stream.send(*(response_body(piece) for piece in pieces))
    assert [one.response_body.response.HasField("body_mutation") for one in answers] == [
        False for _ in pieces
    ]
    await stream.send(response_body(b"", end=True))
    assert stream.director.usages == [Usage(num_prompt_tokens=9, num_completion_tokens=4)]
    assert stream.exchange.is_done


async def test_metadata_of_one_response_are_not_those_of_the_next():
    """Answers to pieces that stay unchanged are one shared message; the last answer, with metadata, is not."""
    stream = await kept()
    stream.director.end_metadata = {"envoy.lb": {"cost": 1.0}}
    await stream.send(response_headers())
    (last,) = await stream.send(response_body(JSON_USAGE, end=True))
    assert MessageToDict(last.dynamic_metadata) == {"envoy.lb": {"cost": 1.0}}
    other = await kept()
    await other.send(response_headers())
    (piece,) = await other.send(response_body(b"{"))
    assert not piece.HasField("dynamic_metadata")


@given(places=CUTS)
async def test_the_model_is_renamed_in_pieces_that_the_gateway_keeps(places: list[int]):
    """Each answer replaces its piece, by fewer bytes where a name may go on in the next."""
    stream = await kept(rewritten_model="served")
    await stream.send(response_headers(content_type="text/event-stream"))
    *pieces, last = cut(SSE, places)
    answers = await stream.send(*(response_body(piece) for piece in pieces))
    answers += await stream.send(response_body(last, end=True))
    body = b"".join(one.response_body.response.body_mutation.body for one in answers)
    assert len(answers) == len(pieces) + 1
    assert body == SSE.replace(b'"served"', b'"m"')


async def test_a_picker_that_stops_leaves_only_where_nothing_is_lost():
    """Not while it holds half a name, nor where the gateway has given bytes away."""
    stream = await kept(rewritten_model="served")
    await stream.send(response_headers(content_type="text/event-stream"))
    assert stream.exchange.may_stop
    await stream.send(response_body(b'data: {"model":"ser'))
    assert not stream.exchange.may_stop
    await stream.send(response_body(b'ved"}'))
    assert stream.exchange.may_stop
    stream.exchange.shut_down()
    assert stream.director.endings == [Ending.UNFOLLOWED]
    other = await followed()
    assert not other.exchange.may_stop


async def test_a_gateway_that_keeps_responses_to_itself_is_left_alone():
    """If bodies of responses are not streamed to us, there is nothing to stay for."""
    message = request_headers()
    message.protocol_config.response_body_mode = 0
    stream = Stream(FakeDirector(tracks_response=True))
    await stream.send(message, request_body())
    assert stream.exchange.is_done
    assert stream.director.endings == [Ending.NATURAL]


@given(garbage=st.binary(max_size=300), places=CUTS)
async def test_garbage_passes_unchanged(garbage: bytes, places: list[int]):
    """A reader only looks; it never fails."""
    for start in (followed, followed_call):
        stream = await start()
        await stream.send(response_headers(content_type="text/event-stream"))
        await stream.send(*(response_body(piece) for piece in cut(garbage, places)))
        await stream.send(response_body(b"", end=True))
        assert stream.response == garbage
        assert stream.director.endings == [Ending.NATURAL]


async def test_a_body_without_usage_tells_none():
    """Nothing is made up."""
    stream = await followed()
    await stream.send(response_headers(), response_body(CHAT, end=True))
    assert stream.director.usages == []


@pytest.mark.parametrize(
    ("content_type", "head"),
    [("text/event-stream", b"data: "), ("application/grpc", b"\0" + (2**21).to_bytes(4, "big"))],
)
async def test_a_long_piece_of_a_response_costs_its_length(content_type: str, head: bytes):
    """Each of its bytes was copied once for every piece it came in: a long line took a minute."""

    async def seconds(num_bytes: int) -> float:
        is_grpc = content_type == "application/grpc"
        stream = await (followed_call() if is_grpc else followed())
        await stream.send(response_headers(content_type=content_type), response_body(head))
        started = time.thread_time()
        for _ in range(num_bytes // 64):
            stream.exchange._response._reader.feed(b"x" * 64)  # type: ignore[union-attr]
        return time.thread_time() - started

    small = min([await seconds(2**16) for _ in range(3)])
    large = min([await seconds(2**20) for _ in range(3)])
    assert large < 16 * 6 * small
