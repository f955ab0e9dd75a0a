"""Whole models in GGUF files, in llama.cpp and here: logits of every position, and greedy tokens."""

import numpy as np
import pytest

from tests.compute.families import CASES
from tests.llama.peer import compare, distance
from tests.model.checkpoints import write_checkpoint
from tests.model.gguf.files import write_gguf
from tests.model.gguf.test_models import (
    ARCHITECTURES,
    DEEPSEEK,
    FIXED,
    HYBRIDS,
    PACKED,
    PLAIN_ROPE,
    ROPED_HYBRID,
    WIDE,
    YARN_OF_V2,
    YARN_OF_V3,
    write_both,
)

# What llama.cpp has not, or computes otherwise than the models do. It has no keys of fewer heads in OLMoE, no biases in
# DeepSeek, and queries that are made of no vector of low rank in its Lite models alone, which it tells by their number
# of layers. It rates a group of V2's experts by two of them, and rounds where yarn begins in gpt-oss. It has no windows
# in Phi-3 and in EXAONE models of fewer than 64 layers, rotates other elements of Bamba's heads than the model does if
# it rotates a part of each, and has fewer biases, heads of other widths and tied heads than the families allow.
CHANGED = {
    "olmoe": {"num_key_value_heads": 4},
    "gpt_oss": PLAIN_ROPE,
    "deepseek_v2": {"num_hidden_layers": 27},
    YARN_OF_V2: {
        "attention_bias": False,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
    },
    YARN_OF_V3: {"attention_bias": False, "q_lora_rank": 20},
    "seed_oss, biases elsewhere": {"attention_out_bias": False, "mlp_bias": False},
    "exaone4": {"num_hidden_layers": 64},
    "exaone4 without windows, tied": {"head_dim": 12},
    "phi3": {"sliding_window": None},
    "ernie4_5 with biases, untied": {"use_bias": False},
    "dots1": {"num_key_value_heads": 4},
    "gpt_neox, one after the other, without biases, tied": {
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "nemotron": {"head_dim": 12},
    "bamba": {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
    ROPED_HYBRID: {
        "intermediate_size": 40,
        "attention_bias": False,
        "mamba_proj_bias": False,
        "mamba_conv_bias": True,
    },
}
# It looks GELU up in a table of float16.
HAS_GELU = ("gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "phi", "starcoder2")

pytestmark = [pytest.mark.llama, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("case", [*ARCHITECTURES, *DEEPSEEK, *HYBRIDS])
def test_every_architecture_computes_what_llama_cpp_does(tmp_path, case):
    """In float32: names, settings, windows, routers, frequencies and the order of rows are as it reads them."""
    family, settings = CASES[case]
    fixed = FIXED.get(case, FIXED.get(family, {}))
    _, path = write_both(tmp_path, family, settings | fixed | CHANGED.get(case, {}))
    found = compare(path)
    assert found.our_tokens == found.their_tokens
    assert found.error < (5e-4 if family in HAS_GELU else 1e-4 if case in HYBRIDS else 1e-5)


def test_factors_of_frequencies_divide_them_as_in_llama_cpp(tmp_path):
    """One for each, as files of Llama 3 list them."""
    factors = np.array([1, 1, 1.5, 3, 8, 8], np.float32)
    _, path = write_both(tmp_path, *CASES["llama"], extra={"rope_freqs.weight": factors})
    found = compare(path)
    assert found.our_tokens == found.their_tokens
    assert found.error < 1e-5


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Rows of 256, as the larger blocks need them."""
    return write_checkpoint(tmp_path_factory.mktemp("wide") / "checkpoint", WIDE)


@pytest.mark.parametrize(("kind", "within"), [("F32", 1e-5), ("F16", 1e-3), ("BF16", 1e-2)])
def test_floats_give_the_same_tokens(tmp_path, wide, kind, within):
    """Of every width; logits differ by what inputs lose that are rounded to it."""
    found = compare(str(write_gguf(tmp_path / "m.gguf", wide, kind)))
    assert found.our_tokens == found.their_tokens
    assert found.error < within


def check_blocks(path):
    """Within 4 % of llama.cpp's logits, and of what the blocks mean at most twice as far from it as those."""
    found = compare(path)
    meant = compare(path, dtype="float32", quantization="none")
    assert found.error < 0.04
    assert distance(found.ours, meant.ours) < 2 * distance(found.theirs, meant.ours)


@pytest.mark.parametrize("kind", PACKED)
def test_blocks_compute_nearly_what_llama_cpp_does(tmp_path, wide, kind):
    """Both round inputs to 8 bits, in groups of other sizes; here the head is int8 by row too."""
    check_blocks(str(write_gguf(tmp_path / "m.gguf", wide, kind)))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "MXFP4"])
def test_experts_in_blocks_compute_nearly_what_llama_cpp_does(tmp_path, kind):
    """All of a layer in one tensor; every token goes through all, so that rounding sends none elsewhere."""
    sizes = {"hidden_size": 64, "head_dim": 16, "moe_intermediate_size": 32}
    family, settings = CASES["qwen3_moe"]
    _, path = write_both(tmp_path, family, settings | sizes, kind)
    check_blocks(path)
