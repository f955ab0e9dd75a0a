"""The bad-parameter table: what each value gets, and that its message names the field."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.checks.resolve_params import MAX_PROMPT_SCORES, resolve_params
from weft.core.checks.validate import (
    Limits,
    validate_cache_salt,
    validate_params,
    validate_priority,
    validate_prompt,
    validate_request_id,
)
from weft.core.errors import BadRequest, ContextLengthExceeded
from weft.core.values.types import OutputKind, RepetitionDetectionParams, SamplingParams

LIMITS = Limits(vocab_size=100, max_model_len=64, max_pool_tokens=1000)
NAN, INF = float("nan"), float("inf")


def resolved(num_prompt_tokens=10, limits=LIMITS, **given):
    params = SamplingParams(**given)
    validate_params(params, limits)
    return resolve_params(params, num_prompt_tokens, limits)


class Subclass(SamplingParams, frozen=True, kw_only=True):
    """Parameters of a program, with a field that engines do not know."""

    note: str = "mine"


def test_fields_of_a_subclass_do_not_reach_the_engine():
    """An engine process that cannot read a request would end, and the requests of all callers with it."""
    params = resolve_params(Subclass(max_tokens=3, top_k=4, stop=["x"]), 10, LIMITS)
    assert type(params) is SamplingParams
    assert params == resolved(max_tokens=3, top_k=4, stop=["x"])


BAD = [
    *(("n", value) for value in (0, -1, 129, 2**31, 1.0, True, "3", None)),
    *(("temperature", value) for value in (NAN, INF, -INF, -0.1, 2.1, 1e308, True, "1", None)),
    *(("temperature", value) for value in (10**400, 1j)),
    *(("top_p", value) for value in (0, 0.0, -1, 1.1, NAN, "x", False)),
    *(("top_k", value) for value in (-2, 1.5, True, 2**63, None)),
    *(("min_p", value) for value in (2, -0.1, NAN)),
    *(("presence_penalty", value) for value in (NAN, 1e9, -1e9, -2.1)),
    *(("frequency_penalty", value) for value in (NAN, 1e9, -1e9, 2.1)),
    *(("repetition_penalty", value) for value in (0, -1, NAN, INF, 10**400, 1e-300)),
    *(("seed", value) for value in (2**63, -(2**63) - 1, 1.0, True)),
    *(("max_tokens", value) for value in (0, -1, 2**31, 1.0, True, 10**5000)),
    *(("min_tokens", value) for value in (-1, 17, 2**31, None, 1.0)),
    *(("stop", value) for value in ("", ["a", ""], ["a"] * 10_000, "x" * 2**20, 5, [5], {"a": 1})),
    *(("stop", value) for value in ("\ud800", ["a", "b\udfff"])),
    ("bad_words", ["\ud800"]),
    *(("stop_token_ids", value) for value in ([100], [-1], [2**31], [True], [1.0], "a", 5)),
    *(("allowed_token_ids", value) for value in ([], [100], [-1], ["a"], [1] * 101)),
    *(("logit_bias", value) for value in ({"abc": 1}, {100: 1}, {-1: 1}, {5: NAN}, {5: INF})),
    *(("logit_bias", value) for value in ({5: "x"}, {5: True}, {5.0: 1}, [1], {"1_0": 1})),
    ("logit_bias", dict.fromkeys(range(100_000), 1.0)),
    *(("logprobs", value) for value in (-1, -2, 21, 100, 1.0, "5")),
    *(("prompt_logprobs", value) for value in (-1, -2, 21, 1.0)),
    *(("truncate_prompt_tokens", value) for value in (0, -2, 65, 1.0, True)),
    *((name, 1) for name in ("ignore_eos", "detokenize", "include_stop_str_in_output")),
    *((name, None) for name in ("skip_special_tokens", "spaces_between_special_tokens")),
    ("skip_reading_prefix_cache", "no"),
    *(("logprob_token_ids", value) for value in ([], [100], [-1], [True], "a", [5, 5])),
    ("logprob_token_ids", list(range(129))),
    *(("bad_words", value) for value in ("ab", [""], [" "], [5], ["x" * 257], ["a"] * 257)),
    *(("thinking_token_budget", value) for value in (-2, 1.0, True, 2**31)),
    *(("stream_interval", value) for value in (0, -1, 1.0, True, 2**31)),
    *(("extra_args", value) for value in ({"a": 1}, [1], "x")),
    *(("repetition_detection", value) for value in ({"max_pattern_size": 1}, 5)),
    ("structured_outputs", {"regex": "a"}),
    ("output_kind", "all"),
    ("output_kind", None),
    *(("temperature", value) for value in (np.float32(1), np.int64(1))),
    ("n", np.int64(1)),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=range(len(BAD)))
def test_a_bad_value_is_refused_by_name(name, value):
    """One table for every wire; messages stay short whatever was sent."""
    with pytest.raises(BadRequest, match=name.replace("_", ".")) as caught:
        validate_params(SamplingParams(**{name: value}), LIMITS)
    assert caught.value.parameter == name
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("top_p", -33.0, "top_p must be in (0, 1], got -33.0"),
        ("presence_penalty", 3, "presence_penalty must be in [-2, 2], got 3"),
        ("allowed_token_ids", [], "allowed_token_ids is not None and empty!"),
        (
            "logprobs",
            50,
            "Requested sample logprobs of 50, which is greater than max allowed: 20",
        ),
        (
            "prompt_logprobs",
            -1,
            "Requested prompt logprobs of 100, which is greater than max allowed: 20",
        ),
    ],
)
def test_messages_that_clients_look_for(name, value, message):
    """Clients and their tests match on these words."""
    with pytest.raises(BadRequest) as caught:
        validate_params(SamplingParams(**{name: value}), LIMITS)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"n": 128, "temperature": 0.0},
        {"temperature": 2, "top_p": 1, "top_k": 2**40, "min_p": 1},
        {"temperature": 1e-320},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"stop": []},
        {"stop": ("a", "b")},
        {"stop_token_ids": [], "logit_bias": {}},
        {"logit_bias": {"5": 1000, 6: -1000}},
        {"max_tokens": 2**31 - 1, "min_tokens": 50},
        {"max_tokens": 7, "min_tokens": 7},
        {"logprobs": 0, "prompt_logprobs": 20},
        {"truncate_prompt_tokens": 64},
        {"output_kind": "delta"},
        {"stream_interval": 1},
        {"thinking_token_budget": -1},
    ],
)
def test_good_values_pass(given):
    """The edges of each range are inside it."""
    validate_params(SamplingParams(**given), LIMITS)


def test_stop_strings_need_text():
    """They are searched in detokenised text."""
    with pytest.raises(BadRequest, match="set detokenize to true"):
        validate_params(SamplingParams(stop="x", detokenize=False), LIMITS)


def test_anything_but_sampling_params_is_refused():
    """A dict in their place is a caller's slip, not an attribute error."""
    with pytest.raises(BadRequest, match="must be SamplingParams"):
        validate_params({"n": 1}, LIMITS)


def test_max_tokens_fills_or_is_clamped_to_the_context():
    """An answer that would run past the context ends there with "length"."""
    assert resolved(max_tokens=None).max_tokens == 54
    assert resolved(max_tokens=1000).max_tokens == 54
    assert resolved(max_tokens=5).max_tokens == 5


def test_max_tokens_is_clamped_to_the_pool():
    """No sequence can hold more tokens than there are places."""
    limits = Limits(vocab_size=100, max_model_len=64, max_pool_tokens=32)
    assert resolved(limits=limits, max_tokens=None).max_tokens == 22


def test_min_tokens_is_checked_again_when_max_tokens_is_known():
    """With max_tokens open, only the prompt tells how many can follow."""
    assert resolved(max_tokens=None, min_tokens=54).min_tokens == 54
    with pytest.raises(BadRequest, match="at most the 54 tokens that can follow") as caught:
        resolved(max_tokens=None, min_tokens=55)
    assert caught.value.parameter == "min_tokens"


@pytest.mark.parametrize("temperature", [0, 0.0, 9e-6, 1e-320])
def test_greedy_requests_lose_their_filters(temperature):
    """One form for all that always take the most likely token."""
    params = resolved(temperature=temperature, top_p=0.5, top_k=5, min_p=0.1)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 0, 0.0)


def test_a_tiny_temperature_is_raised_with_a_warning(caplog):
    """Between greedy and 0.01 float32 would lose the differences of logits."""
    with caplog.at_level(logging.WARNING):
        assert resolved(temperature=0.001).temperature == 0.01
    assert "0.001" in caplog.text


def test_values_take_their_one_form():
    """The engine sees no -1, no True, no duplicates, and floats where floats are."""
    params = resolved(
        temperature=1,
        top_k=-1,
        seed=-1,
        stop="x",
        stop_token_ids=[3, 3, 2],
        allowed_token_ids=(5, 5),
        logit_bias={"5": 1000, 6: -1},
        logprobs=True,
        output_kind="delta",
    )
    assert isinstance(params.temperature, float)
    assert (params.top_k, params.seed, params.stop, params.logprobs) == (0, None, ["x"], 1)
    assert params.stop_token_ids == [3, 2]
    assert params.allowed_token_ids == [5]
    assert params.logit_bias == {5: 100.0, 6: -1.0}
    assert params.output_kind is OutputKind.DELTA


def test_a_filter_as_wide_as_the_vocabulary_is_off():
    """top_k beyond the vocabulary keeps everything."""
    assert resolved(top_k=100).top_k == 0
    assert resolved(top_k=99).top_k == 99


def test_all_logprobs_means_the_vocabulary():
    """-1 is a number of tokens by the time the engine sees it."""
    limits = Limits(vocab_size=100, max_model_len=64, max_pool_tokens=1000, max_logprobs=-1)
    assert resolved(limits=limits, logprobs=-1).logprobs == 100
    assert resolved(limits=limits, logprobs=100).logprobs == 100
    assert resolved(logprobs=False).logprobs is None


def test_scoring_the_prompt_bypasses_the_prefix_cache():
    """Cached blocks have no logits."""
    assert resolved(prompt_logprobs=0).skip_reading_prefix_cache
    assert not resolved().skip_reading_prefix_cache


@pytest.mark.parametrize(
    ("token_ids", "error", "words"),
    [
        ([], BadRequest, "empty"),
        ([1] * 64, ContextLengthExceeded, "64 tokens, and the prompt has 64"),
        ([1] * 65, ContextLengthExceeded, "the prompt has 65"),
        ([100], BadRequest, "0 to 99, got 100"),
        ([5, -1], BadRequest, "got -1"),
        ([2**31], BadRequest, "vocabulary"),
        ([2**700], BadRequest, "a huge integer"),
        ([True, 1], BadRequest, "must hold integers, got True"),
        ([1.0], BadRequest, "must hold integers, got 1.0"),
        ([np.int64(1)], BadRequest, "must hold integers"),
        (["a"], BadRequest, "must hold integers, got 'a'"),
    ],
)
def test_a_bad_prompt_is_refused(token_ids, error, words):
    """Before the engine sees it, with the counts."""
    with pytest.raises(error, match=words):
        validate_prompt(token_ids, LIMITS)


def test_a_prompt_that_cannot_fit_the_empty_pool_is_refused():
    """It would wait for ever."""
    limits = Limits(vocab_size=100, max_model_len=64, max_pool_tokens=32)
    validate_prompt([1] * 31, limits)
    with pytest.raises(ContextLengthExceeded, match="whole KV cache holds 32"):
        validate_prompt([1] * 32, limits)


def test_labels_and_priorities():
    """Ids may be any printable text; salts, which are hashed and sent on, ASCII only."""
    validate_request_id("chatcmpl-ä 1")
    validate_cache_salt(None)
    validate_cache_salt("a" * 256)
    validate_priority(-(2**31))
    for check, value in [
        (validate_request_id, None),
        (validate_request_id, "\x7f"),
        (validate_cache_salt, "ä"),
        (validate_cache_salt, "a" * 10_240),
        (validate_priority, 2**31),
        (validate_priority, True),
    ]:
        with pytest.raises(BadRequest):
            check(value)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.lists(st.one_of(st.integers(), st.floats(), st.text())),
    st.dictionaries(st.one_of(st.integers(), st.text()), st.one_of(st.floats(), st.text())),
)  # fmt: skip


@given(st.sampled_from(sorted(SamplingParams.__struct_fields__)), ANYTHING, st.integers(1, 63))
def test_any_value_is_either_refused_or_understood(name, value, num_prompt_tokens):
    """Nothing escapes as another kind of error, and what passes has a plan that fits."""
    params = SamplingParams(**{name: value})
    try:
        validate_params(params, LIMITS)
        final = resolve_params(params, num_prompt_tokens, LIMITS)
    except BadRequest:
        return
    assert 1 <= final.max_tokens <= 64 - num_prompt_tokens


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"max_pattern_size": -1}, "max_pattern_size"),
        ({"max_pattern_size": 1025}, "max_pattern_size"),
        ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": 2, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 2}, "min_count"),
        ({"max_pattern_size": True, "min_count": 2}, "max_pattern_size"),
    ],
)
def test_a_repetition_that_means_nothing_is_refused(given, name):
    """One time is no repetition, and no pattern is shorter than the shortest."""
    params = SamplingParams(repetition_detection=RepetitionDetectionParams(**given))
    with pytest.raises(BadRequest, match=name) as caught:
        validate_params(params, LIMITS)
    assert caught.value.parameter == name


def test_repetition_detection_that_looks_for_nothing_is_off():
    """As the other way to say that it is not wanted."""
    validate_params(SamplingParams(repetition_detection=RepetitionDetectionParams()), LIMITS)


def test_ids_to_score_take_the_place_of_the_best():
    """`logprobs` says how many, and may be left out; the limit on it is theirs then."""
    limits = Limits(vocab_size=1000, max_model_len=64, max_pool_tokens=1000, max_logprobs=5)
    ids = list(range(128))
    for logprobs in (None, 128):
        given = {"logprob_token_ids": ids, "logprobs": logprobs}
        assert resolved(limits=limits, **given).logprobs == 128
    with pytest.raises(BadRequest, match="logprobs must be 128, the number of logprob_token_ids"):
        resolved(limits=limits, logprob_token_ids=ids, logprobs=5)


def test_empty_wishes_are_none():
    """So that the engine has one form to look at."""
    params = resolved(bad_words=[], extra_args={}, logprob_token_ids=None)
    assert (params.bad_words, params.extra_args, params.logprobs) == (None, None, None)
    assert resolved(bad_words=["a", "b", "a"]).bad_words == ["a", "b"]


@pytest.mark.parametrize(("given", "meant"), [(-1, None), (0, 0), (7, 7), (None, None)])
def test_a_budget_of_minus_one_is_none(given, meant):
    """And any other is kept as it is."""
    assert resolved(thinking_token_budget=given).thinking_token_budget == meant


def test_a_prompt_has_so_many_scores_and_no_more():
    """Prompt tokens times what is asked for each, for every answer: all of it is made at once."""
    limits = Limits(vocab_size=400, max_model_len=2**20, max_pool_tokens=2**20)
    most = SamplingParams(prompt_logprobs=1, n=2)
    assert resolve_params(most, MAX_PROMPT_SCORES // 4, limits).prompt_logprobs == 1
    with pytest.raises(BadRequest, match="at most 262144 prompt logprobs") as refusal:
        resolve_params(most, MAX_PROMPT_SCORES // 4 + 1, limits)
    assert refusal.value.parameter == "prompt_logprobs"
