"""Damage to GGUF files of latent attention ends in a `ConfigError` or in a model, never in a crash."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.checkpoints import tensors_of, write_checkpoint
from tests.model.gguf.files import write_gguf
from tests.model.gguf.test_metadata import DEEPSEEK2
from tests.model.test_damage import DAMAGES, ODD, check_damage, complaint
from tests.model.test_latent import V3
from weft.core.errors import ConfigError
from weft.model.families.decoders import read_config, read_spec
from weft.model.gguf.architectures import find_architecture
from weft.model.gguf.family_config import make_config
from weft.model.open import open_model

# Rows of whole blocks wherever a product of attention is read.
SIZES = {
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "hidden_size": 32,
    "q_lora_rank": 32,
    "v_head_dim": 16,
}
CONFIG = {
    **V3,
    **SIZES,
    "routed_scaling_factor": 2.5,
    "intermediate_size": 32,
    "moe_intermediate_size": 32,
}
KEYS = [
    *(key.removeprefix("deepseek2.") for key in DEEPSEEK2 if key.startswith("deepseek2.")),
    *("attention.q_lora_rank", "expert_gating_func", "expert_group_count"),
    *("expert_group_used_count", "expert_shared_count", "expert_weights_norm"),
    *("expert_weights_scale", "leading_dense_block_count", "nextn_predict_layers"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.yarn_log_multiplier"),
]
VALUES = (*ODD, False, -1, 1, 2, 7, 2**31, 2**63, 10**30, 0.1, float("nan"), float("inf"), "yarn")


@pytest.fixture(scope="module", params=["F32", "Q8_0"])
def sound(request, tmp_path_factory):
    """A file, and where its tensors begin."""
    directory = tmp_path_factory.mktemp("gguf")
    checkpoint = write_checkpoint(directory / "m", CONFIG, tensors_of(CONFIG))
    kind = request.param
    path = write_gguf(
        directory / "m.gguf",
        checkpoint,
        lambda n: kind if "attn" in n and "kv_a_mqa" not in n and "output" not in n else "F32",
    )
    open_model(str(path)).load()
    return path, path.read_bytes()


@settings(max_examples=200, deadline=None)
@given(damage=DAMAGES)
def test_damaged_bytes_never_crash(sound, damage):
    """In the header, or anywhere."""
    path, _ = sound
    check_damage(path, 4000, damage, lambda: _unpack_all(open_model(str(path)).load()))


@settings(max_examples=50, deadline=None)
@given(length=st.integers(0, 2**31))
def test_a_file_that_is_cut_off_is_refused(sound, length):
    """Wherever."""
    path, data = sound
    path.write_bytes(data[: length % len(data)])
    with pytest.raises(ConfigError):
        open_model(str(path)).load()
    path.write_bytes(data)


@settings(max_examples=400, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=4))
def test_any_metadata_is_read_or_refused(changes):
    """Whatever a key holds, the answer is a spec or one line of refusal."""
    metadata = DEEPSEEK2 | {f"deepseek2.{key}": value for key, value in changes.items()}

    def read():
        config = make_config(
            *find_architecture(metadata, "m"),
            metadata,
            "m",
            tensors={"token_embd.weight": (300, 64)},
            rope_factors={},
        )
        read_spec(read_config(config, "m"))

    assert "\n" not in complaint(read)


@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda values: values[:1], "has shape [1, "),
        (lambda values: values.swapaxes(1, 2).copy(), "has shape [2, "),
        (lambda values: values.reshape(2, -1), "has shape [2, "),
        (lambda values: None, "is missing"),
    ],
)
def test_halves_of_another_shape_are_named(tmp_path, part, change, words):
    """With the shape that the metadata asks for."""
    checkpoint = write_checkpoint(tmp_path / "m", CONFIG, tensors_of(CONFIG))
    name = f"blk.1.attn_{part}_b.weight"

    def spoil(tensor, values):
        return change(values) if tensor == name else values

    path = write_gguf(tmp_path / "m.gguf", checkpoint, change=spoil)
    with pytest.raises(ConfigError) as refused:
        open_model(str(path))
    assert f"tensor {name} {words}" in str(refused.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0])
def test_scales_of_blocks_may_be_zero_and_must_be_numbers(tmp_path, value):
    """Zero means zeros."""
    checkpoint = write_checkpoint(tmp_path / "m", CONFIG, tensors_of(CONFIG))
    path = write_gguf(
        tmp_path / "m.gguf", checkpoint, lambda n: "Q8_0" if "attn_k_b" in n else "F32"
    )
    block = next(
        t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_k_b.weight"
    ).data.tobytes()[:34]
    data = path.read_bytes()
    assert data.count(block) == 1
    path.write_bytes(data.replace(block, np.float16(value).tobytes() + block[2:]))
    values = []
    message = complaint(lambda: values.append(open_model(str(path)).load()["layers.0.kv_b"]))
    assert ("blk.0.attn_k_b.weight holds NaN or infinity" in message) == (value != 0)
    # Of the first head: a block is a row of its keys, turned.
    assert [bool(v.float32()[:32, 0].any()) for v in values] == [False] * (value == 0)


def _unpack_all(weights):
    for name in weights.tensors:
        weights[name]
