"""Bodies that the gateway holds itself: the choice is the answer to them."""

import pytest

from tests.doubles.fake_director import FakeDirector
from tests.epp.server.messages import (
    CHAT,
    Stream,
    grpc_headers,
    request_body,
    request_headers,
    request_trailers,
    set_headers,
)
from weft.core.headers import DESTINATION
from weft.epp.decision.tickets import Decision
from weft.epp.request.values import Drop, Refused
from weft.epp.server.ext_proc import BUFFERED
from weft.pb.ext_proc_pb2 import CommonResponse, ProcessingRequest
from weft.pb.vllm_engine_pb2 import EmbedRequest, TokenizedInput


def held(message: ProcessingRequest) -> ProcessingRequest:
    message.protocol_config.request_body_mode = BUFFERED
    return message


async def choice(stream: Stream, *messages: ProcessingRequest) -> CommonResponse:
    """What the last of the answers says; headers are answered with nothing."""
    answers = await stream.send(*messages)
    assert answers[0].request_headers.response == CommonResponse()
    assert stream.held.num_bytes == 0
    return answers[1].request_body.response


async def test_the_choice_comes_with_the_body():
    """Which stays where it is."""
    stream = Stream(FakeDirector(endpoints=("1.2.3.4:5",)))
    said = await choice(stream, held(request_headers(x_prefiller_host_port="6")), request_body())
    assert set_headers(said.header_mutation)[DESTINATION] == "1.2.3.4:5"
    assert list(said.header_mutation.remove_headers) == ["x-prefiller-host-port"]
    assert said.clear_route_cache
    assert not said.HasField("body_mutation")
    metadata = stream.answers[-1].dynamic_metadata["envoy.lb"]
    assert metadata[DESTINATION] == "1.2.3.4:5"
    assert stream.exchange.is_done


@pytest.mark.parametrize("is_sized", [True, False])
async def test_a_renamed_body_takes_its_place(is_sized: bool):
    """With its length, where the headers had one."""
    director = FakeDirector()
    director.choose = lambda _: Decision(endpoints=("1.2.3.4:5",), rewritten_model="served")
    sizes = {"content-length": str(len(CHAT))} if is_sized else {}
    said = await choice(Stream(director), held(request_headers(**sizes)), request_body())
    body = said.body_mutation.body
    assert body == CHAT.replace(b'"m"', b'"served"')
    length = set_headers(said.header_mutation).get("content-length")
    assert length == (str(len(body)) if is_sized else None)


async def test_trailers_come_after_the_choice():
    """A body that they end does not end the stream."""
    stream = Stream()
    await choice(stream, held(request_headers()), request_body(end=False))
    assert not stream.exchange.is_done
    (answer,) = await stream.send(request_trailers())
    assert answer.HasField("request_trailers")
    assert stream.exchange.is_done


async def test_a_request_that_is_routed_by_its_headers():
    """Its body is not looked at."""
    stream = Stream(parsers=("passthrough-parser",))
    head, body = await stream.send(held(request_headers("/anything")), request_body(b"any"))
    assert DESTINATION in set_headers(head.request_headers.response.header_mutation)
    assert body.request_body.response == CommonResponse()
    assert stream.exchange.is_done


async def test_a_grpc_message_is_read():
    """As one that is streamed."""
    stream = Stream()
    message = EmbedRequest(tokenized=TokenizedInput(input_ids=[1, 2])).SerializeToString()
    framed = b"\0" + len(message).to_bytes(4, "big") + message
    await choice(stream, held(grpc_headers("Embed")), request_body(framed))
    assert len(stream.director.requests) == 1


async def test_a_refusal_comes_in_place_of_the_choice():
    """The gateway has not sent anything on."""
    director = FakeDirector()
    director.refusal = Refused(429, "full", Drop.SATURATED)
    stream = Stream(director)
    await stream.send(held(request_headers()), request_body())
    assert stream.refusal.status.code == 429
    assert stream.held.num_bytes == 0
