"""Whatever arrives is converted or refused with a typed error: nothing else is ever raised."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.rpc.calls import Understood, understood
from weft.core.errors import BadRequest
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.methods import METHODS, Undecodable

UINT32 = st.sampled_from([0, 1, 2, 20, 511, 512, 2**31 - 1, 2**31, 2**32 - 1])
INT32 = st.sampled_from([0, 1, -1, -2, 20, 512, 2**31 - 1, -(2**31)])
FLOAT = st.sampled_from(
    [0.0, -0.0, 1.0, 0.5, -1.0, 2.0, 1e-45, 3.4e38, -3.4e38, math.nan, math.inf, -math.inf]
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def message(message_type: type, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The message with any of these fields set."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: message_type(**values))


PARAMS = message(
    pb.SamplingParams,
    **dict.fromkeys(
        ["temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty"], FLOAT
    ),
    repetition_penalty=FLOAT,
    **dict.fromkeys(["top_k", "max_tokens", "min_tokens", "n"], UINT32),
    **dict.fromkeys(["logprobs", "prompt_logprobs", "seed", "truncate_prompt_tokens"], INT32),
    stop=st.lists(TEXT, max_size=70),
    stop_token_ids=st.lists(UINT32, max_size=5),
    logit_bias=st.dictionaries(INT32, FLOAT, max_size=5),
    ignore_eos=st.booleans(),
    json_object=st.booleans(),
)
REQUESTS = message(
    pb.GenerateRequest,
    request_id=TEXT,
    tokenized=message(
        pb.TokenizedInput, input_ids=st.lists(UINT32, max_size=300), original_text=TEXT
    ),
    sampling_params=PARAMS,
    stream=st.booleans(),
    data_parallel_rank=INT32,
)


def outcome(request: pb.GenerateRequest) -> Understood | BadRequest:
    """Converted, or refused; anything else fails the test."""
    try:
        return understood(request)
    except BadRequest as error:
        return error


@given(request=REQUESTS)
def test_extreme_values_are_converted_or_refused(request: pb.GenerateRequest):
    """Every field at its ends, NaN, infinities and long lists; a refusal says something."""
    result = outcome(request)

    assert isinstance(result, Understood) or str(result)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(data: bytes):
    """No decoder raises, and what decodes converts or is refused."""
    for method in METHODS.values():
        decoded = method.decode_request(data)
        assert isinstance(decoded, Undecodable | method.request_type)
        assert not isinstance(decoded, pb.GenerateRequest) or outcome(decoded)
