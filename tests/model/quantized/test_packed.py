"""compressed-tensors' packed numbers, packed by that library; served like what they mean."""

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from safetensors.torch import load_file, save_file

import weft
from tests.model.quantized.packers import assert_same, assert_same_model, packed_tensors, write
from weft.core.values.types import SamplingParams
from weft.model.open import open_model

GROUPED = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 8}
BY_ROW = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
Q = "model.layers.1.self_attn.q_proj"
GROUP = ("config_groups", "group_0")


def scheme_of(weights, **group):
    """A quantization_config."""
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, **group}},
        "ignore": ["lm_head", "re:.*v_proj"],
    }


def packing(weights):
    """A packer of matrices for `packed_tensors`, by the library."""
    known = {key: value for key, value in weights.items() if key != "actorder"}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**known))

    def pack(values):
        weight = torch.from_numpy(values)
        size = weights["group_size"] if weights["strategy"] == "group" else values.shape[1]
        by_group = weight.reshape(len(weight), -1, size)
        most = 2 ** weights["num_bits"] - 1
        low, high = by_group.amin(-1).clamp(max=0), by_group.amax(-1).clamp(min=0)
        state = {"weight": weight}
        if weights["symmetric"]:
            state["weight_scale"] = 2 * torch.maximum(-low, high) / most
        else:
            state["weight_scale"] = (high - low) / most
            zeros = (-low / state["weight_scale"]).round() - (most + 1) // 2
            state["weight_zero_point"] = zeros.clamp(-(most + 1) // 2, most // 2).to(torch.int8)
        packed = PackedQuantizationCompressor.compress(state, scheme)
        how = (state["weight_scale"], state.get("weight_zero_point"), scheme.weights)
        whole = dequantize(quantize(weight, *how, dtype=torch.int8), *how)
        return {name: tensor.numpy() for name, tensor in packed.items()}, whole.numpy()

    return pack


@pytest.mark.parametrize("compute", ["reference", "native"])
@pytest.mark.parametrize(
    "weights",
    [
        GROUPED,
        {**GROUPED, "symmetric": False, "dynamic": False, "observer": "minmax"},
        {**GROUPED, "num_bits": 8},
        {**GROUPED, "num_bits": 8, "symmetric": False, "actorder": "weight"},
        BY_ROW,
        {**BY_ROW, "symmetric": False},
        {**BY_ROW, "num_bits": 4, "group_size": -1},
        {**BY_ROW, "num_bits": 4, "symmetric": False},
    ],
)
def test_packed_weights_are_read_as_the_library_means_them(tmp_path, compute, weights):
    """Bit for bit; rows and columns that fill no whole word included."""
    stored, meant = packed_tensors(packing(weights), except_for=["v_proj"])
    assert_same_model(tmp_path, scheme_of(weights), stored, meant, compute)


@pytest.mark.parametrize("compute", ["reference", "native"])
def test_columns_in_the_order_of_their_activations_are_put_in_their_groups(tmp_path, compute):
    """`weight_g_idx` says which scale is a column's."""
    order = np.random.default_rng(1).permutation(np.arange(16) // 8)
    stored, meant = packed_tensors(packing(GROUPED), except_for=["down_proj"])
    for name in [name for name in stored if name.endswith(".weight_scale")]:
        module = name.removesuffix(".weight_scale")
        whole = meant[f"{module}.weight"]
        numbers = np.rint(whole / np.repeat(stored[name], 8, axis=1))
        meant[f"{module}.weight"] = numbers * stored[name][:, order]
        stored[f"{module}.weight_g_idx"] = order.astype(np.int32)
    scheme = scheme_of({**GROUPED, "actorder": "group"})
    assert_same_model(tmp_path, scheme, stored, meant, compute)


@pytest.mark.parametrize("num_bits", [4, 8])
def test_numbers_with_one_scale_a_row_are_multiplied_as_they_are(tmp_path, num_bits):
    """With int8 products nothing is rounded again: those of the same numbers as bytes."""
    weights = {**BY_ROW, "num_bits": num_bits}
    stored, meant = packed_tensors(packing(weights))
    as_bytes = dict(stored)
    for name in [name for name in stored if name.endswith(".weight_packed")]:
        module = name.removesuffix(".weight_packed")
        whole = meant[f"{module}.weight"] / stored[f"{module}.weight_scale"]
        as_bytes[f"{module}.weight"] = np.rint(whole).astype(np.int8)
        del as_bytes[name], as_bytes[f"{module}.weight_shape"]
    by_byte = {**scheme_of(BY_ROW), "format": "int-quantized"}
    plain = write(tmp_path / "bytes", by_byte, as_bytes)
    packed = write(tmp_path / "packed", scheme_of(weights), stored)
    for compute in ("native", "reference"):
        assert_same(packed, plain, compute=compute, quantization="int8")


def test_the_card_says_what_was_read(tmp_path):
    """The ready block tells what becomes of packed weights."""
    stored, _ = packed_tensors(packing(GROUPED))
    notice = open_model(write(tmp_path / "m", scheme_of(GROUPED), stored)).card.notice
    assert notice is not None
    assert "4 bits" in notice


def test_a_packed_checkpoint_is_served_like_the_one_that_it_means(tmp_path):
    """In bfloat16, the same tokens and the same log-probabilities."""
    stored, meant = packed_tensors(packing(GROUPED))
    packed = write(tmp_path / "packed", scheme_of(GROUPED), stored)
    plain = write(tmp_path / "plain", {}, meant)
    for name in (packed, plain):
        file = f"{name}/model.safetensors"
        tensors = load_file(file)
        save_file(
            {k: v.bfloat16() if v.is_floating_point() else v for k, v in tensors.items()}, file
        )
    # The scales were rounded too: what they mean now is what counts.
    tensors = load_file(f"{packed}/model.safetensors")
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**GROUPED))
    twin = {name: tensor for name, tensor in tensors.items() if ".weight_" not in name}
    for name in [name for name in tensors if name.endswith(".weight_packed")]:
        module = name.removesuffix("_packed")
        state = {
            "weight" + n.removeprefix(module): t for n, t in tensors.items() if n.startswith(module)
        }
        twin[module] = PackedQuantizationCompressor.decompress(state, scheme)["weight"]
    save_file(twin, f"{plain}/model.safetensors")
    assert served(packed) == served(plain)


def served(name):
    params = SamplingParams(max_tokens=24, temperature=0.0, logprobs=2, ignore_eos=True)
    with weft.LLM(name, dtype="bfloat16") as llm:
        answers = llm.generate(
            [{"prompt_token_ids": [5, 99, 7]}, {"prompt_token_ids": [200] * 20}], params
        )
    return [(answer.outputs[0].token_ids, answer.outputs[0].logprobs) for answer in answers]


@pytest.mark.parametrize("weights", [GROUPED, BY_ROW], ids=["in groups", "by row"])
def test_rows_are_taken_in_another_order(tmp_path, weights):
    """Of a head whose rotated elements are neighbours in the file: what the rows mean moves with them."""
    stored, _ = packed_tensors(packing(weights))
    checkpoint = open_model(write(tmp_path, scheme_of(weights), stored))
    matrix = checkpoint.map().tensors["layers.1.q"]
    rows = matrix.unpacked().float32()
    order = np.random.default_rng(1).permutation(len(rows))
    np.testing.assert_array_equal(matrix.taken(order).unpacked().float32(), rows[order])
    if matrix.group_format is not None:
        numbers = matrix.grouped().numbers
        np.testing.assert_array_equal(matrix.taken(order).grouped().numbers, numbers[order])
