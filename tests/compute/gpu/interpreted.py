"""The kernels in Triton's interpreter, in float32: numbers, bits, choices and whole engines, without a card.

`test_interpreter.py` runs this: the environment has to choose the interpreter before anything imports Triton.
"""

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.compute.families import CASES, make_model, save
from tests.compute.gpu.choices import check_against_twin
from tests.compute.gpu.runners import OnHost, on_device
from tests.compute.runners import load_runner
from tests.compute.steps import (
    Part,
    alone,
    check_slots_of_others,
    check_wanted_rows,
    run_at_random,
    run_in_steps,
    step,
)
from weft.compute.gpu.choosing.sampler import GpuSampler
from weft.compute.gpu.supported import model_refusal, spec_refusal
from weft.core.values.types import SamplingParams
from weft.engine.drafting.draft_sampler import DraftSampler
from weft.model.open import open_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of NaN that numpy meets in rows of nobody

DECODERS = (
    *("llama with biases, tied, wide heads", "llama, llama3 rope", "mistral", "qwen2", "qwen3"),
    *("smollm3", "phi3, partial rope", "phi3, longrope, long", "granite", "olmo2", "gemma2"),
    *("arcee with biases, yarn", "exaone4", "glm4", "ernie4_5", "starcoder2", "stablelm"),
    *(
        "cohere2",
        "cohere, norms of queries and keys",
        "phi",
        "gpt_neox",
        "hunyuan_v1_dense with biases, tied",
    ),
    *("llama4_text", "llama4_text, two experts a token, listed layers, no norms, no temperature"),
    *("ernie4_5_moe", "ernie4_5_moe, every second layer, up to the third, no shared experts"),
)


@pytest.mark.parametrize("name", DECODERS)
def test_logits_agree_with_the_reference(name, tmp_path):
    """Every switch of decoders, through prompts in chunks, single rows, and scattered blocks."""
    checkpoint = open_model(save(make_model(*CASES[name]), tmp_path))
    assert model_refusal(checkpoint.card) is None
    assert spec_refusal(checkpoint.spec) is None
    rng = np.random.default_rng(3)
    # The longest window has 37.
    sequences = [rng.integers(0, 320, length).tolist() for length in (42, 3)]
    reference = load_runner(checkpoint, max_model_len=200, compute="reference")
    ends = ([30, 2], [31, 3], [42, 3])
    expected, logits = (
        run_in_steps(runner, sequences, ends, np.random.default_rng(4))
        for runner in (reference, OnHost(checkpoint))
    )
    differences = [np.abs(a - b).max() for a, b in zip(logits, expected, strict=True)]
    assert max(differences) <= 2e-4
    assert min(a.std() for a in expected) > 0.5  # flat logits would agree about nothing


SHAPES = (
    "layers=1&hidden=64&heads=4&kv_heads=2&vocab=300",
    "layers=2&qk_norm=true&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301",
)


@pytest.mark.parametrize("query", SHAPES)
def test_any_schedule_gives_the_same_bits(query):
    """Random mixes, chunks, block sizes and placements equal one token at a time, bit for bit."""
    runner = OnHost(open_model(f"embedded:random?{query}"))
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, 300, length).tolist() for length in (35, 7, 1)]
    expected = [alone(runner, ids).tobytes() for ids in sequences]
    for max_chunk in (5, 30):
        got = run_at_random(runner, sequences, rng, max_chunk)
        assert [logits.tobytes() for logits in got] == expected


def test_what_other_slots_hold_does_not_matter():
    """Stale NaN in slots of nobody, and of later positions, reaches no row."""
    runner = OnHost(open_model(f"embedded:random?{SHAPES[0]}"))
    check_slots_of_others(runner, 8, lambda: runner.fill_kv(float("nan")), (20, 21, 22), 37)


def test_rows_begin_with_given_embeddings(tmp_path):
    """Given the rows of its own table a prompt has the bits of its tokens; any others, what the reference computes.

    The model multiplies its embeddings.
    """
    checkpoint = open_model(save(make_model(*CASES["granite"]), tmp_path))
    runner = OnHost(checkpoint)
    token_ids = np.random.default_rng(6).integers(0, 300, 9).tolist()
    whole = step([Part(token_ids, 9, [1, 2], 0, 9)], 8)
    table = runner.inner._decoder._embed[:, : runner.inner.spec.hidden_size].numpy()
    rows = np.array([2, 3, 7], np.int32)

    def given(embeds):
        return replace(whole, embed_rows=rows, embeds=np.ascontiguousarray(embeds, np.float32))

    def forward(runner, batch):
        runner.allocate_kv(num_blocks=3, block_size=8)
        return np.array(runner.forward(batch))

    own, others = given(table[whole.token_ids[rows]]), given(table[[5, 6, 7]])
    assert forward(runner, own).tobytes() == forward(runner, whole).tobytes()
    reference = load_runner(checkpoint, max_model_len=200, compute="reference")
    expected = forward(reference, others)
    assert np.abs(forward(runner, others) - expected).max() <= 2e-4
    assert np.abs(expected - forward(runner, whole)).max() > 0.1


def test_blocks_are_copied_out_and_into_other_places():
    """All layers' keys and values go with a block, and what follows has the bits of an undisturbed sequence."""
    runner = OnHost(open_model(f"embedded:random?{SHAPES[1]}"))
    token_ids = list(range(11))
    expected = alone(runner, token_ids)[-3:]
    runner.allocate_kv(num_blocks=6, block_size=4)
    runner.forward(step([Part(token_ids, 11, [3, 5], 0, 8)], 4))
    copies = [runner.inner.read_block(block) for block in (3, 5)]
    runner.fill_kv(float("nan"))
    for block, copy in zip((1, 0), copies, strict=True):
        runner.inner.write_block(block, copy)
    rows = runner.forward(step([Part(token_ids, 11, [1, 0, 2], 8, 11)], 4))
    assert rows.tobytes() == expected.tobytes()


def test_only_the_wanted_rows_are_returned():
    """`logit_rows` picks rows; none at all is a valid step of unfinished prompts."""
    check_wanted_rows(OnHost(open_model(f"embedded:random?{SHAPES[0]}")))


@pytest.mark.parametrize("seed", range(12))
def test_choices_are_the_twin_s(seed):
    """Whatever is masked, biased, penalised, cut off and scored, on any shape of distribution."""
    rng = np.random.default_rng(seed)
    check_against_twin(GpuSampler(), on_device, rng, [1, 2, 17, 300, 5000])


REQUESTS = [
    SamplingParams(temperature=0.0, max_tokens=5),
    SamplingParams(seed=3, max_tokens=5),
    SamplingParams(seed=4, max_tokens=5, top_p=0.8, top_k=30, repetition_penalty=1.2, logprobs=2),
]


def answers(compute):
    options = {"max_num_seqs": 4, "max_model_len": 64, "kv_cache_bytes": 1 << 20}
    with weft.LLM(f"embedded:random?{SHAPES[0]}", compute=compute, **options) as llm:
        outputs = llm.generate(["one", "two", "three"], REQUESTS, use_tqdm=False)
        alone_again = llm.generate(["three"], REQUESTS[2], use_tqdm=False)
    return [output.outputs[0].token_ids for output in (*outputs, *alone_again)]


DRAFTS = {
    "ngram": {"prompt_lookup_min": 1},
    "the model itself": {"model": f"embedded:random?{SHAPES[0]}"},
    "another model": {"model": f"embedded:random?{SHAPES[0]}&seed=7"},
}


@pytest.mark.parametrize("name", DRAFTS)
def test_drafts_change_no_answer(name):
    """The rows of drafts are checked beside those of other requests; some are right, and some are not."""
    options = {"max_num_seqs": 4, "max_model_len": 64, "kv_cache_bytes": 1 << 20, "compute": "gpu"}
    prompts = [{"prompt_token_ids": ids} for ids in ([5, 6, 7, 5, 6, 7, 5], [9, 9, 9], [1, 2])]
    config = {"num_speculative_tokens": 2, **DRAFTS[name]}
    model = f"embedded:random?{SHAPES[0]}"
    with weft.LLM(model, speculative_config=config, **options) as llm:
        got = llm.generate(prompts, REQUESTS, use_tqdm=False)
        counts = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    with weft.LLM(model, **options) as llm:
        expected = llm.generate(prompts, REQUESTS, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in expected]
    num_drafted = counts["vllm:spec_decode_num_draft_tokens"]
    num_right = counts["vllm:spec_decode_num_accepted_tokens"]
    assert num_drafted > 0
    assert num_right == num_drafted if name == "the model itself" else num_right < num_drafted


def test_logits_of_a_draft_model_with_fewer_padding_tokens_are_widened():
    """On the device, as numpy's are."""
    rows = np.array([[1.0, 2.0]], np.float32)
    widened = DraftSampler(GpuSampler(), 4)._fitted(on_device(rows))
    assert widened.tolist() == DraftSampler(GpuSampler(), 4)._fitted(rows).tolist()
    assert widened.tolist() == [[1.0, 2.0, -np.inf, -np.inf]]


def embeddings(compute, prompts):
    options = {"max_num_seqs": 4, "max_model_len": 64, "kv_cache_bytes": 1 << 20}
    model = f"embedded:random?{SHAPES[0]}"
    with weft.LLM(
        model, compute=compute, runner="pooling", max_num_batched_tokens=16, **options
    ) as llm:
        return llm.embed(prompts)


def test_an_engine_embeds_as_the_cpu_does():
    """A prompt of several chunks too; and a prompt alone has the bits that it has among others."""
    prompts = ["one", "two " * 9, "three"]
    got = embeddings("gpu", prompts)
    assert np.allclose(got, embeddings("native", prompts), atol=1e-4)
    assert embeddings("gpu", prompts[1:2]) == got[1:2]


def test_an_engine_takes_evicted_blocks_from_its_second_tier():
    """The pool has room for one prompt; the answers are the same, and most of the prompts was not computed again."""
    options = {"max_num_seqs": 1, "max_model_len": 48, "block_size": 16, "compute": "gpu"}
    prompts = [{"prompt_token_ids": list(range(first, first + 40))} for first in (0, 100, 200)]
    model, params = f"embedded:random?{SHAPES[0]}", SamplingParams(temperature=0.0, max_tokens=4)
    with weft.LLM(model, num_gpu_blocks_override=4, kv_offloading_size=0.001, **options) as llm:
        first, again = (llm.generate(prompts, params, use_tqdm=False) for _ in range(2))
    assert [o.outputs[0].token_ids for o in first] == [o.outputs[0].token_ids for o in again]
    assert all(output.num_cached_tokens >= 32 for output in again)


def test_a_whole_engine_answers_as_the_cpu_does():
    """Steps are launched ahead, tokens stay where the sampler left them, and a cached prompt changes nothing."""
    got = answers("gpu")
    assert got == answers("native")
    assert got[3] == got[2]
