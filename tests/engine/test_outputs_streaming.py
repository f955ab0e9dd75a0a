"""However tokens arrive and whenever the consumer looks, the text is that of the whole."""

import time
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.test_outputs import PROMPT, TOKENIZER, output_of, single_bytes, stream
from weft.core.values.types import FinishReason, OutputKind

# Few different tokens, so that stop strings occur; pieces of characters and a special token among them.
OWL = TOKENIZER.encode("🦉")
TOKENS = [*single_bytes("ab c"), *OWL, 0, TOKENIZER.vocab_size + 1]
STOPS = st.lists(st.text("ab c", min_size=1, max_size=4), max_size=3)


def expected(token_ids, stops, is_included, min_tokens):
    """Decode every prefix of the tokens as a whole, and look at every prefix of the text."""

    def shown(num_tokens):
        whole = TOKENIZER.decode([*PROMPT, *token_ids[:num_tokens]])[len("say: ") :]
        return whole.rstrip("\ufffd") if has_open(token_ids[:num_tokens]) else whole

    for num_tokens in range(min_tokens + 1, len(token_ids) + 1):
        before, text = shown(num_tokens - 1), shown(num_tokens)
        for end in range(len(before) + 1, len(text) + 1):
            for stop in stops:
                if text[:end].endswith(stop):
                    return text[: end if is_included else end - len(stop)], num_tokens, stop
    whole = TOKENIZER.decode([*PROMPT, *token_ids])[len("say: ") :]
    return whole, len(token_ids), None


def has_open(token_ids):
    """Whether the tokens end inside a character (whose mark would be the last character)."""
    detokenizer = TOKENIZER.detokenizer()
    for token_id in token_ids:
        detokenizer.push(token_id)
    return detokenizer.flush() != ""


def run(request, steps):
    """Push the steps, popping where each says so, as a client would; all the outputs."""
    outputs = []
    for token_ids, is_popped in steps:
        is_ended = request.push(output_of(token_ids))
        if is_popped:
            outputs.append(request.pop())
        if is_ended:
            break
    request.push(output_of(finish_reason=FinishReason.LENGTH))
    outputs.append(request.pop())
    return [output.outputs[0] for output in outputs if output is not None]


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.lists(st.sampled_from(TOKENS), max_size=5), st.booleans()), max_size=12),
    STOPS,
    st.booleans(),
    st.integers(0, 6),
)
def test_all_kinds_say_the_same(steps, stops, is_included, min_tokens):
    """Concatenated deltas, the last cumulative output and the final one are the whole, cut at the stop."""
    token_ids = [token_id for step, _ in steps for token_id in step]
    text, num_tokens, stop = expected(token_ids, stops, is_included, min_tokens)
    options = {
        "stop": stops,
        "include_stop_str_in_output": is_included,
        "min_tokens": min_tokens,
    }
    deltas = run(stream(kind=OutputKind.DELTA, **options), steps)
    cumulative = run(stream(kind=OutputKind.CUMULATIVE, **options), steps)
    final = run(stream(kind=OutputKind.FINAL_ONLY, **options), steps)
    assert "".join(delta.text for delta in deltas) == cumulative[-1].text == final[-1].text == text
    assert [token_id for delta in deltas for token_id in delta.token_ids] == token_ids[:num_tokens]
    assert cumulative[-1].token_ids == final[-1].token_ids == token_ids[:num_tokens]
    assert deltas[-1].stop_reason == cumulative[-1].stop_reason == final[-1].stop_reason == stop
    assert len(final) == 1
    assert all(later.text.startswith(earlier.text) for earlier, later in pairwise(cumulative))


def test_a_long_answer_in_deltas_takes_linear_time():
    """Sixteen times the tokens cost far less than the 256 times of a quadratic way."""

    def seconds(num_tokens):
        request = stream(stop=["never seen", "nor this"])
        token_ids = single_bytes("abc ") * (num_tokens // 4)
        started = time.thread_time()
        for token_id in token_ids:
            request.push(output_of([token_id]))
            request.pop()
        return time.thread_time() - started

    short = min(seconds(1000) for _ in range(4))
    assert min(seconds(16_000) for _ in range(2)) < 64 * short
