import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import GenerationError
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    Logprob,
    RequestOutput,
    SamplingParams,
)
from weft.rpc.convert.output import (
    LOWEST_LOGPROB,
    StreamedReply,
    WholeReply,
    to_input_logprobs,
    to_output_logprobs,
    to_top_logprobs,
)

# The sampled token (9) is the worst; the engine lists it first.
POSITION = {9: Logprob(-7.0, 400), 4: Logprob(-1.0, 1), 5: Logprob(-2.0, 2), 6: Logprob(-3.0, 3)}


def output(*answers: CompletionOutput, **fields) -> RequestOutput:
    return RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=[1, 2],
        outputs=list(answers),
        **{"is_finished": False, **fields},
    )


def test_top_logprobs_are_the_strict_top_k():
    """A sampled token outside the best k does not push the k-th out."""
    top = to_top_logprobs(POSITION, 3)

    assert list(top.token_ids) == [4, 5, 6]
    assert list(top.values) == [-1.0, -2.0, -3.0]


def test_minus_one_gives_every_entry_best_first():
    """-1 is the whole vocabulary, as far as the engine gave it."""
    assert list(to_top_logprobs(POSITION, -1).token_ids) == [4, 5, 6, 9]


def test_zero_gives_values_and_no_tops():
    """0 alternatives: the token's value alone, as the reference sends it; prompts alike."""
    answer = CompletionOutput(index=0, token_ids=[9, 4], logprobs=[POSITION, POSITION])

    logprobs = to_output_logprobs(answer, 0)

    assert list(logprobs.token_logprobs) == [-7.0, -1.0]
    assert not logprobs.top_logprobs
    assert not to_input_logprobs([1, 9], [None, POSITION], 0).top_logprobs


def test_positions_stay_aligned_when_one_is_missing():
    """A position without an entry is filled in, not skipped."""
    answer = CompletionOutput(index=0, token_ids=[9, 9, 9], logprobs=[POSITION, {}])

    logprobs = to_output_logprobs(answer, 1)

    assert list(logprobs.token_ids) == [9, 9, 9]
    assert list(logprobs.token_logprobs) == [-7.0, LOWEST_LOGPROB, LOWEST_LOGPROB]
    assert [len(top.token_ids) for top in logprobs.top_logprobs] == [1, 0, 0]


def test_minus_infinity_becomes_a_number():
    """JSON made of the answer must stay valid."""
    answer = CompletionOutput(index=0, token_ids=[1], logprobs=[{1: Logprob(-math.inf, 9)}])

    assert list(to_output_logprobs(answer, 1).token_logprobs) == [LOWEST_LOGPROB]


def test_first_prompt_token_has_no_value():
    """Nothing precedes it; the others are aligned behind it."""
    logprobs = to_input_logprobs([1, 9], [None, POSITION], 2)

    assert [value.HasField("value") for value in logprobs.token_logprobs] == [False, True]
    assert logprobs.token_logprobs[1].value == -7.0
    assert [list(top.token_ids) for top in logprobs.top_logprobs] == [[], [4, 5]]


def test_logprobs_that_were_not_asked_for_are_not_sent():
    """Whatever the engine gives."""
    answer = CompletionOutput(index=0, token_ids=[9], logprobs=[POSITION])

    assert to_output_logprobs(answer, None) is None
    assert to_input_logprobs([1], [None], None) is None


def test_prompt_logprobs_come_once_per_answer():
    """On the first chunk of each index, and on nothing after it."""
    reply = StreamedReply(SamplingParams(n=2, prompt_logprobs=1))
    prompt_logprobs = [None, POSITION]

    def news(finish_reason=None):
        answers = [
            CompletionOutput(index=i, token_ids=[4], finish_reason=finish_reason) for i in range(2)
        ]
        return list(reply.messages(output(*answers, prompt_logprobs=prompt_logprobs)))

    first, last = news(), news(FinishReason.LENGTH)

    assert [m.chunk.HasField("input_logprobs") for m in first] == [True, True]
    assert not any(m.chunk.HasField("input_logprobs") for m in last)
    assert not any(m.complete.HasField("input_logprobs") for m in last)


def test_answer_without_any_token_still_ends():
    """Aborted before its first token: no chunk, one complete."""
    reply = StreamedReply(SamplingParams())
    aborted = CompletionOutput(index=0, finish_reason=FinishReason.ABORT)

    messages = list(reply.messages(output(aborted, is_finished=True)))

    assert [m.WhichOneof("response") for m in messages] == ["complete"]
    assert messages[0].complete.finish_reason == "abort"
    reply.end()


def test_answer_that_has_ended_is_not_repeated():
    """A finished answer that is listed again gives no second complete."""
    reply = StreamedReply(SamplingParams())
    done = output(CompletionOutput(index=0, token_ids=[4], finish_reason=FinishReason.STOP))

    assert len(list(reply.messages(done))) == 2
    assert list(reply.messages(done)) == []


def test_broken_stream_never_looks_complete():
    """An engine that stops without ending an answer is an error, streamed or not."""
    partial = output(CompletionOutput(index=0, token_ids=[4]))
    streamed, whole = StreamedReply(SamplingParams()), WholeReply(SamplingParams())
    list(streamed.messages(partial))
    whole.add(partial)

    with pytest.raises(GenerationError, match="before every answer was finished"):
        streamed.end()
    with pytest.raises(GenerationError, match="before every answer was finished"):
        next(whole.messages())


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3),
            st.integers(0, 5),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_a_chunk_is_written_over_to_the_same_bytes(steps):
    """As if each were made anew, whatever came before it: other answers, other lengths, other numbers."""
    reused = StreamedReply(SamplingParams(n=2, logprobs=1))
    for index, token_ids, num_cached_tokens, has_logprobs in steps:
        logprobs = [POSITION] * len(token_ids) if has_logprobs else None
        answer = CompletionOutput(index=index, token_ids=token_ids, logprobs=logprobs)
        emitted = msgspec.structs.replace(output(answer), num_cached_tokens=num_cached_tokens)
        [message] = reused.messages(emitted)
        [anew] = StreamedReply(SamplingParams(n=2, logprobs=1)).messages(emitted)
        assert message.SerializeToString() == anew.SerializeToString()
