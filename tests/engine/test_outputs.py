"""What a caller hears of one request, from what the engine says."""

import pytest

from tests.doubles.stepping import make_request
from tests.text.vocabularies import byte_level
from weft.core.checks.resolve_params import resolve_params
from weft.core.checks.validate import Limits
from weft.core.values.types import (
    FinishReason,
    Logprob,
    OutputKind,
    SamplingParams,
    SequenceOutput,
)
from weft.text.outputs.request_stream import RequestStream

TOKENIZER = byte_level()
END = TOKENIZER.token_to_id("<|end|>")
LIMITS = Limits(vocab_size=400, max_model_len=100_000, max_pool_tokens=100_000)
PROMPT = TOKENIZER.encode("say: ")


def ids_of(text):
    return TOKENIZER.encode(text)


def single_bytes(text):
    """One token a character, so that tests can place borders."""
    return [TOKENIZER.token_to_id({" ": "Ġ"}.get(char, char)) for char in text]


def stream(*, tokenizer=TOKENIZER, kind=OutputKind.DELTA, prompt=PROMPT, **params):
    given = SamplingParams(output_kind=kind, max_tokens=None, **params)
    resolved = resolve_params(given, len(prompt), LIMITS)
    request = make_request("r", prompt, resolved, eos_token_ids=(END,), prompt="say: ")
    return RequestStream(request, tokenizer)


def output_of(token_ids=(), index=0, **given):
    return SequenceOutput(engine_id="r-1", index=index, token_ids=list(token_ids), **given)


def summary(output):
    """The one answer of an output, shortly."""
    answer = output.outputs[0]
    return answer.text, answer.token_ids, answer.finish_reason, answer.stop_reason


def test_deltas_hold_only_what_is_new():
    """And there is nothing to say until there is news."""
    request = stream()
    assert request.pop() is None
    request.push(output_of(single_bytes("ab")))
    assert summary(request.pop()) == ("ab", single_bytes("ab"), None, None)
    assert request.pop() is None
    request.push(output_of(single_bytes("c"), finish_reason=FinishReason.LENGTH))
    last = request.pop()
    assert summary(last) == ("c", single_bytes("c"), FinishReason.LENGTH, None)
    assert last.is_finished
    assert last.finished
    assert request.pop() is None


def test_deltas_merge_when_the_consumer_lags():
    """A slow consumer gets longer deltas, not more of them."""
    request = stream()
    for char in "hello":
        request.push(output_of(single_bytes(char)))
    assert summary(request.pop())[0] == "hello"
    assert request.pop() is None


def test_cumulative_outputs_hold_everything_so_far():
    """For every answer, also those without news."""
    request = stream(kind=OutputKind.CUMULATIVE, n=2)
    request.push(output_of(single_bytes("a")))
    request.push(output_of(single_bytes("b"), index=1))
    request.pop()
    request.push(output_of(single_bytes("c"), finish_reason=FinishReason.LENGTH))
    output = request.pop()
    assert [answer.text for answer in output.outputs] == ["ac", "b"]
    assert not output.is_finished


def test_final_only_speaks_once_when_all_answers_are_done():
    """One output with all n answers, in order."""
    request = stream(kind=OutputKind.FINAL_ONLY, n=2)
    request.push(output_of(single_bytes("b"), index=1, finish_reason=FinishReason.LENGTH))
    assert request.pop() is None
    assert not request.is_finished
    request.push(output_of(single_bytes("a"), finish_reason=FinishReason.STOP, stop_reason=7))
    assert request.is_finished
    output = request.pop()
    assert [answer.index for answer in output.outputs] == [0, 1]
    assert output.is_finished
    assert request.pop() is None


def test_the_end_of_sequence_token_counts_but_does_not_show():
    """Its id stays, its text goes, and the reason is None."""
    request = stream(skip_special_tokens=False)
    request.push(output_of([*single_bytes("a"), END], finish_reason=FinishReason.STOP))
    assert summary(request.pop()) == ("a", [*single_bytes("a"), END], FinishReason.STOP, None)


def test_a_stop_tokens_text_shows_on_request():
    """include_stop_str_in_output is about tokens too."""
    request = stream(include_stop_str_in_output=True, skip_special_tokens=False)
    token_ids = single_bytes("ab")
    request.push(output_of([*token_ids, END], finish_reason=FinishReason.STOP, stop_reason=END))
    assert summary(request.pop()) == ("ab<|end|>", [*token_ids, END], FinishReason.STOP, END)


def test_a_stop_string_ends_its_answer_and_asks_to_abort_it():
    """The tokens of the match stay in the ids; what comes late is dropped."""
    request = stream(stop=["END"])
    assert not request.push(output_of(single_bytes("aEN")))
    assert summary(request.pop()) == ("a", single_bytes("aEN"), None, None)
    assert request.push(output_of(single_bytes("Dxyz")))
    assert summary(request.pop()) == ("", single_bytes("D"), FinishReason.STOP, "END")
    assert request.is_finished
    assert not request.push(output_of(single_bytes("late"), finish_reason=FinishReason.ABORT))
    assert request.pop() is None


def test_a_stop_string_wins_over_an_end_in_the_same_step():
    """The engine has already ended it, so there is nothing to tell."""
    request = stream(stop=["b"])
    assert not request.push(output_of(single_bytes("abc"), finish_reason=FinishReason.LENGTH))
    assert summary(request.pop()) == ("a", single_bytes("ab"), FinishReason.STOP, "b")


def test_one_answers_stop_string_leaves_the_others_running():
    """Each of the n answers ends on its own."""
    request = stream(stop=["x"], n=2)
    assert request.push(output_of(single_bytes("ax")))
    assert not request.is_finished
    assert not request.push(
        output_of(single_bytes("bc"), index=1, finish_reason=FinishReason.LENGTH)
    )
    output = request.pop()
    assert [(answer.text, answer.stop_reason) for answer in output.outputs] == [
        ("a", "x"),
        ("bc", None),
    ]
    assert output.is_finished


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.STOP])
def test_text_held_back_is_shown_at_the_end(reason):
    """For whatever reason it ends."""
    request = stream(stop=["STOP"])
    request.push(output_of(single_bytes("ok STO")))
    assert summary(request.pop())[0] == "ok "
    request.push(output_of(finish_reason=reason))
    assert summary(request.pop()) == ("STO", [], reason, None)


def test_abort_ends_every_open_answer_with_what_there_is():
    """Finished answers keep their reason; nothing is lost."""
    request = stream(kind=OutputKind.FINAL_ONLY, n=2, stop=["STOP"])
    request.push(output_of(single_bytes("a"), finish_reason=FinishReason.LENGTH))
    request.push(output_of(single_bytes("bST"), index=1))
    request.abort()
    request.abort()
    output = request.pop()
    assert [(answer.text, answer.finish_reason) for answer in output.outputs] == [
        ("a", FinishReason.LENGTH),
        ("bST", FinishReason.ABORT),
    ]


def test_an_open_character_becomes_a_mark_at_the_end():
    """As decoding the whole does."""
    owl = ids_of("🦉")
    request = stream()
    request.push(output_of(owl[:-1]))
    assert summary(request.pop())[0] == ""
    request.abort()
    assert summary(request.pop())[0] == "\ufffd"


def test_stop_strings_wait_for_min_tokens():
    """A match that ends within the first min_tokens tokens is text like any other."""
    request = stream(stop=["b"], min_tokens=2)
    assert not request.push(output_of(single_bytes("ab")))
    assert not request.push(output_of(single_bytes("c")))
    assert request.push(output_of(single_bytes("db")))
    assert summary(request.pop())[0] == "abcd"


def test_without_detokenising_there_are_only_ids():
    """Nothing is spent on text nobody asked for."""
    request = stream(detokenize=False, logprobs=0)
    request.push(output_of([65], logprobs=[[(65, -0.5, 1)]], finish_reason=FinishReason.LENGTH))
    answer = request.pop().outputs[0]
    assert (answer.text, answer.token_ids) == ("", [65])
    assert answer.logprobs == [{65: Logprob(-0.5, 1, None)}]


def test_without_a_tokenizer_there_are_only_ids():
    """A model may come without one."""
    request = stream(tokenizer=None)
    request.push(output_of([65], finish_reason=FinishReason.LENGTH))
    assert summary(request.pop())[:2] == ("", [65])


def test_logprobs_name_the_sampled_token_first():
    """The order of the engine's row is kept, and every entry has its text."""
    a, b, c = single_bytes("abc")
    request = stream(logprobs=2)
    row = [(c, -3.0, 3), (a, -0.5, 1), (b, -1.0, 2)]
    request.push(output_of([c], logprobs=[row]))
    answer = request.pop().outputs[0]
    assert list(answer.logprobs[0].items()) == [
        (c, Logprob(-3.0, 3, "c")),
        (a, Logprob(-0.5, 1, "a")),
        (b, Logprob(-1.0, 2, "b")),
    ]
    assert answer.cumulative_logprob == -3.0


def test_a_delta_without_tokens_has_no_logprobs():
    """An empty slice, not the whole list; the sum still counts all tokens."""
    (a,) = single_bytes("a")
    request = stream(logprobs=0)
    request.push(output_of([a], logprobs=[[(a, -0.5, 1)]]))
    request.pop()
    request.push(output_of(finish_reason=FinishReason.ABORT))
    answer = request.pop().outputs[0]
    assert (answer.token_ids, answer.logprobs) == ([], [])
    assert answer.cumulative_logprob == -0.5


def test_a_stop_string_drops_the_logprobs_behind_it_too():
    """Ids, log-probabilities and their sum stay aligned."""
    token_ids = single_bytes("axbc")
    rows = [[(token_id, -1.0, 1)] for token_id in token_ids]
    request = stream(stop=["x"], logprobs=0)
    request.push(output_of(token_ids, logprobs=rows))
    answer = request.pop().outputs[0]
    assert answer.token_ids == token_ids[:2]
    assert [list(row) for row in answer.logprobs] == [[token_id] for token_id in token_ids[:2]]
    assert answer.cumulative_logprob == -2.0


def test_logprob_text_looks_back_for_the_start_of_a_character():
    """Into the prompt as well, where the answer begins inside a character."""
    first, *rest = ids_of("🦉")
    request = stream(logprobs=0, prompt=[first])
    request.push(output_of(rest, logprobs=[[(token_id, -1.0, 1)] for token_id in rest]))
    answer = request.pop().outputs[0]
    texts = [entry.decoded_token for row in answer.logprobs for entry in row.values()]
    assert texts == [""] * (len(rest) - 1) + ["🦉"]
    assert answer.text == "🦉"


def test_prompt_logprobs_come_once_in_deltas_and_always_otherwise():
    """Entry 0 is None: nothing precedes the first token."""
    rows = [[(token_id, -1.0, 1)] for token_id in PROMPT[1:]]
    by_kind = {}
    for kind in (OutputKind.DELTA, OutputKind.CUMULATIVE):
        request = stream(kind=kind, prompt_logprobs=0)
        request.push(output_of(single_bytes("a"), prompt_logprobs=rows))
        first = request.pop()
        request.push(output_of(single_bytes("b"), finish_reason=FinishReason.LENGTH))
        by_kind[kind] = first.prompt_logprobs, request.pop().prompt_logprobs
    once, again = by_kind[OutputKind.DELTA]
    assert once[0] is None
    assert [list(row) for row in once[1:]] == [[token_id] for token_id in PROMPT[1:]]
    assert again is None
    assert by_kind[OutputKind.CUMULATIVE] == (once, once)


def test_cached_tokens_are_those_of_the_first_output():
    """A later output, after a preemption, does not change the count."""
    request = stream()
    request.push(output_of(single_bytes("a"), num_cached_tokens=3))
    assert request.pop().num_cached_tokens == 3
    request.push(output_of(single_bytes("b"), num_cached_tokens=5))
    assert request.pop().num_cached_tokens == 3


def test_an_error_is_the_requests_error():
    """One failed answer fails the request, with the engine's sentence."""
    request = stream(n=2)
    assert request.error is None
    request.push(output_of(finish_reason=FinishReason.ERROR, error="the logits are not finite"))
    assert request.error == "the logits are not finite"
    assert not request.is_finished


def test_every_output_names_its_request():
    """The caller's id, the prompt and its ids."""
    request = stream()
    request.push(output_of(single_bytes("a")))
    output = request.pop()
    assert (output.request_id, output.prompt) == ("r", "say: ")
    assert output.prompt_token_ids == PROMPT


@pytest.mark.parametrize("kind", [OutputKind.DELTA, OutputKind.CUMULATIVE])
def test_a_stream_interval_saves_outputs_up(kind):
    """The first token is told at once, then every so many, and the end whatever is left."""
    request = stream(kind=kind, stream_interval=3)
    lengths = []
    for step in range(9):
        is_last = step == 8
        request.push(output_of([80], finish_reason=FinishReason.LENGTH if is_last else None))
        output = request.pop()
        lengths.append(None if output is None else len(output.outputs[0].token_ids))
    deltas = [1, None, None, 3, None, None, 3, None, 2]
    whole = [1, None, None, 4, None, None, 7, None, 9]
    assert lengths == (deltas if kind is OutputKind.DELTA else whole)


def test_the_last_token_of_a_grammar_is_text():
    """A model without an end-of-sequence token stops with one that is not the caller's stop either."""
    [token_id] = TOKENIZER.encode("a")
    request = stream(kind=OutputKind.FINAL_ONLY)
    request.push(output_of([token_id], finish_reason=FinishReason.STOP))
    assert summary(request.pop())[0] == "a"


def test_a_prompts_scores_come_in_parts_or_again_with_every_answer():
    """An engine tells them step by step, a server behind gRPC whole with each answer: they are the same."""
    rows = [[(token_id, -1.0, 1)] for token_id in PROMPT[1:]]
    parts = stream(kind=OutputKind.FINAL_ONLY, prompt_logprobs=0, n=2)
    again = stream(kind=OutputKind.FINAL_ONLY, prompt_logprobs=0, n=2)
    end = {"finish_reason": FinishReason.LENGTH}
    parts.push(output_of(prompt_logprobs=rows[:1]))
    parts.push(output_of(single_bytes("a"), prompt_logprobs=rows[1:], **end))
    parts.push(output_of(single_bytes("b"), index=1, **end))
    again.push(output_of(single_bytes("a"), prompt_logprobs=rows, **end))
    again.push(output_of(single_bytes("b"), index=1, prompt_logprobs=rows, **end))
    whole = parts.pop()
    assert len(whole.prompt_logprobs) == len(PROMPT)
    assert whole == again.pop()


def scored(index, num_tokens, finish_reason=FinishReason.LENGTH):
    """An answer of which every token comes with a thousand log-probabilities."""
    row = [(token_id % 300, -1.0, token_id + 1) for token_id in range(1000)]
    rows = [row] * num_tokens
    return output_of([7] * num_tokens, index, logprobs=rows, finish_reason=finish_reason)


def test_deltas_with_many_log_probabilities_come_one_after_the_other():
    """An output leaves what would take too long to write and to let go of; the last one has the end."""
    request = stream(n=3, logprobs=20)
    for index in range(3):
        request.push(scored(index, 3))
    outputs = []
    while (output := request.pop()) is not None:
        outputs.append(([answer.index for answer in output.outputs], output.is_finished))
        assert request.has_more is not output.is_finished
    assert outputs == [([0], False), ([1], False), ([2], True)]


def test_a_delta_keeps_no_log_probabilities_that_it_emitted():
    """A long stream would hold a million of them, and let go of them in one piece."""
    request = stream(logprobs=20)
    request.push(scored(0, 1, finish_reason=None))
    first = request.pop().outputs[0]
    request.push(scored(0, 2))
    last = request.pop().outputs[0]
    assert (len(first.logprobs), len(last.logprobs)) == (1, 2)
    assert last.cumulative_logprob == -3.0
    assert request._answers[0].scores.num_new == 0
