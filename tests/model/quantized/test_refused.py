"""Packed checkpoints that this runner does not read: refused by the name of what is in the way."""

import copy

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.model.quantized import test_awq, test_gptq, test_int8, test_packed
from tests.model.quantized.packers import packed_tensors, write
from tests.model.quantized.test_packed import GROUPED
from weft.core.errors import ConfigError
from weft.model.open import open_model

Q = "model.layers.1.self_attn.q_proj"
WITH_ZEROS = {**GROUPED, "symmetric": False}
# Each a scheme that is read, and the packer of its matrices.
FORMS = {
    "unknown": ({}, test_int8.pack),
    "int8": (test_int8.SCHEME, test_int8.pack),
    "packed": (test_packed.scheme_of(GROUPED), test_packed.packing(GROUPED)),
    "packed, zeros": (test_packed.scheme_of(WITH_ZEROS), test_packed.packing(WITH_ZEROS)),
    "awq": (test_awq.SCHEME, test_awq.packing()),
    "gptq": (test_gptq.SCHEME, test_gptq.packing()),
}
# What is set in a form's scheme, by its path, and words of the refusal.
SCHEMES = {
    "unknown": [
        ({"bits": 4, "quant_method": "hqq"}, "quant_method is 'hqq'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method is 'bitsandbytes'"),
        ({"load_in_4bit": True}, "quant_method is None"),
    ],
    "int8": [
        ({"format": "marlin-24"}, "format is 'marlin-24'"),
        ({"sparsity_config": {"format": "sparse-24"}}, "sparsity_config: format is 'sparse-24'"),
        ({"config_groups": {}}, "config_groups"),
        ({"config_groups.group_0.weights": None}, "weights is missing"),
        ({"config_groups.group_0.weights.num_bits": 4}, "num_bits is 4"),
        ({"config_groups.group_0.weights.strategy": "group"}, "strategy is 'group'"),
        ({"config_groups.group_0.weights.symmetric": False}, "symmetric is False"),
        ({"config_groups.group_0.weights.symmetric": 1}, "symmetric is 1"),
        ({"config_groups.group_0.weights.type": "float"}, "type is 'float'"),
        ({"config_groups.group_0.input_activations.dynamic": False}, "dynamic is False"),
        ({"config_groups.group_0.input_activations.strategy": "tensor"}, "strategy is 'tensor'"),
    ],
    "packed": [
        ({"format": "marlin-24"}, "format is 'marlin-24'"),
        ({"format": "mixed-precision"}, "format is 'mixed-precision'"),
        ({"format": "nvfp4-pack-quantized"}, "format is 'nvfp4-pack-quantized'"),
        ({"format": "int-quantized"}, "num_bits is 4"),
        ({"ignore": "lm_head"}, "ignore is 'lm_head'"),
        ({"config_groups.group_0.targets": "Linear"}, "targets is 'Linear'"),
        ({"config_groups.group_0.format": "int-quantized"}, "format is 'int-quantized'"),
        ({"config_groups.group_0.weights.num_bits": 3}, "num_bits is 3"),
        ({"config_groups.group_0.weights.type": "float"}, "type is 'float'"),
        ({"config_groups.group_0.weights.strategy": "tensor"}, "strategy is 'tensor'"),
        ({"config_groups.group_0.weights.group_size": None}, "group_size is missing"),
        ({"config_groups.group_0.weights.dynamic": True}, "dynamic is True"),
        ({"config_groups.group_0.weights.actorder": "sorted"}, "actorder is 'sorted'"),
        ({"config_groups.group_0.weights.block_structure": [8, 8]}, "block_structure is"),
        ({"config_groups.group_0.input_activations": {"num_bits": 4}}, "num_bits is 4"),
        ({"config_groups.group_0.output_activations": {"num_bits": 8}}, "output_activations is"),
        (
            {"config_groups.group_1": {"weights": {**GROUPED, "group_size": 16}}},
            "group_0 and group_1 differ",
        ),
    ],
    "awq": [
        ({"bits": 8}, "bits is 8; this runner reads 4"),
        ({"version": "gemv"}, "version is 'gemv'; this runner reads nothing or 'gemm'"),
        ({"version": "gemv_fast"}, "version is 'gemv_fast'"),
        ({"version": "exllama"}, "version is 'exllama'"),
        ({"version": "marlin"}, "version is 'marlin'"),
        ({"format": "llm-awq"}, "format is 'llm-awq'"),
        ({"backend": "llm-awq"}, "backend is 'llm-awq'"),
        ({"zero_point": False}, "zero_point is False"),
        ({"group_size": 1.5}, "group_size is 1.5"),
        ({"modules_to_not_convert": "v_proj"}, "modules_to_not_convert is 'v_proj'"),
        ({"dynamic": {".*": {"bits": 8}}}, "dynamic has"),
    ],
    "gptq": [
        ({"bits": 3}, "bits is 3; this runner reads 4 or 8"),
        ({"bits": None}, "bits is None"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": True}, "group_size is True"),
        ({"group_size": None}, "group_size is missing"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"format": "bitblas"}, "format is 'bitblas'"),
        ({"format": "gptq", "checkpoint_format": "gptq_v2"}, "they must agree"),
        ({"is_marlin_format": True}, "is_marlin_format is True"),
        ({"pack_dtype": "int16"}, "pack_dtype is 'int16'"),
        ({"dynamic": {"+:.*down": {"bits": 8}}}, "dynamic has '+:.*down'"),
        ({"adapter": {"name": "lora"}}, "adapter is"),
        ({"rotation": "hadamard"}, "rotation is 'hadamard'"),
        ({"desc_act": "yes"}, "desc_act is 'yes'"),
    ],
}
# A part of a matrix, what it is instead (None: missing), and words of the refusal.
TENSORS = {
    "packed, zeros": [
        ("weight_scale", None, "weight_scale is missing"),
        ("weight_zero_point", None, "weight_zero_point is missing"),
        ("weight_shape", None, "weight_shape is missing"),
        ("weight_shape", np.array([16, 15]), r"weight_shape is \[16, 15\]; .* asks for \[16, 16\]"),
        ("weight_packed", np.ones((16, 4), np.int32), "weight_packed has shape"),
        ("weight_zero_point", np.ones((16, 2), np.int8), "weight_zero_point has shape"),
        ("weight_scale", np.full((16, 2), np.nan, np.float32), "weight_scale holds NaN"),
    ],
    "awq": [
        ("scales", None, "scales is missing"),
        ("qweight", np.ones((2, 16), np.int32), r"qweight has shape \[2, 16\]"),
        ("qzeros", np.ones((2, 2), np.float32), "qzeros is float32; .* asks for int32"),
        ("scales", np.full((2, 16), np.inf, np.float32), "scales holds NaN or infinity"),
    ],
    "gptq": [
        ("scales", None, "scales is missing"),
        ("qzeros", None, "qzeros is missing"),
        ("scales", np.ones((2, 8), np.float16), r"scales has shape \[2, 8\]"),
        ("scales", np.ones((2, 16), np.int8), "scales is int8"),
        ("qweight", np.ones((4, 16), np.int32), r"qweight has shape \[4, 16\]"),
        ("qweight", np.ones((2, 16), np.int64), "qweight is int64; .* asks for int32"),
        ("g_idx", np.zeros(8, np.int32), "g_idx has shape"),
        ("g_idx", np.full(16, 2, np.int32), "g_idx names group 2 to 2; there are 2"),
        ("g_idx", np.arange(-1, 15, dtype=np.int32), "g_idx names group -1 to 14"),
        ("scales", np.full((2, 16), np.nan, np.float16), "scales holds NaN"),
    ],
}


def cases(table):
    return [(form, *case) for form, of_form in table.items() for case in of_form]


def changed(scheme, changes):
    """The scheme with each of these set, by the path to it."""
    scheme = copy.deepcopy(scheme)
    for path, value in changes.items():
        *above, key = path.split(".")
        at = scheme
        for name in above:
            at = at[name]
        at[key] = value
    return scheme


@pytest.mark.parametrize(("form", "changes", "words"), cases(SCHEMES))
def test_what_cannot_be_read_is_refused_by_name(tmp_path, form, changes, words):
    """The message says which key, and what would be read."""
    scheme, pack = FORMS[form]
    with pytest.raises(ConfigError) as error:
        open_model(write(tmp_path / "m", changed(scheme, changes), packed_tensors(pack)[0]))
    assert words in str(error.value)
    assert "quantization_config" in str(error.value)


@pytest.mark.parametrize("compute", ["reference", "native"])
@pytest.mark.parametrize(("form", "part", "tensor", "words"), cases(TENSORS))
def test_tensors_that_are_missing_misshapen_or_no_numbers_are_named(
    tmp_path, compute, form, part, tensor, words
):
    """Before anything is computed."""
    scheme, pack = FORMS[form]
    stored = packed_tensors(pack)[0]
    stored.pop(f"{Q}.{part}")
    stored |= {} if tensor is None else {f"{Q}.{part}": tensor}
    with pytest.raises(ConfigError, match=rf"tensor {Q}\.{words}"):
        load_runner(open_model(write(tmp_path / "m", scheme, stored)), compute=compute)
