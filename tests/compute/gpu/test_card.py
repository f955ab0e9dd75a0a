"""On a real card, in bfloat16: numbers, bits, graphs, choices, memory and sleep. `make test-gpu` runs these."""

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.compute.gpu.choices import check_against_twin
from tests.compute.gpu.formats import MIXED, mixed_checkpoint
from tests.compute.native.test_grouped import FORMATS, draw_matrix
from tests.compute.runners import load_runner
from tests.compute.steps import Part, alone, check_slots_of_others, run_at_random, step
from weft.compute.gpu.formats import BY_ROW
from weft.core.errors import ConfigError
from weft.core.values.types import SamplingParams
from weft.model.open import open_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("card"),
    pytest.mark.filterwarnings("ignore"),
]

WIDE = "layers=3&hidden=1024&heads=16&kv_heads=8&head_dim=128&intermediate=3072&vocab=2048"
SHAPES = {
    "qwen3": (f"{WIDE}&qk_norm=true", None),
    "llama, windows": (WIDE, 300),
    "experts": (
        "layers=2&hidden=256&heads=4&kv_heads=2&intermediate=512&vocab=301&experts=8&shared=96",
        None,
    ),
    "experts with biases": (
        "layers=2&hidden=256&heads=4&kv_heads=2&intermediate=320&vocab=301&experts=5&sinks=true",
        None,
    ),
    "odd sizes": (
        "qk_norm=true&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301",
        33,
    ),
}


def make_checkpoint(name):
    """A random model; every other layer has the window, and soft caps are on where there is one."""
    query, window = SHAPES[name]
    checkpoint = open_model(f"embedded:random?dtype=bfloat16&{query}")
    layers = tuple(
        replace(layer, window=window if place % 2 == 0 else None)
        for place, layer in enumerate(checkpoint.spec.layers)
    )
    cap = None if window is None else 20.0
    spec = replace(checkpoint.spec, layers=layers, attention_soft_cap=cap, final_soft_cap=cap)
    return replace(checkpoint, spec=spec)


def on_host(checkpoint, **options):
    from tests.compute.gpu.runners import OnHost

    return OnHost(checkpoint, max_model_len=4096, **options)


@pytest.mark.parametrize("name", [name for name in SHAPES if "experts" not in name])
def test_logits_are_near_the_reference(name):
    """Within what bfloat16 rounds, through steps of every kind; it may round a row to another expert."""
    checkpoint = make_checkpoint(name)
    rng = np.random.default_rng(3)
    sequences = [rng.integers(0, 300, length).tolist() for length in (700, 40)]
    reference = load_runner(checkpoint, compute="reference")
    expected = run_at_random(reference, sequences, np.random.default_rng(4), max_chunk=400)
    logits = run_at_random(on_host(checkpoint), sequences, np.random.default_rng(4), max_chunk=400)
    for a, b in zip(logits, expected, strict=True):
        assert np.linalg.norm(a - b) <= 0.01 * np.linalg.norm(b)


@pytest.mark.parametrize("name", SHAPES)
def test_any_schedule_gives_the_same_bits(name):
    """Random mixes, chunks, block sizes and placements, with graphs and without, equal one token at a time."""
    checkpoint = make_checkpoint(name)
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, 300, length).tolist() for length in (800, 7, 66, 1, 300)]
    plain, graphs = on_host(checkpoint, graphs=False), on_host(checkpoint)
    expected = [alone(plain, ids).tobytes() for ids in sequences]
    for runner, max_chunk in ((plain, 40), (graphs, 40), (graphs, 700)):
        got = run_at_random(runner, sequences, rng, max_chunk)
        assert [logits.tobytes() for logits in got] == expected


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_numbers_give_the_bits_of_the_dequantized_matrix(form):
    """In any number of rows: the kernel's values, and the order of its sums, are those of bfloat16 weights."""
    import torch

    from weft.compute.gpu.matrices.products import WideMatrix
    from weft.compute.gpu.matrices.stored_matrix import Numbers, StoredMatrix

    matrix = draw_matrix(np.random.default_rng(4), form, 1000, 1024)
    wide = torch.from_numpy(matrix.float32()).cuda().bfloat16()
    products = StoredMatrix.of(Numbers.of(matrix)), WideMatrix.of(wide)
    rows = torch.randn(700, 1024, device="cuda").bfloat16()
    for count in (1, 17, 130, 300, 700):
        outs = []
        for product in products:
            out = torch.zeros(product.num_parts * count * 1000, device="cuda")
            parts = product(rows[:count], out)
            outs.append(out[: parts * count * 1000].view(parts, -1))
        assert torch.equal(*outs)


@pytest.mark.parametrize("name", SHAPES)
def test_any_schedule_gives_the_same_bits_in_every_format(name):
    """The products of a model have their formats by turns, among them whole rows of int8."""
    checkpoint = mixed_checkpoint(f"dtype=bfloat16&{SHAPES[name][0]}", (*MIXED, BY_ROW))
    rng = np.random.default_rng(5)
    sequences = [rng.integers(0, 300, length).tolist() for length in (300, 7, 66)]
    plain = on_host(checkpoint, graphs=False, quantization="stored")
    graphs = on_host(checkpoint, quantization="stored")
    expected = [alone(plain, ids).tobytes() for ids in sequences]
    for runner, max_chunk in ((plain, 40), (graphs, 40), (graphs, 300)):
        got = run_at_random(runner, sequences, rng, max_chunk)
        assert [logits.tobytes() for logits in got] == expected


@pytest.mark.parametrize("count", [2, 5, 40, 100, 200, 300])
def test_a_row_is_the_same_among_others(count):
    """Whatever the tile that its product takes, and whether parts of keys are side by side or in turn."""
    runner = on_host(make_checkpoint("qwen3"))
    ids, blocks = list(range(1000)), list(range(63))
    runner.allocate_kv(num_blocks=64, block_size=16)
    runner.forward(step([Part(ids, 1000, blocks, 0, 999)], 16, []))
    one = runner.forward(step([Part(ids, 1000, blocks, 999, 1000)], 16))
    many = runner.forward(step([Part(ids, 1000, blocks, 999, 1000)] * count, 16))
    assert all(row.tobytes() == one[0].tobytes() for row in many)


def test_what_other_slots_hold_does_not_matter():
    """Stale NaN in slots of nobody, and of later positions, reaches no row."""
    runner = on_host(make_checkpoint("qwen3"))
    check_slots_of_others(runner, 8, lambda: runner.fill_kv(float("nan")))


@pytest.mark.parametrize("seed", range(20))
def test_choices_are_the_twin_s(seed):
    """On vocabularies of a program's block and of many."""
    from tests.compute.gpu.runners import on_device
    from weft.compute.gpu.choosing.sampler import GpuSampler

    rng = np.random.default_rng(seed)
    check_against_twin(GpuSampler(), on_device, rng, [17, 300, 5000, 152_000])


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_an_engine_answers_the_same_alone_cached_and_among_others(quantization):
    """Through the whole engine, sampled by temperature, with a pool so small that sequences are preempted."""
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=60, ignore_eos=True)
    rng = np.random.default_rng(0)
    prompts = [{"prompt_token_ids": rng.integers(5, 250, 100).tolist()} for _ in range(64)]
    model = f"embedded:random?dtype=bfloat16&max_len=1024&{SHAPES['qwen3'][0]}"
    options = {"num_gpu_blocks_override": 200, "max_model_len": 512}
    with weft.LLM(model, compute="gpu", quantization=quantization, **options) as llm:
        many = [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
        for place in (0, 33, 63):
            again = llm.generate(prompts[place], params, use_tqdm=False)
            assert again[0].outputs[0].token_ids == many[place]


def test_a_sleep_gives_the_card_its_memory_back():
    """And waking gives the same answers."""
    from weft.compute.gpu.card import find_card

    params = SamplingParams(temperature=0.0, max_tokens=8)
    model = f"embedded:random?dtype=bfloat16&max_len=1024&{SHAPES['qwen3'][0]}"
    with weft.LLM(model, compute="gpu", kv_cache_bytes=4 << 30, max_model_len=512) as llm:
        before = llm.generate("one two", params, use_tqdm=False)[0].outputs[0].token_ids
        awake = find_card().free_bytes
        llm.sleep()
        assert find_card().free_bytes - awake > 3 << 30
        llm.wake_up()
        assert llm.generate("one two", params, use_tqdm=False)[0].outputs[0].token_ids == before


def test_a_pool_that_does_not_fit_is_refused_at_the_start():
    """With the size that would fit; the process goes on."""
    model = f"embedded:random?dtype=bfloat16&{SHAPES['qwen3'][0]}"
    with pytest.raises(ConfigError, match="are free"):
        weft.LLM(model, compute="gpu", kv_cache_bytes=1 << 40)
