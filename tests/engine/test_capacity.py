"""What a fitted model takes and holds, and the speeds that a machine's limits allow: weft.engine.start.capacity."""

import math

import numpy as np
import pytest

from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from weft.compute.native import Roofline
from weft.core.config.engine_options import EngineOptions
from weft.engine.start.capacity import Capacity, capacity_of
from weft.engine.start.fit import fit
from weft.model.files.layout import decoder_layout
from weft.model.open import find_model

MACHINE = Roofline(bytes_per_s=1e9, operations_per_s=1e9)


def capacity(name: str, roofline: Roofline | None = MACHINE, **options) -> Capacity:
    return capacity_of(fit(find_model(name), EngineOptions(model=name, **options)), roofline)


def test_the_pool_is_counted_in_tokens_and_in_sequences():
    """A MiB of blocks of 16 tokens of 1,280 bytes is 51 blocks; one of 128 tokens takes eight of them."""
    found = capacity("embedded:tiny", max_model_len=128, kv_cache_bytes=1 << 20)
    assert (found.kv_bytes_per_token, found.num_blocks, found.max_total_tokens) == (1280, 51, 816)
    assert (found.num_full, found.usual_tokens, found.num_usual) == (6, 128, 6)
    assert found.pool_bytes == 51 * 16 * 1280


def test_states_are_counted_with_the_blocks_that_hold_them():
    """Two of three layers keep two rows of 64 numbers each, the third keys and values."""
    found = capacity("embedded:random?layers=3&conv=3&dtype=bfloat16", kv_cache_bytes=1 << 20)
    assert (found.state_bytes_per_block, found.kv_bytes_per_token) == (2 * 2 * 64 * 2, 128)
    block = 16 * 128 + 512
    assert found.num_blocks == (1 << 20) // block
    assert found.pool_bytes == found.num_blocks * block


def test_slots_are_counted_beside_the_blocks():
    """Two of three layers keep rows of 2 * 2 * 16 + 4 * 16 channels, three each, and four matrices of 16 by 16."""
    found = capacity("embedded:random?layers=3&delta=4", kv_cache_bytes=1 << 20, max_num_seqs=3)
    slot = 2 * (3 * 128 + 4 * 16 * 16) * 4
    assert (found.num_state_slots, found.state_pool_bytes) == (6, 6 * slot)
    blocks = capacity("embedded:random?layers=3&delta=4", kv_cache_bytes=1 << 20, max_num_seqs=1)
    assert found.total_bytes - blocks.total_bytes >= 4 * slot


def test_rows_of_mamba_are_counted_in_a_step():
    """A product makes 128 elements of a gate, 192 of channels and four steps of time; of attention 128 in all."""
    shape = "embedded:random?layers=2&heads=4&kv_heads=2&head_dim=16&hidden=64&intermediate=96"
    plain, mamba = (
        capacity(f"{shape}{kind}&dtype=float32", max_num_batched_tokens=256)
        for kind in ("", "&mamba=4")
    )
    wider, convolved, given = 128 + 192 + 4 - 128, 192, 2 * (128 - 64)
    assert mamba.step_bytes - plain.step_bytes == 256 * 4 * (wider + convolved + given)


def test_what_is_rounded_takes_less():
    """The sizes are of the runner that will serve it, with int8 as without."""
    whole, rounded = capacity("embedded:tiny"), capacity("embedded:tiny", quantization="int8")
    assert rounded.weight_bytes < 0.8 * whole.weight_bytes
    halved = capacity("embedded:tiny", kv_cache_dtype="int8")
    assert halved.kv_bytes_per_token < 0.7 * whole.kv_bytes_per_token


def test_adapters_have_room_of_their_own():
    """They are reserved beside the weights, for as many as may be loaded."""
    assert capacity("embedded:tiny").adapter_bytes == 0
    one = capacity("embedded:tiny", enable_lora=True, max_loras=1, max_lora_rank=16)
    two = capacity("embedded:tiny", enable_lora=True, max_loras=2, max_lora_rank=16)
    assert two.adapter_bytes == 2 * one.adapter_bytes > 0


def test_several_engines_have_one_copy_of_the_weights():
    """And pools, steps and processes of their own."""
    one, two = (capacity("embedded:tiny", num_threads=2, data_parallel_size=n) for n in (1, 2))
    assert (two.num_engines, two.num_copies) == (2, 1)
    front_bytes = 2 * one.process_bytes - two.process_bytes
    assert two.total_bytes == 2 * one.total_bytes - one.weight_bytes - front_bytes
    assert front_bytes > 0


def test_a_larger_step_takes_more():
    """Activations are by the token of a step, and logits by the sequence."""
    small = capacity("embedded:tiny", max_num_batched_tokens=128, max_num_seqs=128)
    large = capacity("embedded:tiny", max_num_batched_tokens=256, max_num_seqs=128)
    fewer = capacity("embedded:tiny", max_num_batched_tokens=256, max_num_seqs=64)
    vocab_size = find_model("embedded:tiny").card.vocab_size
    assert small.step_bytes < large.step_bytes < 2 * small.step_bytes
    assert large.step_bytes - fewer.step_bytes == 64 * vocab_size * 4


def test_speeds_follow_from_the_machine_and_the_weights(tmp_path):
    """A step reads every matrix once, apart from the table of embeddings, and multiplies each once a row."""
    path = write_checkpoint(tmp_path / "model")
    found = fit(find_model(str(path)), EngineOptions(model=str(path)))
    speed = capacity_of(found, MACHINE).speed
    table = CONFIG["vocab_size"] * CONFIG["hidden_size"]
    layout = decoder_layout(found.checkpoint.spec)
    num_parameters = sum(math.prod(plan.shape) for plan in layout)
    assert speed is not None
    assert speed.prompts == pytest.approx(1e9 / 2 / (num_parameters - 2 * table))
    card = found.checkpoint.card
    read = card.weight_bytes - 4 * table
    moved_s = (read + 128 * card.kv_bytes_per_token) / 1e9
    assert speed.one_answer == pytest.approx(1 / moved_s)
    assert speed.together > speed.one_answer


def test_more_sequences_together_are_never_slower_than_the_multipliers():
    """Where many run, the multipliers bound them, not memory."""
    fast_memory = Roofline(bytes_per_s=1e15, operations_per_s=1e9)
    speed = capacity("embedded:tiny", fast_memory).speed
    assert speed is not None
    assert speed.together == pytest.approx(speed.one_answer)


def test_a_model_that_computes_nothing_has_no_speed():
    """There is nothing to read and nothing to multiply."""
    found = capacity("embedded:echo")
    assert (found.speed, found.step_bytes, found.weight_bytes) == (None, 0, 0)


def test_nothing_is_loaded_for_it(tmp_path):
    """Weights that cannot be served are not noticed, because nobody reads them."""
    tensors = {name: np.full_like(value, np.nan) for name, value in tensors_of().items()}
    path = write_checkpoint(tmp_path / "model", tensors=tensors)
    assert capacity(str(path)).weight_bytes > 0
