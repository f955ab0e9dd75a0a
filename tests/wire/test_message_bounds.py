"""Messages that would take long to decode, and those that only look like it."""

import pytest
from google.protobuf.internal.encoder import _VarintBytes

from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.methods import METHODS, Undecodable
from weft.wire.message_bounds import (
    MAX_PACKED_BYTES,
    MAX_PARTS,
    MAX_UNPACKED_BYTES,
    crowded_field,
)

DESCRIPTOR = pb.GenerateRequest.DESCRIPTOR
STOPS = pb.GenerateRequest(sampling_params=pb.SamplingParams(stop=["a"] * (MAX_PARTS + 1)))
BIAS = pb.GenerateRequest(
    sampling_params=pb.SamplingParams(logit_bias=dict.fromkeys(range(MAX_PARTS + 1), 1.0))
)
PACKED = pb.GenerateRequest(
    tokenized=pb.TokenizedInput(input_ids=[1] * (MAX_PACKED_BYTES // 2)),
    sampling_params=pb.SamplingParams(stop_token_ids=[1] * (MAX_PACKED_BYTES // 2 + 1)),
)
UNKNOWN_NUMBERS = (_VarintBytes(2000 << 3) + b"\x01") * MAX_UNPACKED_BYTES


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (STOPS.SerializeToString(), "stop"),
        (BIAS.SerializeToString(), "logit_bias"),
        (b"\x7a\x00" * (MAX_PARTS + 1), "a field"),
        (UNKNOWN_NUMBERS, "a field"),
        (PACKED.SerializeToString(), "input_ids"),
        (b"\x0b\x0c", "request_id"),
    ],
    ids=["strings", "entries", "unknown", "numbers", "packed", "group"],
)
def test_too_many_parts_are_refused_by_their_field(data: bytes, field: str):
    """Before anything is made of them."""
    assert crowded_field(data, DESCRIPTOR) == field
    malformed = METHODS["Generate"].decode_request(data)
    assert isinstance(malformed, Undecodable)
    assert malformed.error().parameter == field


def test_the_ids_of_a_context_are_never_too_many():
    """However long it is."""
    data = PACKED.SerializeToString()
    method = METHODS["Generate"]
    assert isinstance(method.decode_request(data, max_model_len=500_000), Undecodable)
    assert method.decode_request(data, max_model_len=2_000_000) == PACKED


def test_numbers_and_long_texts_count_for_little():
    """A context of ids, and what it was made from."""
    tokenized = pb.TokenizedInput(input_ids=range(100_000), original_text="a b" * 10**6)
    params = pb.SamplingParams(stop=["a"] * 64, temperature=0.5, seed=1, max_tokens=3)
    message = pb.GenerateRequest(tokenized=tokenized, sampling_params=params, stream=True)
    assert METHODS["Generate"].decode_request(message.SerializeToString()) == message


@pytest.mark.parametrize(
    "data", [b"\x80" * 1000, b"\x0a", b"\x0a\xff", b"\x08", b"\x0d\x01", b"\x09"]
)
def test_what_ends_early_is_for_the_decoder(data: bytes):
    """Nothing is read beyond the end."""
    assert crowded_field(data, DESCRIPTOR) is None
    assert isinstance(METHODS["Generate"].decode_request(data), Undecodable)
