"""Prompts as embeddings, to the bits of the token ids that they are the embeddings of."""

import numpy as np
import pytest

import weft
from tests.doubles.stepping import make_request
from weft.core.beam_search import BeamSearchParams
from weft.core.errors import BadRequest, ConfigError
from weft.core.values.prompts import EmbeddedTokens
from weft.core.values.types import SamplingParams, StreamingInput
from weft.engine.scheduling.sequence import Sequence
from weft.model.open import open_model

MODEL = (
    "embedded:random?layers=2&hidden=32&heads=2&kv_heads=1&head_dim=16&intermediate=64&vocab=300"
)
TABLE = open_model(MODEL).load().tensors["embed"].unpacked().float32()
RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(0, 300, size).tolist() for size in (1, 37, 16, 70, 5)]
DRAWN = SamplingParams(temperature=1.0, seed=3, max_tokens=40, logprobs=2, ignore_eos=True)
SETTINGS = {"enable_prompt_embeds": True, "max_model_len": 128, "block_size": 16}


def embeds(token_ids, table=TABLE):
    return {"prompt_embeds": table[token_ids]}


def answers(outputs):
    """Tokens and numbers; what half a character reads as depends on the tokens before it."""
    return [
        [(a.token_ids, [{i: (p.logprob, p.rank) for i, p in row.items()} for row in a.logprobs])
         for a in output.outputs]
        for output in outputs
    ]  # fmt: skip


@pytest.mark.parametrize("compute", ["native", "reference"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 24},
        # Room for fewer than run at once: some are preempted, and computed again.
        {
            "num_gpu_blocks_override": 12,
            "max_num_batched_tokens": 40,
            "enable_prefix_caching": False,
        },
    ],
)
def test_embeddings_of_tokens_give_what_the_tokens_give(compute, settings):
    """Every token and log-probability, beside prompts of ids, in chunks, and after preemption."""
    with weft.LLM(MODEL, compute=compute, **SETTINGS) as llm:
        expected = answers(llm.generate(PROMPTS, DRAWN, use_tqdm=False))
    mixed = [embeds(ids) if place % 2 else ids for place, ids in enumerate(PROMPTS)]
    with weft.LLM(MODEL, compute=compute, **SETTINGS, **settings) as llm:
        given = [embeds(ids) for ids in PROMPTS]
        assert answers(llm.generate(given, DRAWN, use_tqdm=False)) == expected
        assert answers(llm.generate(mixed, DRAWN, use_tqdm=False)) == expected
        values = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    assert (values["vllm:num_preemptions"] > 0) == ("num_gpu_blocks_override" in settings)


def test_the_cache_knows_embeddings_by_their_numbers():
    """The same ones are found again; others of as many rows, and ids in their place, are not."""
    ids = PROMPTS[3]
    with weft.LLM(MODEL, **SETTINGS) as llm:
        prompts = [embeds(ids), embeds(ids), embeds(ids, -TABLE), [0] * len(ids)]
        outputs = [llm.generate(prompt, DRAWN, use_tqdm=False)[0] for prompt in prompts]
    assert [output.num_cached_tokens for output in outputs] == [0, 64, 0, 0]
    assert answers(outputs[:1]) == answers(outputs[1:2])
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 3


def test_penalties_know_no_tokens_of_such_a_prompt():
    """The ids that stand for it were said by nobody."""
    embeds = [EmbeddedTokens(start=1, num_tokens=2, rows=bytes(8))]
    request = make_request("r", [5, 0, 0, 6], DRAWN, prompt_embeds=embeds)
    sequence = Sequence(request, 0, (0, 0))
    sequence.append(7, 100)
    assert sequence.seen_token_ids == [5, 6, 7]


def test_what_has_no_sense_of_embeddings_refuses_them():
    """Beams and prompts in pieces go on from token ids."""
    with weft.LLM(MODEL, **SETTINGS) as llm:
        with pytest.raises(BadRequest, match="prompt_embeds"):
            llm.beam_search(embeds([1]), BeamSearchParams(beam_width=2, max_tokens=2))

        async def ask():
            async def pieces():
                yield StreamingInput(embeds([1]))

            async for _ in llm._client.generate(pieces(), DRAWN, "r"):
                pass

        with pytest.raises(BadRequest, match="prompt_embeds"):
            llm._loop.submit(ask()).result(60)


@pytest.mark.parametrize(
    ("model", "options"), [("embedded:echo", {}), (MODEL, {"runner": "pooling"})]
)
def test_models_without_use_for_embeddings_refuse_the_flag(model, options):
    """Rather than every request with some."""
    with pytest.raises(ConfigError, match="--enable-prompt-embeds"):
        weft.LLM(model, enable_prompt_embeds=True, **options)
