"""Beam search: against a plain search over the log-probabilities of the whole vocabulary."""

import msgspec
import pytest

import weft
from weft.core.errors import BadRequest
from weft.core.values.types import SamplingParams

SMALL = (
    "embedded:random?layers=1&hidden=32&heads=2&kv_heads=1&head_dim=16&intermediate=64&vocab=300"
)
PROMPT = {"prompt_token_ids": [5, 9, 17, 30]}
OTHER = {"prompt_token_ids": [40, 41]}
EVERYTHING = SamplingParams(temperature=0, max_tokens=1, logprobs=-1, detokenize=False)


@pytest.fixture(scope="module")
def llm():
    """A model whose log-probabilities can all be seen."""
    with weft.LLM(SMALL, max_logprobs=-1, max_model_len=64) as made:
        yield made


def next_logprobs(llm, token_ids):
    """Of every token of the vocabulary."""
    (output,) = llm.generate({"prompt_token_ids": token_ids}, EVERYTHING)
    return {t: entry.logprob for t, entry in output.outputs[0].logprobs[0].items()}


def plain_search(llm, prompt, width, num_steps, penalty, ends):
    """Every beam with every token; of each beam the 2 x width likeliest, and of those the best."""

    def score(beam):
        tokens, total = beam
        length = len(tokens) - (tokens[-1] in ends and len(tokens) > len(prompt))
        return total / length**penalty

    beams, ended = [(prompt, 0.0)], []
    for _ in range(num_steps):
        found = []
        for tokens, total in beams:
            likeliest = sorted(next_logprobs(llm, tokens).items(), key=lambda item: -item[1])
            found += [([*tokens, t], total + logprob) for t, logprob in likeliest[: 2 * width]]
        ended += [beam for beam in found if beam[0][-1] in ends]
        beams = sorted((b for b in found if b[0][-1] not in ends), key=score, reverse=True)[:width]
    return sorted([*ended, *beams], key=score, reverse=True)[:width]


def likely_third_token(llm):
    """A token that beams of this prompt come upon: with it as the end, some end early."""
    return plain_search(llm, PROMPT["prompt_token_ids"], 3, 3, 1.0, ())[0][0][-1]


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("has_end", [True, False])
def test_it_finds_what_a_plain_search_finds(llm, monkeypatch, penalty, has_end):
    """The same sequences in the same order, with the same sums."""
    end = likely_third_token(llm)
    client = llm._client
    config = msgspec.structs.replace(client.model_config, eos_token_ids=(end,))
    monkeypatch.setattr(client, "model_config", config)
    params = weft.BeamSearchParams(
        beam_width=3, max_tokens=5, length_penalty=penalty, ignore_eos=not has_end
    )
    outputs = llm.beam_search([PROMPT, OTHER], params)
    for prompt, output in zip((PROMPT, OTHER), outputs, strict=True):
        ends = (end,) if has_end else ()
        expected = plain_search(llm, prompt["prompt_token_ids"], 3, 5, penalty, ends)
        assert [beam.tokens for beam in output.sequences] == [tokens for tokens, _ in expected]
        sums = [beam.cum_logprob for beam in output.sequences]
        assert sums == pytest.approx([total for _, total in expected])


def test_a_width_of_one_is_greedy(llm):
    """The likeliest token each time."""
    params = weft.BeamSearchParams(beam_width=1, max_tokens=8, ignore_eos=True)
    (found,) = llm.beam_search(PROMPT, params)
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate(PROMPT, greedy)
    assert found.sequences[0].tokens == [*PROMPT["prompt_token_ids"], *output.outputs[0].token_ids]


def test_beams_share_what_they_have_in_common():
    """All but the last block of a step's prompts is in the prefix cache."""
    params = weft.BeamSearchParams(beam_width=4, max_tokens=6, ignore_eos=True)
    long = {"prompt_token_ids": list(range(5, 69))}
    with weft.LLM(SMALL, max_model_len=128, block_size=16) as llm:
        llm.beam_search(long, params)
        (output,) = llm.generate(long, SamplingParams(max_tokens=1))
    assert output.num_cached_tokens >= 48


@pytest.mark.parametrize(
    ("name", "value"),
    [("beam_width", 0), ("max_tokens", 0), ("temperature", 0.5), ("length_penalty", float("nan"))],
)
def test_what_cannot_be_searched_is_refused(llm, name, value):
    """By the parameter's name."""
    params = weft.BeamSearchParams(**{"beam_width": 2, "max_tokens": 2, name: value})
    with pytest.raises(BadRequest) as caught:
        llm.beam_search(PROMPT, params)
    assert caught.value.parameter == name
