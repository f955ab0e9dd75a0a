"""Adapters on the rows of a step: equal to merged weights, and no row looks at another's."""

from dataclasses import replace

import numpy as np
import pytest

from tests.compute.adapted import BLOCK_SIZE, EVERY, part, prompt, run
from tests.compute.steps import step
from tests.model.adapters import ATTENTION, MLP, merged, write_adapter
from weft.compute.reference.runner import ReferenceRunner
from weft.model.lora import AdapterTargets, read_adapter
from weft.model.open import open_model

CHECKPOINT = open_model(
    "embedded:random?qk_norm=true&hidden=68&heads=5&kv_heads=1&head_dim=14&intermediate=99&vocab=301"
)
SPEC = CHECKPOINT.spec


def make_adapter(directory, targets=EVERY, **options):
    """One that was read from disk."""
    path = write_adapter(directory, SPEC, targets=targets, **options)
    return read_adapter(path, AdapterTargets.of(SPEC, "qwen3"), max_rank=64)


def make_runner(weights=None):
    """The reference, with room for three sequences of 64 tokens."""
    runner = ReferenceRunner(SPEC, weights or CHECKPOINT.load(), max_model_len=64)
    runner.allocate_kv(num_blocks=24, block_size=BLOCK_SIZE)
    return runner


@pytest.mark.parametrize(
    "targets", [ATTENTION, MLP, ("embed_tokens",), ("lm_head",), EVERY], ids="-".join
)
def test_an_adapter_is_equal_to_merged_weights(tmp_path, targets):
    """Whatever it is on; and it does change what comes out."""
    adapter = make_adapter(tmp_path / "a", targets)
    runner = make_runner()
    ids = prompt(1, 50)
    plain = run(runner, [part(ids, 0)], None)
    runner.add_adapter(1, adapter)
    with_adapter = run(runner, [part(ids, 0)], [1])
    expected = run(make_runner(merged(CHECKPOINT.load(), adapter)), [part(ids, 0)], None)
    assert np.abs(with_adapter - expected).max() < 1e-4
    assert np.abs(with_adapter - plain).max() > 0.1
    assert (with_adapter.argmax(1) == expected.argmax(1)).all()


def test_replaced_matrices_are_used(tmp_path):
    """`modules_to_save`: another embedding and another head."""
    rng = np.random.default_rng(3)
    adapter = make_adapter(tmp_path / "a", ATTENTION)
    whole = {
        "embed": rng.standard_normal((301, 68)).astype(np.float32),
        "head": rng.standard_normal((301, 68)).astype(np.float32),
    }
    adapter = replace(adapter, whole=whole)
    runner = make_runner()
    runner.add_adapter(1, adapter)
    ids = prompt(1, 20)
    expected = run(make_runner(merged(CHECKPOINT.load(), adapter)), [part(ids, 0)], None)
    assert np.abs(run(runner, [part(ids, 0)], [1]) - expected).max() < 1e-4


@pytest.mark.parametrize("rank", [1, 3, 16, 17])
def test_any_rank_is_equal_to_merged_weights(tmp_path, rank):
    """Tails of tiles, and ranks that are vectors, are not special."""
    adapter = make_adapter(tmp_path / "a", rank=rank)
    runner = make_runner()
    runner.add_adapter(1, adapter)
    ids = prompt(2, 17)
    expected = run(make_runner(merged(CHECKPOINT.load(), adapter)), [part(ids, 0)], None)
    assert np.abs(run(runner, [part(ids, 0)], [1]) - expected).max() < 1e-4


@pytest.mark.parametrize("rank", [1, 5])
def test_two_adapters_and_none_in_one_step_are_bitwise_as_alone(tmp_path, rank):
    """Grouped, chunked or one token at a time: a row's bits are its own."""
    runner = make_runner()
    runner.add_adapter(1, make_adapter(tmp_path / "a", rank=rank, seed=1))
    runner.add_adapter(2, make_adapter(tmp_path / "b", rank=rank, seed=2))
    prompts = [prompt(seed, length) for seed, length in ((1, 50), (2, 33), (3, 9))]
    ids = [2, 0, 1]
    alone = [
        np.concatenate(
            [run(runner, [part(p, place, t, t + 1)], [ids[place]]) for t in range(len(p))]
        )
        for place, p in enumerate(prompts)
    ]
    together = run(runner, [part(p, place) for place, p in enumerate(prompts)], ids)
    assert together.tobytes() == np.concatenate(alone).tobytes()
    # In another order, cut in two, and with the rows of an adapter scattered.
    order = [2, 0, 1]
    first = run(runner, [part(prompts[i], i, 0, 5) for i in order], [ids[i] for i in order])
    assert first.tobytes() == np.concatenate([alone[i][:5] for i in order]).tobytes()
    rest = run(runner, [part(prompts[i], i, 5) for i in order], [ids[i] for i in order])
    assert rest.tobytes() == np.concatenate([alone[i][5:] for i in order]).tobytes()


def test_rows_without_an_adapter_are_bitwise_those_of_the_model(tmp_path):
    """Loading one changes nothing for anybody else."""
    ids = prompt(4, 40)
    expected = run(make_runner(), [part(ids, 0)], None)
    runner = make_runner()
    runner.add_adapter(7, make_adapter(tmp_path / "a"))
    together = run(runner, [part(ids, 0), part(prompt(5, 20), 1)], [0, 7])
    assert together[:40].tobytes() == expected.tobytes()


def test_only_wanted_rows_get_the_head(tmp_path):
    """The head's adapter follows the rows that give logits."""
    runner = make_runner()
    runner.add_adapter(1, make_adapter(tmp_path / "a", seed=1))
    runner.add_adapter(2, make_adapter(tmp_path / "b", seed=2))
    parts = [part(prompt(1, 11), 0), part(prompt(2, 6), 1)]
    ids = np.array([1, 2], np.int32)
    every = runner.forward(replace(step(parts, BLOCK_SIZE), adapter_ids=ids))
    some = runner.forward(replace(step(parts, BLOCK_SIZE, [3, 10, 16]), adapter_ids=ids))
    assert some.tobytes() == every[[3, 10, 16]].tobytes()


def test_an_adapter_that_was_removed_is_unknown(tmp_path):
    """Its id may not be named again."""
    runner = make_runner()
    runner.add_adapter(1, make_adapter(tmp_path / "a"))
    runner.remove_adapter(1)
    with pytest.raises(KeyError):
        run(runner, [part([1, 2], 0)], [1])
