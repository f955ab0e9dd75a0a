"""GGUF files of models with gated delta nets: the order of their heads, their settings, and blocks of columns."""

import json

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.compute.families import CASES, make_model, save
from tests.compute.mtp_heads import CASES as HEADS
from tests.compute.mtp_heads import write_head
from tests.model.gguf.files import add_tensor, close, with_merged_experts, write_bytes_tokenizer
from tests.model.quantized.packers import assert_near, logits_of
from tests.slow import slow_but
from weft.core.errors import ConfigError
from weft.model.open import open_model

ARCHITECTURES = {
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
MODELS = ("qwen3_5_text", "qwen3_5_moe_text, a delta net last", "qwen3_next")
DELTA = "linear_attn."
BLOCKS = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_key_head_dim": 16,
}


def tiled(values, config, size, axis=0):
    """The first value head of each key head, then the second of each."""
    keys = config["linear_num_key_heads"]
    shape = values.shape
    heads = values.reshape(*shape[:axis], keys, -1, size, *shape[axis + 1 :])
    return np.ascontiguousarray(heads.swapaxes(axis, axis + 1)).reshape(shape)


def in_file(name, values, config, is_tiled):
    """Yields the tensors, by the names that the package knows, that the converter makes of one."""
    keys, size = config["linear_num_key_heads"], config["linear_value_head_dim"]
    first = 2 * keys * config["linear_key_head_dim"]
    lead, _, part = name.rpartition(DELTA)
    if part == "in_proj_qkvz.weight":
        by_head = values.reshape(keys, -1, values.shape[1])
        width = by_head.shape[1] - 2 * config["linear_key_head_dim"]
        ends = np.cumsum([config["linear_key_head_dim"]] * 2 + [width // 2])
        q, k, v, z = (p.reshape(-1, values.shape[1]) for p in np.split(by_head, ends, axis=1))
        yield f"{lead}{DELTA}in_proj_qkv.weight", np.concatenate([q, k, v])
        yield f"{lead}{DELTA}in_proj_z.weight", z
        return
    if part == "A_log":
        values = -np.exp(values)
    if "conv1d" in part:
        values = values.squeeze(1)
    if name.endswith("norm.weight") and not part.startswith("norm"):
        values = values + np.float32(1)
    if is_tiled and part in ("in_proj_qkv.weight", "conv1d.weight"):
        values = np.concatenate([values[:first], tiled(values[first:], config, size)])
    elif is_tiled and part == "in_proj_z.weight":
        values = tiled(values, config, size)
    elif is_tiled and part in ("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias"):
        values = tiled(values, config, 1)
    elif is_tiled and part == "out_proj.weight":
        values = tiled(values, config, size, axis=1)
    yield name.replace("dt_bias", "dt_proj.bias"), values


def behind(name, num_layers):
    """The name of a tensor for multi-token prediction, as that of a layer behind the last."""
    last = f"model.layers.{num_layers}"
    names = {
        "mtp.layers.0": last,
        "mtp.fc": f"{last}.nextn.eh_proj",
        "mtp.pre_fc_norm_embedding": f"{last}.nextn.enorm",
        "mtp.pre_fc_norm_hidden": f"{last}.nextn.hnorm",
        "mtp.norm": f"{last}.nextn.shared_head_norm",
    }
    lead = next((old for old in names if name.startswith(f"{old}.")), None)
    return name if lead is None else names[lead] + name.removeprefix(lead)


def write(path, checkpoint, kinds="F32"):
    """The checkpoint as a file, as llama.cpp's converter writes it."""
    config = json.loads((checkpoint / "config.json").read_text())
    name = ARCHITECTURES[config["model_type"]]
    stored, num_layers = load_file(checkpoint / "model.safetensors"), config["num_hidden_layers"]
    num_guessing = int("mtp.fc.weight" in stored)
    writer = gguf.GGUFWriter(path, name)
    write_settings(writer, config, num_guessing)
    write_bytes_tokenizer(writer, config["vocab_size"])
    number = next(n for n, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(number, num_layers + num_guessing)
    own = {"in_proj_ba.weight": "ssm_ba", "shared_expert_gate.weight": "ffn_gate_inp_shexp"}
    stored = {behind(name, num_layers): values for name, values in stored.items()}
    for theirs, whole in with_merged_experts(stored).items():
        for named, values in in_file(theirs, whole.astype(np.float32), config, name != "qwen3next"):
            found = next((own[end] for end in own if named.endswith(end)), None)
            if ".nextn." in named:
                found = named.split(".", 3)[3].removesuffix(".weight")
            ours = names.get_name(named, (".weight", ".bias"))
            if found is not None:
                ours = f"blk.{named.split('.')[2]}.{found}.weight"
            assert ours is not None, named
            is_packed = values.ndim > 1 and "conv1d" not in ours and "inp" not in ours
            add_tensor(writer, ours, values, kinds if is_packed else "F32")
    return str(close(writer, path))


def write_settings(writer, config, num_guessing):
    """Sizes of heads, of both kinds of layers, and of experts."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"] + num_guessing)
    if num_guessing:
        writer.add_nextn_predict_layers(num_guessing)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    heads = config["linear_num_value_heads"]
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * config["linear_value_head_dim"])
    writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
    if config["model_type"] != "qwen3_next":
        writer.add_rope_dimension_sections([11, 11, 10, 0])
    if config.get("num_experts"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    else:
        writer.add_feed_forward_length(config["intermediate_size"])


def made(directory, case, **changes):
    """A checkpoint with attention in the last layer of four, as files say it."""
    model_type, settings = CASES[case]
    settings = {key: value for key, value in settings.items() if key != "layer_types"} | changes
    return save(make_model(model_type, settings), directory / "checkpoint")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", slow_but(MODELS[:1], MODELS))
@pytest.mark.parametrize("compute", slow_but(("native",), ("native", "reference")))
def test_delta_nets_compute_nearly_what_the_checkpoint_does(tmp_path, case, compute):
    """Files have the decays of states themselves, where checkpoints have their logarithms."""
    name = made(tmp_path, case)
    path = write(tmp_path / "m.gguf", tmp_path / "checkpoint")
    expected = logits_of(name, compute=compute)
    np.testing.assert_allclose(logits_of(path, compute=compute), expected, rtol=0, atol=4e-3)
    assert expected.std() > 0.5


@pytest.mark.filterwarnings("ignore")
def test_every_tensor_of_a_file_with_tiled_heads_is_that_of_the_checkpoint(tmp_path):
    """Bit for bit, in the checkpoint's order of heads; decays nearly."""
    name = made(tmp_path, "qwen3_5_text")
    found = open_model(write(tmp_path / "m.gguf", tmp_path / "checkpoint"), dtype="float32")
    expected, got = open_model(name).load(), found.load()
    assert got.tensors.keys() == expected.tensors.keys()
    for tensor in expected.tensors:
        ours, theirs = got[tensor].float32(), expected[tensor].float32()
        if tensor.endswith("a_log"):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
        elif "norm" in tensor:  # by one more in the file, and without the offset of the family
            np.testing.assert_array_equal(ours, theirs + np.float32(1))
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=tensor)


@pytest.mark.filterwarnings("ignore")
def test_a_head_for_later_tokens_is_that_of_the_checkpoint(tmp_path):
    """A layer behind the last, which metadata counts; norms by one more, as all."""
    name = write_head(*HEADS["qwen3_5_text"], tmp_path / "checkpoint").path
    found = open_model(write(tmp_path / "m.gguf", tmp_path / "checkpoint"), dtype="float32")
    assert len(found.spec.layers) == len(open_model(name).spec.layers) == 4
    expected, got = open_model(name).find_mtp().load(), found.find_mtp().load()
    assert got.tensors.keys() == expected.tensors.keys()
    for tensor in expected.tensors:
        offset = np.float32("norm" in tensor)
        np.testing.assert_array_equal(got[tensor].float32(), expected[tensor].float32() + offset)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", slow_but(("Q8_0",), ("Q8_0", "Q4_0", "Q4_1")))
def test_columns_of_blocks_are_read_in_the_order_of_heads(tmp_path, kind):
    """Their numbers and scales, as the package reads them; and computed as they are stored."""
    made(tmp_path, "qwen3_5_text", **BLOCKS)
    path = write(tmp_path / "m.gguf", tmp_path / "checkpoint", kind)
    stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ssm_out.weight")
    read = gguf.quants.dequantize(stored.data, stored.tensor_type)
    heads = read.reshape(64, 2, 2, 32).swapaxes(1, 2).reshape(64, 128)
    checkpoint = open_model(path, dtype="float32")
    assert "layers.0.delta_out" in checkpoint.groups
    found = checkpoint.map()
    np.testing.assert_array_equal(found["layers.0.delta_out"].float32(), heads)
    numbers = found.tensors["layers.0.delta_out"].grouped()
    np.testing.assert_allclose(numbers.float32(), heads, rtol=0, atol=1e-5)
    assert_near(path)


@pytest.mark.filterwarnings("ignore")
def test_a_group_of_columns_of_two_heads_is_refused_by_name(tmp_path):
    """Its scale would be that of columns which are apart."""
    made(tmp_path, "qwen3_5_text", **BLOCKS | {"linear_value_head_dim": 16})
    path = write(tmp_path / "m.gguf", tmp_path / "checkpoint", "Q8_0")
    with pytest.raises(ConfigError, match=r"ssm_out.weight is Q8_0, in groups of 32 columns"):
        open_model(path)


@pytest.mark.filterwarnings("ignore")
def test_a_file_without_the_size_of_values_is_refused(tmp_path):
    """The error names the setting."""
    made(tmp_path, "qwen3_5_text", linear_num_value_heads=6)
    path = write(tmp_path / "m.gguf", tmp_path / "checkpoint")
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(
        data.replace(b"qwen35.ssm.inner_size", b"qwen35.ssm.inner_sizE")
    )
    with pytest.raises(ConfigError, match=r"qwen35\.ssm\.inner_size is None"):
        open_model(path)
