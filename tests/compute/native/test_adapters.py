"""Adapters in the native runner: what the reference and merged weights give, and nobody else's business."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.compute.adapted import BLOCK_SIZE, EVERY, part, prompt, run
from tests.compute.native.models import SHAPES
from tests.compute.steps import step
from tests.model.adapters import ATTENTION, MLP, merged, write_adapter
from weft.compute.native import Machine, NativeRunner, Rounding, resident_bytes, usable_paths
from weft.compute.reference.runner import ReferenceRunner
from weft.model.lora import Adapter, AdapterTargets, LowRank, read_adapter
from weft.model.open import open_model

PATHS = usable_paths()
ODD = "qk_norm=true&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301"
# By what is computed in: relative L2 error of all logits against the reference or merged weights.
ERRORS = {"float32": 2e-6, "bfloat16": 0.012, "int8": 0.03}


def opened(dtype, query=ODD):
    """A checkpoint that is computed in `dtype`; int8 is around bfloat16."""
    return open_model(f"embedded:random?{query}", dtype="bfloat16" if dtype == "int8" else dtype)


def make_adapter(directory, targets=EVERY, query=ODD, **options):
    """One that was read from disk."""
    checkpoint = open_model(f"embedded:random?{query}")
    spec, family = checkpoint.spec, checkpoint.card.model_type
    path = write_adapter(directory, spec, targets=targets, **options)
    return read_adapter(path, AdapterTargets.of(spec, family), max_rank=64)


def make_runner(dtype, path=None, num_threads=1, weights=None, query=ODD):
    """Room for four sequences of 64 tokens; soft caps and a divisor come after what adapters add."""
    checkpoint = opened(dtype, query)
    spec = replace(checkpoint.spec, final_soft_cap=20.0, logits_divisor=1.5)
    runner = NativeRunner(
        spec,
        weights or checkpoint.load(),
        dtype=checkpoint.card.dtype,
        max_model_len=64,
        rounding=Rounding(quantization="int8" if dtype == "int8" else None),
        machine=Machine(path, num_threads),
    )
    runner.allocate_kv(num_blocks=32, block_size=BLOCK_SIZE, num_state_slots=1)
    return runner


def make_reference(dtype, weights=None):
    """The oracle, in float32."""
    checkpoint = opened(dtype)
    spec = replace(checkpoint.spec, final_soft_cap=20.0, logits_divisor=1.5)
    quantization = "int8" if dtype == "int8" else None
    runner = ReferenceRunner(
        spec, weights or checkpoint.load(), max_model_len=64, quantization=quantization
    )
    runner.allocate_kv(num_blocks=32, block_size=BLOCK_SIZE)
    return runner


def error(logits, expected):
    """Relative to all of them."""
    return float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))


def whole_matrices(seed):
    """An embedding and a head, as `modules_to_save` has them."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.standard_normal((301, 68)).astype(np.float32) for name in ("embed", "head")}
    return {name: matrix * np.float32(0.2) for name, matrix in drawn.items()}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize(
    "targets", [ATTENTION, MLP, ("embed_tokens",), ("lm_head",), EVERY], ids="-".join
)
def test_an_adapter_gives_what_the_reference_gives(tmp_path, targets, dtype, path):
    """Whatever it is on, on every path; and it does change what comes out."""
    adapter = make_adapter(tmp_path / "a", targets)
    runner, reference = make_runner(dtype, path, 2), make_reference(dtype)
    ids = prompt(1, 50)
    plain = run(runner, [part(ids, 0)], None)
    for each in (runner, reference):
        each.add_adapter(1, adapter)
    logits = run(runner, [part(ids, 0)], [1])
    assert error(logits, run(reference, [part(ids, 0)], [1])) < ERRORS[dtype]
    assert error(logits, plain) > 0.1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rank", [1, 3, 16, 33])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_is_equal_to_merged_weights(tmp_path, dtype, rank, path):
    """Of any rank: what pads it adds nothing."""
    adapter = make_adapter(tmp_path / "a", rank=rank)
    runner = make_runner(dtype, path)
    runner.add_adapter(1, adapter)
    expected = make_runner(dtype, path, weights=merged(opened(dtype).load(), adapter))
    ids = prompt(2, 17)
    assert error(run(runner, [part(ids, 0)], [1]), run(expected, [part(ids, 0)], None)) < (
        2e-6 if dtype == "float32" else 0.02
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("conv=3", {"conv_in": (3 * 68, 68), "conv_out": (68, 68)}),
        ("mamba=8", {"mamba_in": (2 * 136 + 64 + 8, 68), "mamba_out": (68, 136)}),
        (
            "delta=6",
            {"delta_qkvz": (2 * 42 + 2 * 84, 68), "delta_ba": (12, 68), "delta_out": (68, 84)},
        ),
    ],
)
def test_an_adapter_of_what_is_in_place_of_attention_is_equal_to_merged_weights(path, kind, shapes):
    """On what leads into it, and out of it."""
    query = f"hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301&{kind}"
    rng = np.random.default_rng(4)
    low_rank = {
        f"layers.0.{name}": LowRank(
            a=rng.standard_normal((3, columns)).astype(np.float32) * np.float32(columns**-0.5),
            b=rng.standard_normal((rows, 3)).astype(np.float32),
        )
        for name, (rows, columns) in shapes.items()
    }
    adapter = Adapter(low_rank, {})
    runner = make_runner("float32", path, query=query)
    plain = run(runner, [part(prompt(2, 17), 0)], None)
    runner.add_adapter(1, adapter)
    weights = merged(opened("float32", query).load(), adapter)
    expected = make_runner("float32", path, weights=weights, query=query)
    got = run(runner, [part(prompt(2, 17), 0)], [1])
    assert error(got, run(expected, [part(prompt(2, 17), 0)], None)) < 2e-6
    assert error(got, plain) > 0.1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("targets", [ATTENTION, EVERY], ids=["beside", "under"])
def test_replaced_matrices_are_used(tmp_path, targets, dtype, path):
    """Another embedding and another head, with low-rank adapters of them or of others."""
    adapter = replace(make_adapter(tmp_path / "a", targets), whole=whole_matrices(3))
    runner, reference = make_runner(dtype, path, 2), make_reference(dtype)
    for each in (runner, reference):
        each.add_adapter(1, adapter)
    parts = [part(prompt(1, 20), 0), part(prompt(2, 9), 1), part(prompt(3, 5), 2)]
    for ids in ([1, 1, 1], [1, 0, 1]):
        logits = run(runner, parts, ids)
        assert error(logits, run(reference, parts, ids)) < ERRORS[dtype]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ERRORS)
def test_any_schedule_of_several_adapters_gives_the_same_bits(tmp_path, dtype, path):
    """Grouped, chunked, on any number of threads, and whoever else is there: a row's bits are its own."""
    adapters = {
        1: make_adapter(tmp_path / "a", seed=1),
        2: make_adapter(tmp_path / "b", MLP, rank=40, seed=2),
        5: replace(make_adapter(tmp_path / "c", seed=3), whole=whole_matrices(4)),
    }
    prompts = [prompt(seed, length) for seed, length in ((1, 50), (2, 33), (3, 9), (4, 21))]
    ids = [2, 0, 1, 5]
    expected = [
        alone(dtype, path, adapters.get(ids[place]), token_ids)
        for place, token_ids in enumerate(prompts)
    ]
    rng = np.random.default_rng(6)
    for num_threads, max_chunk in ((1, 60), (2, 7), (3, 25), (1, 1)):
        runner = make_runner(dtype, path, num_threads)
        for adapter_id, adapter in adapters.items():
            runner.add_adapter(adapter_id, adapter)
        got = run_at_random(runner, prompts, ids, rng, max_chunk)
        assert [logits.tobytes() for logits in got] == [logits.tobytes() for logits in expected]


def alone(dtype, path, adapter, token_ids):
    """One token at a time, on a runner that has no other adapter."""
    runner = make_runner(dtype, path)
    if adapter is not None:
        runner.add_adapter(9, adapter)
    ids = None if adapter is None else [9]
    rows = [run(runner, [part(token_ids, 0, p, p + 1)], ids) for p in range(len(token_ids))]
    return np.concatenate(rows)


def run_at_random(runner, prompts, ids, rng, max_chunk):
    """The logits of every position, in random mixes, orders and chunks."""
    results = [np.zeros((len(p), 301), np.float32) for p in prompts]
    done = [0] * len(prompts)
    while open_ones := [i for i, p in enumerate(prompts) if done[i] < len(p)]:
        chosen = rng.permutation(open_ones)[: rng.integers(1, len(open_ones) + 1)]
        ends = [min(len(prompts[i]), done[i] + int(rng.integers(1, max_chunk + 1))) for i in chosen]
        parts = [part(prompts[i], i, done[i], end) for i, end in zip(chosen, ends, strict=True)]
        logits = run(runner, parts, [ids[i] for i in chosen])
        row = 0
        for i, end in zip(chosen, ends, strict=True):
            results[i][done[i] : end] = logits[row : row + end - done[i]]
            row += end - done[i]
            done[i] = end
    return results


@pytest.mark.parametrize("dtype", ERRORS)
def test_only_wanted_rows_get_the_head(tmp_path, dtype):
    """The head's adapter follows the rows that give logits, in whatever order; none is a valid step."""
    runner = make_runner(dtype, num_threads=2)
    runner.add_adapter(1, make_adapter(tmp_path / "a", seed=1))
    whole = whole_matrices(8)
    runner.add_adapter(2, replace(make_adapter(tmp_path / "b", seed=2), whole=whole))
    parts = [part(prompt(1, 11), 0), part(prompt(2, 6), 1), part(prompt(3, 4), 2)]
    every = run(runner, parts, [1, 2, 0])
    for rows in ([3, 10, 16], [16, 3], [20], [12], []):
        assert run(runner, parts, [1, 2, 0], rows).tobytes() == every[rows].tobytes()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ERRORS)
def test_what_is_no_number_stays_in_rows_of_its_adapter(tmp_path, dtype, path):
    """Beside rows of another adapter and of none, between which its own lie."""
    good, bad = make_adapter(tmp_path / "a"), make_adapter(tmp_path / "b", seed=2)
    broken = {n: LowRank(d.a, d.b * np.float32(np.nan)) for n, d in bad.low_rank.items()}
    runner = make_runner(dtype, path, 2)
    runner.add_adapter(1, good)
    runner.add_adapter(2, Adapter(broken, {}))
    parts = [part(prompt(seed, 12), place) for place, seed in enumerate((1, 2, 3, 4))]
    expected = run(runner, parts, [1, 0, 0, 1])
    logits = run(runner, parts, [1, 2, 0, 1])
    assert np.isnan(logits[12:24]).all()
    logits[12:24] = expected[12:24]
    assert logits.tobytes() == expected.tobytes()


def test_matrices_of_a_fused_module_share_what_leads_to_their_rank(tmp_path):
    """Phi's q, k and v have one `a`: the same logits as with three copies of it."""
    adapter = make_adapter(tmp_path / "a", ("q_proj",))
    rng = np.random.default_rng(1)
    a = rng.standard_normal((5, 68)).astype(np.float32)
    sizes = (("q", 70), ("k", 14), ("v", 14))
    b = {name: rng.standard_normal((size, 5)).astype(np.float32) for name, size in sizes}
    prefix = next(iter(adapter.low_rank)).removesuffix("q")
    shared = Adapter({prefix + name: LowRank(a, b[name]) for name in b}, {})
    apart = Adapter({prefix + name: LowRank(a.copy(), b[name]) for name in b}, {})
    runner = make_runner("float32")
    runner.add_adapter(1, shared)
    runner.add_adapter(2, apart)
    ids = prompt(1, 20)
    first, second = (run(runner, [part(ids, 0)], [adapter_id]) for adapter_id in (1, 2))
    assert error(first, second) < 1e-6


@pytest.mark.parametrize(
    "query", [query for query, _ in SHAPES.values() if not re.search("conv=|mamba=|delta=", query)]
)
def test_models_of_other_shapes_take_adapters_too(tmp_path, query):
    """Heads that are padded, and matrices wider than a block."""
    experts = opened("float32", query).spec.layers[0].experts
    targets = ATTENTION if experts and not experts.shared_size else EVERY
    adapter = make_adapter(tmp_path / "a", targets, query)
    runner = make_runner("float32", query=query)
    runner.add_adapter(1, adapter)
    expected = make_runner(
        "float32", weights=merged(opened("float32", query).load(), adapter), query=query
    )
    ids = np.random.default_rng(2).integers(0, 300, 40).tolist()
    assert error(run(runner, [part(ids, 0)], [1]), run(expected, [part(ids, 0)], None)) < 1e-5


def test_an_adapter_that_was_removed_is_unknown(tmp_path):
    """Its id may not be named again, until another has it."""
    runner = make_runner("float32")
    first, second = make_adapter(tmp_path / "a"), make_adapter(tmp_path / "b", seed=2)
    runner.add_adapter(1, first)
    before = run(runner, [part([1, 2], 0)], [1])
    runner.remove_adapter(1)
    with pytest.raises(ValueError, match=r"adapter_ids\[0\] is 1"):
        run(runner, [part([1, 2], 0)], [1])
    runner.add_adapter(1, second)
    assert run(runner, [part([1, 2], 0)], [1]).tobytes() != before.tobytes()


@pytest.mark.parametrize("ids", [[2, 1], [-1, 1], [1], [1, 1, 1], [2**31 - 1, 0]])
def test_ids_that_are_no_adapter_s_are_refused(tmp_path, ids):
    """An unknown one, and one too many or too few; then a good step is what it was."""
    runner = make_runner("float32")
    runner.add_adapter(1, make_adapter(tmp_path / "a"))
    parts = [part([1, 2], 0), part([3], 1)]
    expected = run(runner, parts, [0, 1])
    with pytest.raises(ValueError, match="adapter_ids"):
        run(runner, parts, ids)
    assert run(runner, parts, [0, 1]).tobytes() == expected.tobytes()


def test_ids_of_another_type_are_refused():
    """They would be read as something they are not."""
    batch = replace(step([part([1, 2], 0)], BLOCK_SIZE), adapter_ids=np.zeros(1, np.int64))
    with pytest.raises(TypeError):
        make_runner("float32").forward(batch)


def matrix(rows, columns):
    """Zeros."""
    return np.zeros((rows, columns), np.float32)


@pytest.mark.parametrize(
    ("low_rank", "whole", "message"),
    [
        ({"layers.0.q": (matrix(2, 67), matrix(70, 2))}, {}, r"layers\.0\.q: a must have shape"),
        ({"layers.0.q": (matrix(2, 68), matrix(70, 3))}, {}, r"layers\.0\.q: b must have shape"),
        ({"layers.0.o": (matrix(2, 70), matrix(69, 2))}, {}, r"layers\.0\.o: b must have shape"),
        ({"layers.0.q": (matrix(0, 68), matrix(70, 0))}, {}, "from 1 to 4096 rows"),
        ({"layers.0.q": (matrix(4097, 68), matrix(70, 4097))}, {}, "from 1 to 4096 rows"),
        ({"layers.9.q": (matrix(2, 68), matrix(70, 2))}, {}, "belongs to no layer"),
        ({"layers.0.norm": (matrix(2, 68), matrix(70, 2))}, {}, "is not part of this model"),
        ({"embed": (matrix(2, 68), matrix(301, 2))}, {}, "embed: a must have shape"),
        ({"head": (matrix(2, 68), matrix(300, 2))}, {}, "head: b must have shape"),
        ({}, {"head": matrix(300, 68)}, "head must have shape"),
        ({}, {"embed": matrix(301, 69)}, "embed must have shape"),
        ({}, {"layers.0.q": matrix(70, 68)}, "cannot be replaced as a whole"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(low_rank, whole, message):
    """By the part at fault, and without a trace."""
    runner = make_runner("float32")
    adapter = Adapter({name: LowRank(*both) for name, both in low_rank.items()}, whole)
    with pytest.raises(ValueError, match=message):
        runner.add_adapter(1, adapter)
    runner.add_adapter(1, Adapter({}, {}))
    runner.remove_adapter(1)


@pytest.mark.parametrize("adapter_id", [0, -1, 1])
def test_an_id_that_no_adapter_can_have_is_refused(adapter_id):
    """0 is the model as it is, and 1 is taken."""
    runner = make_runner("float32")
    runner.add_adapter(1, Adapter({}, {}))
    with pytest.raises(ValueError, match="adapter_id"):
        runner.add_adapter(adapter_id, Adapter({}, {}))


def test_an_unknown_adapter_cannot_be_removed():
    """Nor one that was removed before."""
    with pytest.raises(ValueError, match="adapter_id 3"):
        make_runner("float32").remove_adapter(3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [8, 16, 40])
def test_the_card_has_what_adapters_take(tmp_path, rank, dtype):
    """No more than is kept free for them, and not much less."""
    query = "layers=4&hidden=256&heads=8&kv_heads=8&head_dim=32&intermediate=704&vocab=4000"
    adapter = make_adapter(tmp_path / "a", rank=rank, query=query)
    expected = resident_bytes(opened(dtype, query).spec, dtype).adapter.of(rank)
    runner = make_runner(dtype, query=query)
    before = _resident()
    for adapter_id in range(1, 6):
        runner.add_adapter(adapter_id, adapter)
    taken = (_resident() - before) / 5
    assert 0.7 * expected < taken < 1.05 * expected + (64 << 10)


def _resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
