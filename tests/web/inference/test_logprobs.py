"""Log-probabilities of long prompts."""

import msgspec

from weft.core.values.types import Logprob
from weft.web.inference.logprobs import to_prompt_logprobs


def test_those_of_a_long_prompt_are_the_json_of_a_short_ones():
    """Many are encoded a few at a time; who reads the answer does not see it."""
    row = {65: Logprob(-1.0, 1, "A"), 66: Logprob(float("-inf"), 2, "B")}
    short = msgspec.json.encode(to_prompt_logprobs([None, row]))[1:-1]
    long = msgspec.json.encode(to_prompt_logprobs([None, row] * 300))
    assert long == b"[" + b",".join([short] * 300) + b"]"
