"""Token counts of long answers."""

import json
import time

import pytest

from tests.doubles.loop_probe import is_bounded
from weft.epp.request.readers import MAX_HELD_BYTES
from weft.epp.request.usage import usage_of
from weft.epp.request.values import Usage

COUNTS = {
    "prompt_tokens": 3,
    "completion_tokens": "4",
    "prompt_tokens_details": {"cached_tokens": 1},
}
LONG = '"usage":{"prompt_tokens":9}' * 20_000


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"text": LONG}], "usage": COUNTS},
        {"usage": COUNTS, "choices": [{"text": LONG}]},
        {"response": {"usage": COUNTS, "output": LONG}},
    ],
)
def test_the_usage_of_a_long_answer_is_found(body: dict):
    """Wherever it stands; a text that looks like one is no usage."""
    assert usage_of(json.dumps(body).encode()) == Usage(3, 4, 1)


@pytest.mark.parametrize("counts", ["{", "5", '{"prompt_tokens":-1}', "[" * 4000, '{"a":"\ud800"}'])
def test_a_long_answer_with_another_usage_has_none(counts: str):
    """A reader never fails, whatever an engine answers."""
    body = json.dumps({"text": LONG})[:-1] + f',"usage":{{}},"usage":{counts}'
    assert usage_of(body.encode("utf-8", "surrogatepass")) in (None, Usage())


def test_a_long_answer_without_usage_has_none():
    """Counts of something else are not taken for it, wherever they stand."""
    body = json.dumps({"abc": {"prompt_tokens": 1}, "meta_info": None, "text": "x" * 2**20})
    assert usage_of(body.replace(" ", "").encode()) is None


def test_the_longest_answer_holds_no_loop():
    """Decoding all of it takes 22 ms."""
    body = json.dumps({"data": [[1.5] * 2000] * 400, "usage": COUNTS}).encode()[-MAX_HELD_BYTES:]
    began_s = time.thread_time()
    usage = usage_of(body)
    assert is_bounded(time.thread_time() - began_s)
    assert usage == Usage(3, 4, 1)


def test_a_list_of_answers_has_the_sum_of_their_usage():
    """SGLang answers several prompts so; a list of thousands is not read."""
    one = {"meta_info": {"prompt_tokens": 1, "completion_tokens": 2}}
    assert usage_of(json.dumps([one, one]).encode()) == Usage(2, 4)
    assert usage_of(json.dumps([one] * 4097).encode()) is None
