"""The request phase as lists of messages: every order and cut that a gateway may send."""

import gzip
import math
import zlib

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from tests.busy import PATIENCE_S
from tests.doubles.fake_director import FakeDirector
from tests.epp.server.messages import (
    CHAT,
    Stream,
    cut,
    grpc_headers,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    set_headers,
    streamed,
)
from weft.epp.decision.tickets import Decision, Ending
from weft.epp.request.parsers.payload import frame
from weft.epp.request.values import Drop, Refused
from weft.epp.server.limits import PickerLimits
from weft.epp.server.streams.stream import ProtocolError
from weft.pb.ext_proc_pb2 import BodySendMode
from weft.pb.vllm_engine_pb2 import GenerateRequest, TokenizedInput

DESTINATION = "x-gateway-destination-endpoint"


async def test_a_request_goes_where_the_director_says():
    """In a header and in dynamic metadata, the same in both; the body follows; the stream is done."""
    stream = Stream()
    await stream.send(request_headers(), request_body())
    assert stream.kinds == ["request_headers", "request_body"]
    assert stream.head[DESTINATION] == "10.0.0.1:8000"
    metadata = MessageToDict(stream.answers[0].dynamic_metadata)
    assert metadata == {"envoy.lb": {DESTINATION: "10.0.0.1:8000"}}
    assert stream.body == CHAT
    assert stream.exchange.is_done


async def test_headers_alone_are_answered_by_nothing():
    """The destination depends on the body."""
    stream = Stream()
    assert await stream.send(request_headers()) == []
    assert await stream.send(request_body(CHAT[:10], end=False)) == []


@given(places=st.lists(st.integers(0, 10_000), max_size=12), has_empty_end=st.booleans())
async def test_cuts_do_not_matter(places: list[int], has_empty_end: bool):
    """However the body is cut, with an empty last piece or without, the same is decided and sent."""
    stream = Stream()
    pieces = cut(CHAT, places) + [b""] * has_empty_end
    messages = [request_body(piece, end=False) for piece in pieces[:-1]]
    await stream.send(request_headers(), *messages, request_body(pieces[-1]))
    assert stream.kinds == ["request_headers", "request_body"]
    assert stream.body == CHAT
    assert stream.director.requests[0].prompts[0].text == "userHello"
    assert stream.held.num_bytes == 0


@given(size=st.integers(0, 400_000))
async def test_pieces_are_small_and_only_the_last_ends_the_body(size: int):
    """At most 62,000 bytes each, whatever the body's size."""
    stream = Stream()
    body = b'{"model":"m","prompt":"%s"}' % (b"x" * size)
    await stream.send(request_headers("/v1/completions"), request_body(body))
    pieces = [streamed(answer.request_body) for answer in stream.answers[1:]]
    assert stream.body == body
    assert max(len(piece.body) for piece in pieces) <= 62_000
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [True]


async def test_trailers_end_the_body():
    """A request with trailers has no piece that ends it; they are answered last."""
    stream = Stream()
    await stream.send(request_headers(), request_body(end=False), request_trailers())
    assert stream.kinds == ["request_headers", "request_body", "request_trailers"]
    assert not streamed(stream.answers[1].request_body).end_of_stream
    assert stream.exchange.is_done


async def test_a_get_goes_anywhere_at_once():
    """Nothing to schedule by: headers that end the request are answered by any endpoint."""
    stream = Stream()
    await stream.send(request_headers("/v1/models", method="GET", end=True))
    assert stream.head[DESTINATION] == "10.0.0.1:8000"
    assert (stream.director.num_any, stream.director.requests) == (1, [])
    assert stream.exchange.is_done


async def test_other_calls_of_the_service_are_passed_through():
    """HealthCheck and the like have no prompt, and streams of them may never end: no waiting."""
    stream = Stream()
    await stream.send(grpc_headers("SubscribeKvEvents"))
    assert stream.kinds == ["request_headers"]
    await stream.send(request_body(b"\0\0\0", end=False), request_body(b"\0\0"))
    assert stream.body == b"\0\0\0\0\0"
    assert stream.director.num_any == 1
    assert stream.exchange.is_done


async def test_an_unclaimed_path_is_scheduled_without_its_body():
    """The fallback routes by load; the body, however long, is not held."""
    stream = Stream(limits=PickerLimits(max_body_bytes=10))
    await stream.send(request_headers("/tokenize"), request_body(b"x" * 1000))
    assert stream.body == b"x" * 1000
    assert [request.parser for request in stream.director.requests] == ["passthrough-parser"]


async def test_an_unclaimed_path_without_fallback_is_refused():
    """An explicit list of parsers has no fallback."""
    stream = Stream(parsers=("openai-parser",))
    await stream.send(request_headers("/tokenize"))
    assert stream.refusal.status.code == 400
    assert b"no parser claims the path /tokenize" in stream.refusal.body


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (None, None),
        ([], ()),
        (["10.0.0.1:8000", "10.0.0.2"], ("10.0.0.1:8000", "10.0.0.2")),
        ("10.0.0.1:8000, [::1]:9", ("10.0.0.1:8000", "[::1]:9")),
    ],
)
async def test_the_subset_hint_reaches_the_director(hint: object, expected: object):
    """None is the whole pool, and an empty list nobody: not the same."""
    stream = Stream(FakeDirector(endpoints=("10.0.0.1:8000",)))
    await stream.send(request_headers(subset=hint), request_body())  # type: ignore[arg-type]
    assert stream.director.subsets == [expected]


async def test_no_endpoint_is_503_with_its_reason():
    """Batch gateways read the header."""
    stream = Stream(FakeDirector(endpoints=()))
    await stream.send(request_headers(), request_body())
    assert stream.refusal.status.code == 503
    headers = set_headers(stream.refusal.headers)
    assert headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
    assert stream.refusal.body == b"inference error: ServiceUnavailable - no endpoint is ready"
    assert not stream.refusal.HasField("grpc_status")


@pytest.mark.parametrize(
    ("status", "grpc_status"), [(400, 3), (412, 9), (413, 8), (429, 8), (500, 13), (503, 14)]
)
async def test_a_grpc_client_gets_a_grpc_status(status: int, grpc_status: int):
    """RESOURCE_EXHAUSTED, UNAVAILABLE, ... instead of what a gateway makes of an HTTP status."""
    director = FakeDirector()
    director.refusal = Refused(status, "no", Drop.SATURATED)
    stream = Stream(director)
    message = frame(GenerateRequest(text="hi").SerializeToString())
    await stream.send(grpc_headers(), request_body(message))
    assert stream.refusal.status.code == status
    assert stream.refusal.grpc_status.status == grpc_status


async def test_control_headers_do_not_reach_the_model_server():
    """What a client sent to steer the picker, or to speak for it, ends here."""
    stream = Stream()
    await stream.send(
        request_headers(
            x_gateway_destination_endpoint="6.6.6.6:6",
            x_gateway_inference_objective="o",
            x_llm_d_inference_fairness_id="f",
            x_prefiller_host_port="6.6.6.6:6",
            x_encoder_hosts_ports="6.6.6.6:6",
            x_data_parallel_host_port="6.6.6.6:6",
            x_kv_cache_source_host_port="6.6.6.6:6",
            x_llm_d_request_dropped_reason="fun",
            x_slo_ttft_ms="5",
            epp_profile="p",
            authorization="Bearer k",
            x_request_id="mine",
        ),
        request_body(),
    )
    assert set(stream.removed) == {
        "x-gateway-inference-objective", "x-llm-d-inference-fairness-id", "x-prefiller-host-port",
        "x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port",
        "x-llm-d-request-dropped-reason", "x-slo-ttft-ms", "epp-profile",
    }  # fmt: skip
    assert stream.head == {DESTINATION: "10.0.0.1:8000"}  # overwritten
    seen = stream.director.requests[0]
    assert seen.headers["x-llm-d-inference-fairness-id"] == "f"
    assert seen.request_id == "mine"


async def test_the_directors_headers_are_set_even_if_the_client_sent_them():
    """They are the picker's own, not the client's."""
    director = FakeDirector(set_headers={"x-prefiller-host-port": "10.0.0.9:1"})
    stream = Stream(director)
    await stream.send(request_headers(x_prefiller_host_port="6.6.6.6:6"), request_body())
    assert stream.head["x-prefiller-host-port"] == "10.0.0.9:1"
    assert "x-prefiller-host-port" not in stream.removed


async def test_a_request_without_id_gets_one():
    """It is the key of all that is kept of a request."""
    stream = Stream()
    await stream.send(request_headers(), request_body())
    assert stream.head["x-request-id"] == stream.director.requests[0].request_id != ""


async def test_another_model_is_written_into_the_body_and_nothing_else_changes():
    """Numbers keep their digits, members their order."""
    body = b'{"temperature":1.10,"model":"asked","messages":[{"role":"user","content":"x"}]}'
    stream = Stream(FakeDirector(rewritten_model="served"))
    await stream.send(request_headers(), request_body(body))
    assert stream.body == body.replace(b"asked", b"served")


async def test_a_model_is_filled_in_where_none_was_named():
    """And the response is left as it is: who named none is told which it was."""
    body = b'{"messages":[{"role":"user","content":"x"}]}'
    stream = Stream(FakeDirector(rewritten_model="served"))
    await stream.send(request_headers(), request_body(body))
    assert stream.body == body[:-1] + b',"model":"served"}'
    assert stream.exchange.is_done


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1/chat/completions//?a=b/"])
async def test_a_slash_at_the_end_is_the_same_path(path: str):
    """The model server says whether it likes that; the prompt is routed by its prefix."""
    stream = Stream()
    await stream.send(request_headers(path), request_body())
    assert stream.director.requests[0].prompts[0].text == "userHello"


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/chat/completions"])
async def test_a_body_that_is_no_json_and_says_so_goes_anywhere(path: str):
    """It is the server's to refuse, in its own words."""
    stream = Stream()
    headers = request_headers(path, content_type="multipart/form-data; boundary=x")
    await stream.send(headers, request_body(b"--x"))
    assert (stream.director.num_any, stream.body) == (1, b"--x")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/problem+json"])
async def test_a_body_that_says_it_is_json_must_be(kind: str):
    """Else nobody would learn that it was not."""
    stream = Stream()
    await stream.send(request_headers(content_type=kind), request_body(b"--x"))
    assert stream.refusal.status.code == 400


async def test_a_body_of_any_name_is_read_if_it_is_json():
    """As curl sends it without a header of its own."""
    stream = Stream()
    kind = "application/x-www-form-urlencoded"
    await stream.send(request_headers(content_type=kind), request_body())
    assert stream.director.requests[0].model == "m"


async def test_header_names_are_lower_case_whatever_the_gateways():
    """Some gateways keep the client's spelling of HTTP/1."""
    stream = Stream()
    headers = request_headers(X_Request_Id="r1", X_Gateway_Destination_Endpoint_Subset="x")
    await stream.send(headers, request_body())
    (asked,) = stream.director.requests
    assert (asked.request_id, asked.headers["x-request-id"]) == ("r1", "r1")
    assert stream.removed == ["x-gateway-destination-endpoint-subset"]


async def test_several_endpoints_are_sent_as_a_list():
    """Only where a picker was told to name more than one."""
    director = FakeDirector()
    director.choose = lambda request: Decision(endpoints=("a:1", "b:2"))
    stream = Stream(director)
    await stream.send(request_headers(), request_body())
    assert stream.head[DESTINATION] == "a:1,b:2"


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_compressed_frames_are_read_and_go_on_as_they_came(encoding: str):
    """The prompt is inside; the model server gets the very bytes."""
    tokenized = TokenizedInput(input_ids=list(range(1000)))
    message = GenerateRequest(tokenized=tokenized, stream=True).SerializeToString()
    packed = gzip.compress(message, mtime=0) if encoding == "gzip" else message
    body = b"\1" + len(packed).to_bytes(4, "big") + packed
    stream = Stream()
    await stream.send(grpc_headers(grpc_encoding=encoding), request_body(body))
    assert stream.director.requests[0].prompts[0].token_ids == tuple(range(1000))
    assert stream.body == body


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
async def test_compressed_bodies_are_read_and_go_on_as_they_came(encoding: str, pack):
    """The parser sees what is inside; the model server gets the very bytes."""
    body = pack(CHAT)
    stream = Stream()
    await stream.send(request_headers(content_encoding=encoding), request_body(body))
    assert stream.director.requests[0].prompts[0].text == "userHello"
    assert stream.body == body
    assert "content-encoding" not in stream.removed
    assert stream.held.num_bytes == 0


async def test_a_compressed_body_with_another_model_goes_on_unpacked():
    """It was changed, and says so: the encoding no longer holds."""
    stream = Stream(FakeDirector(rewritten_model="other"))
    await stream.send(
        request_headers(content_encoding="gzip"), request_body(gzip.compress(CHAT, mtime=0))
    )
    assert stream.body == CHAT.replace(b'"m"', b'"other"')
    assert "content-encoding" in stream.removed


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("br", CHAT, 415),
        ("gzip", CHAT, 400),
        ("gzip", gzip.compress(CHAT, mtime=0)[:-9], 400),
        ("gzip", gzip.compress(b" " * 200_000, mtime=0), 413),
        ("gzip", gzip.compress(b" " * 60_000, mtime=0) * 2, 413),
    ],
)
async def test_a_compressed_body_that_cannot_be_read_is_refused(
    encoding: str, body: bytes, status: int
):
    """Another encoding, garbage, an early end, and more than a body may be."""
    stream = Stream(limits=PickerLimits(max_body_bytes=100_000))
    await stream.send(request_headers(content_encoding=encoding), request_body(body))
    assert stream.refusal.status.code == status
    assert stream.held.num_bytes == 0


async def test_a_body_nobody_reads_may_be_encoded_in_any_way():
    """It is the model server's to read."""
    stream = Stream()
    await stream.send(request_headers("/other", content_encoding="br"), request_body(b"x"))
    assert stream.body == b"x"


GENERATE = GenerateRequest(tokenized=TokenizedInput(input_ids=[1])).SerializeToString()
FRAME = b"\0" + len(GENERATE).to_bytes(4, "big") + GENERATE


async def test_metadata_names_the_adapter_of_a_grpc_request():
    """Under the name that events and metrics know it by; the worker is told it too."""
    stream = Stream()
    await stream.send(grpc_headers(x_weft_lora_name="a"), request_body(FRAME))
    (asked,) = stream.director.requests
    assert (asked.model, asked.has_adapter) == ("a", True)
    assert "x-weft-lora-name" not in stream.removed


async def test_a_rewritten_adapter_is_written_into_the_metadata():
    """Where a body has no place for it."""
    stream = Stream(FakeDirector(rewritten_model="b"))
    await stream.send(grpc_headers(x_weft_lora_name="a"), request_body(FRAME))
    assert stream.head["x-weft-lora-name"] == "b"
    assert stream.body == FRAME


@pytest.mark.parametrize("announced", ["1000", ""])
async def test_a_body_that_is_too_large_is_refused(announced: str):
    """At once when the client says how large it is, else when it has become so; nothing is kept."""
    stream = Stream(limits=PickerLimits(max_body_bytes=100))
    await stream.send(request_headers(content_length=announced))
    if not announced:
        await stream.send(request_body(b"x" * 60, end=False), request_body(b"x" * 60, end=False))
    assert stream.refusal.status.code == 413
    assert stream.held.num_bytes == 0


async def test_a_body_is_held_until_the_gateway_has_taken_it():
    """As it goes on: a packed one whose model changed is many times as long as what came."""
    plain = b'{"model":"m","prompt":"' + b"a" * 500_000 + b'"}'
    stream = Stream(FakeDirector(rewritten_model="other"))
    await stream.send(request_headers("/v1/completions", content_encoding="gzip"))
    answers = await stream.exchange.receive(request_body(gzip.compress(plain)))
    assert stream.held.num_bytes == len(plain) + len("other") - len("m")
    assert list(answers)
    assert stream.held.num_bytes == 0


async def test_a_body_that_is_too_much_with_another_model_counts_nowhere():
    """The endpoint that was picked for it never sees it."""
    director = FakeDirector(rewritten_model="other", tracks_response=True)
    stream = Stream(director, limits=PickerLimits(max_held_bytes=10_000))
    packed = gzip.compress(b'{"model":"m","prompt":"' + b"a" * 50_000 + b'"}')
    await stream.send(
        request_headers("/v1/completions", content_encoding="gzip"), request_body(packed)
    )
    assert stream.refusal.status.code == 503
    assert director.endings == [Ending.ERROR]
    assert stream.held.num_bytes == 0


async def test_all_requests_together_are_bounded():
    """Many slow uploads must not fill the memory."""
    stream = Stream(limits=PickerLimits(max_held_bytes=100))
    await stream.send(request_headers(), request_body(b"x" * 101, end=False))
    assert stream.refusal.status.code == 503
    assert stream.held.num_bytes == 0


async def test_large_headers_are_refused():
    """431, as any HTTP server would."""
    stream = Stream(limits=PickerLimits(max_header_bytes=500))
    await stream.send(request_headers(x_long="y" * 500))
    assert stream.refusal.status.code == 431


async def test_a_gateway_that_sends_pieces_as_they_come_is_told():
    """It would otherwise wait for an answer to each, and the picker for the rest."""
    message = request_headers()
    message.protocol_config.request_body_mode = BodySendMode.STREAMED
    stream = Stream()
    await stream.send(message)
    assert stream.refusal.status.code == 500
    assert b"FULL_DUPLEX_STREAMED or BUFFERED" in stream.refusal.body


async def test_an_older_gateway_that_does_not_name_its_modes_is_served():
    """`protocol_config` is newer than the protocol."""
    message = request_headers()
    message.ClearField("protocol_config")
    stream = Stream()
    await stream.send(message, request_body())
    assert stream.body == CHAT


async def test_a_response_that_comes_early_is_passed_on():
    """The gateway's own error, say, while the request is still coming."""
    stream = Stream()
    await stream.send(request_headers(), request_body(CHAT[:5], end=False))
    await stream.send(response_headers(408), response_body(b"slow", end=True))
    assert stream.response == b"slow"
    assert stream.exchange.is_done
    assert stream.director.endings == []


@pytest.mark.parametrize(
    "messages",
    [
        (request_headers(), request_headers()),
        (request_body(),),
        (request_trailers(),),
    ],
)
async def test_what_cannot_follow_is_an_error(messages):
    """Never a clean end, which a gateway would take for consent."""
    stream = Stream()
    with pytest.raises(ProtocolError):
        await stream.send(*messages)


async def test_a_stream_that_is_given_up_keeps_nothing():
    """The client went away in the middle of its upload."""
    stream = Stream()
    await stream.send(request_headers(), request_body(CHAT[:5], end=False))
    assert stream.held.num_bytes == 5
    stream.exchange.close()
    assert stream.held.num_bytes == 0


async def test_reasons_are_shown_to_the_client_by_flag():
    """In a header of the response, and in dynamic metadata."""
    stream = Stream(explain=lambda request_id: {"picked": ["10.0.0.1:8000"], "id": request_id})
    await stream.send(request_headers(x_request_id="r1"), request_body(), response_headers())
    metadata = MessageToDict(stream.answers[0].dynamic_metadata)["envoy.lb"]
    assert metadata["x-weft-decision"] == {"picked": ["10.0.0.1:8000"], "id": "r1"}
    answer = stream.answers[-1].response_headers.response.header_mutation
    assert set_headers(answer)["x-weft-decision"] == '{"picked":["10.0.0.1:8000"],"id":"r1"}'


async def test_a_director_that_hangs_is_given_up():
    """Envoy would wait for ever."""
    director = FakeDirector()
    director.delay_s = 30
    stream = Stream(director, limits=PickerLimits(max_pick_s=0.01))
    await stream.send(request_headers(), request_body())
    assert stream.refusal.status.code == 503
    assert b"within 0.01 s" in stream.refusal.body


@pytest.mark.parametrize("max_wait_s", [PATIENCE_S, math.inf])
async def test_a_pick_that_waits_for_room_is_not_one_that_hangs(max_wait_s: float):
    """It has the time that waiting may take besides, which may have no end."""
    director = FakeDirector()
    director.delay_s, director.max_wait_s = 0.05, max_wait_s
    stream = Stream(director, limits=PickerLimits(max_pick_s=0.01))
    await stream.send(request_headers(), request_body())
    assert stream.kinds == ["request_headers", "request_body"]
