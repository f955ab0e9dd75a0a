"""Repetition is noticed at the very token that completes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.stepping import make_engine
from weft.core.values.types import FinishReason, RepetitionDetectionParams
from weft.engine.scheduling.repetition import RepetitionDetector


def first_repetition(tokens, smallest, largest, count):
    """Where the tokens first end in a pattern `count` times over, worked out by slicing."""
    for end in range(1, len(tokens) + 1):
        for size in range(max(smallest, 1), largest + 1):
            if size * count <= end and tokens[end - size * count : end] == (
                tokens[end - size : end] * count
            ):
                return end
    return None


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(2, 4),
)
def test_it_is_noticed_where_slicing_finds_it(tokens, smallest, extra, count):
    """For every pattern size and count."""
    params = RepetitionDetectionParams(
        max_pattern_size=smallest + extra, min_pattern_size=smallest, min_count=count
    )
    watch = RepetitionDetector(params)
    found = [end for end, token in enumerate(tokens, 1) if watch.push(token)]
    assert (found or [None])[0] == first_repetition(tokens, smallest, smallest + extra, count)


@pytest.mark.parametrize(
    ("min_tokens", "length", "reason"),
    [(0, 4, FinishReason.REPETITION), (6, 6, FinishReason.REPETITION), (8, 8, FinishReason.LENGTH)],
)
def test_an_answer_that_repeats_itself_ends(min_tokens, length, reason):
    """With a reason of its own, not before `min_tokens`, and "length" comes first."""
    engine = make_engine()
    watch = RepetitionDetectionParams(max_pattern_size=2, min_count=4)
    engine.finish(
        "a",
        [3, 4, 5],
        allowed_token_ids=[9],
        max_tokens=8,
        min_tokens=min_tokens,
        repetition_detection=watch,
    )
    [answer] = engine.answers["a"]
    assert (len(answer.token_ids), answer.finish_reason) == (length, reason)


def test_a_preempted_answer_does_not_repeat_itself():
    """Tokens that are computed again are not counted again."""
    watch = RepetitionDetectionParams(max_pattern_size=1, min_count=2)
    engine = make_engine(num_blocks=6)
    for name in "ab":
        engine.submit(name, [3, 4, 5, *b"xy"], max_tokens=12, repetition_detection=watch)
    engine.run()
    assert engine.scheduler.planner.num_preemptions
    alone = make_engine()
    alone.submit("a", [3, 4, 5, *b"xy"], max_tokens=12, repetition_detection=watch)
    alone.run()
    assert engine.answers["a"][0].token_ids == alone.answers["a"][0].token_ids
