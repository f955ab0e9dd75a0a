"""Streams with calls of SGLang's and TensorRT-LLM's gRPC protocols: prompts, parameters, and usage."""

import hashlib
from dataclasses import dataclass
from typing import Any

import pytest

from tests.doubles.fake_director import FakeDirector
from tests.epp.server.messages import (
    Stream,
    grpc_headers,
    request_body,
    response_body,
    response_headers,
    response_trailers,
)
from weft.epp.decision.tickets import Ending
from weft.epp.request.engine_protocol import EngineProtocol
from weft.epp.request.parsers.payload import frame
from weft.epp.request.sglang import SGLANG
from weft.epp.request.trtllm import TRTLLM
from weft.epp.request.values import InferenceRequest, Prompt, Usage
from weft.pb import sglang_scheduler_pb2, trtllm_service_pb2

CHUNK = {"prompt_tokens": 10, "cached_tokens": 6}


@dataclass(frozen=True, slots=True)
class Engine:
    """A protocol, and the names of its fields for the same values."""

    protocol: EngineProtocol
    ids: str
    full: dict[str, Any]  # a request with every value that routing needs
    output_ids: str

    def generate(self, **fields: Any) -> bytes:
        return self.protocol.generate_request(**fields).SerializeToString()

    def complete(self, *ids: int) -> bytes:
        counts = {self.output_ids: ids, "completion_tokens": len(ids), **CHUNK}
        return self.protocol.generate_response(complete=counts).SerializeToString()

    def chunk(self, *ids: int, completion_tokens: int) -> bytes:
        counts = {"token_ids": ids, "completion_tokens": completion_tokens, **CHUNK}
        return self.protocol.generate_response(chunk=counts).SerializeToString()


ENGINES = {
    "sglang": Engine(SGLANG, "input_ids", {
        "tokenized": {"input_ids": [1, 2, 3]}, "stream": True, "lora_id": "7",
        "sampling_params": {"max_new_tokens": 9}, "mm_inputs": {"image_data": [b"picture"]},
    }, "output_ids"),
    "trtllm": Engine(TRTLLM, "input_token_ids", {
        "tokenized": {"input_token_ids": [1, 2, 3]}, "streaming": True, "lora_config": {"task_id": 7},
        "max_tokens": 9, "multimodal_input": {"image_data": [b"picture"]},
    }, "output_token_ids"),
}  # fmt: skip


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


async def send(engine: Engine, message: bytes, method: str = "Generate") -> Stream:
    stream = Stream(FakeDirector(tracks_response=True))
    head = grpc_headers(method, service=engine.protocol.service)
    await stream.send(head, request_body(frame(message)))
    return stream


async def request_of(engine: Engine, **fields: Any) -> InferenceRequest:
    stream = await send(engine, engine.generate(**fields))
    (request,) = stream.director.requests
    return request


async def test_the_director_gets_the_prompt_and_the_parameters(engine: Engine):
    """Token ids are hashed unchanged; the hashes of media separate prompts whose placeholders are equal."""
    picture = hashlib.sha256(b"picture").hexdigest()
    request = await request_of(engine, **engine.full)
    assert request.prompts == (Prompt(token_ids=(1, 2, 3)),)
    assert (request.model, request.has_adapter) == ("7", True)
    assert (request.max_tokens, request.is_streaming) == (9, True)
    assert (request.media, request.cache_salt) == ((picture,), picture)


async def test_a_request_without_parameters_has_none(engine: Engine):
    """Unset numbers are no limits, and no adapter is named."""
    request = await request_of(engine, tokenized={engine.ids: [1]})
    assert (request.model, request.has_adapter, request.max_tokens) == ("", False, None)
    assert (request.is_streaming, request.media, request.cache_salt) == (False, (), "")


async def test_the_salt_of_trtllm_separates_equal_prompts():
    """Also the salt 0, which is not the same as none."""
    engine = ENGINES["trtllm"]
    prompt = {"input_token_ids": [1]}
    assert (await request_of(engine, tokenized=prompt, cache_salt_id=0)).cache_salt == "0"


async def test_each_kind_of_media_of_sglang_is_told_apart():
    """By its address, its bytes, or the pixels that a client has prepared."""
    inputs = {
        "image_urls": ["i"], "video_urls": ["v"], "audio_urls": ["a"], "video_data": [b"vd"],
        "audio_data": [b"ad"], "pixel_values": {"data": b"p"},
    }  # fmt: skip
    request = await request_of(ENGINES["sglang"], tokenized={"input_ids": [1]}, mm_inputs=inputs)
    sources = (b"i", b"v", b"a", b"vd", b"ad", b"p")
    assert request.media == tuple(hashlib.sha256(each).hexdigest() for each in sources)


async def test_an_embedding_is_scheduled_by_its_prompt(engine: Engine):
    """As a generation is."""
    message = engine.protocol.embed_request(tokenized={engine.ids: [4, 5]}).SerializeToString()
    stream = await send(engine, message, "Embed")
    assert stream.director.requests[0].prompts == (Prompt(token_ids=(4, 5)),)


@pytest.mark.parametrize("message", [b"", b"\xff"])
async def test_a_message_without_a_prompt_is_refused(engine: Engine, message: bytes):
    """With the status of gRPC for bad arguments, and what was expected."""
    stream = await send(engine, message)
    assert stream.refusal.grpc_status.status == 3
    assert b"expected a GenerateRequest with tokenized" in stream.refusal.body


async def test_other_calls_of_the_service_go_to_any_endpoint(engine: Engine):
    """Their messages are not read."""
    stream = Stream()
    await stream.send(grpc_headers("HealthCheck", service=engine.protocol.service))
    assert (stream.director.requests, stream.director.num_any) == ([], 1)


async def test_a_response_tells_its_usage(engine: Engine):
    """Chunks may count all tokens so far; the last message of each answer counts its own."""
    stream = await send(engine, engine.generate(**engine.full))
    parts = [
        engine.chunk(1, completion_tokens=1),
        engine.chunk(2, 3, completion_tokens=3),
        engine.complete(1, 2, 3),
        engine.complete(4),
    ]
    await stream.send(response_headers(content_type="application/grpc"))
    await stream.send(*(response_body(frame(part)) for part in parts))
    await stream.send(response_trailers(grpc_status="0"))
    usage = Usage(num_prompt_tokens=10, num_completion_tokens=4, num_cached_tokens=6)
    assert stream.director.usages == [usage]
    assert stream.director.endings == [Ending.NATURAL]


def test_fields_have_the_numbers_of_the_protocols():
    """Names and numbers of the fields that are read, as the engines' clients send them."""
    of_sglang, of_trtllm = sglang_scheduler_pb2, trtllm_service_pb2
    numbers = {
        kind.DESCRIPTOR.full_name: {field.name: field.number for field in kind.DESCRIPTOR.fields}
        for kind in (of_sglang.GenerateRequest, of_sglang.GenerateComplete,
                     of_trtllm.GenerateRequest, of_trtllm.GenerateComplete)
    }  # fmt: skip
    assert numbers == {
        "sglang.grpc.scheduler.GenerateRequest": {
            "tokenized": 2, "mm_inputs": 3, "sampling_params": 4, "lora_id": 15, "stream": 17,
        },
        "sglang.grpc.scheduler.GenerateComplete": {
            "output_ids": 1, "prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 5,
        },
        "trtllm.GenerateRequest": {
            "tokenized": 2, "max_tokens": 5, "streaming": 6, "lora_config": 13, "multimodal_input": 15,
            "cache_salt_id": 19,
        },
        "trtllm.GenerateComplete": {
            "output_token_ids": 1, "prompt_tokens": 5, "completion_tokens": 6, "cached_tokens": 7,
        },
    }  # fmt: skip
