"""Gemma 4's GGUF files: sizes of single layers, shared keys, experts beside the MLP, and the tokenizer with merges."""

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.compute.families import CASES, make_model, save
from tests.compute.runners import load_runner
from tests.compute.steps import alone
from tests.model.gguf.files import add_tensor, close, write_bytes_tokenizer
from tests.slow import slow_but
from weft.core.errors import ConfigError
from weft.model.gguf.own_layers import read_own_layers, rope_of_layers
from weft.model.gguf.vocabulary import make_files, read_vocabulary
from weft.model.open import open_model

MODELS = [case for case in CASES if case.startswith("gemma4")]
SPARE = "blk.5.attn_k.weight"


def write(path, checkpoint, case):
    """The checkpoint as a file, as llama.cpp's converter writes it."""
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "gemma4")
    write_settings(writer, config, CASES[case][1])
    write_bytes_tokenizer(writer, config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, config["num_hidden_layers"])
    own = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
    for theirs, values in load_file(checkpoint / "model.safetensors").items():
        found = next((name for name in own if theirs.endswith(name)), None)
        if found is not None:
            ours = f"blk.{theirs.split('.')[2]}.{own[found]}"
        else:
            whole = theirs if theirs.endswith(".weight") else f"{theirs}.weight"
            ours = names.get_name(whole, (".weight",))
        add_tensor(writer, ours, values, "F32")
    return close(writer, path)


def write_settings(writer, config, settings):
    """Sizes by layer, and the factors of the frequencies."""
    kinds, shared = config["layer_types"], config["num_kv_shared_layers"]
    wide, narrow = settings["global_head_dim"], config["head_dim"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(len(kinds))
    size = config["intermediate_size"]
    own = len(kinds) - shared
    is_wide = config["use_double_wide_mlp"]
    writer.add_feed_forward_length([size] * own + [2 * size] * shared if is_wide else size)
    writer.add_head_count(config["num_attention_heads"])
    heads = config["num_key_value_heads"]
    of_full = settings.get("num_global_key_value_heads", heads)
    writer.add_head_count_kv([heads if kind.startswith("sliding") else of_full for kind in kinds])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(wide)
    writer.add_value_length(wide)
    writer.add_key_length_swa(narrow)
    writer.add_value_length_swa(narrow)
    writer.add_rope_dimension_count(wide)
    writer.add_rope_dimension_count_swa(narrow)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_rope_freq_base_swa(10_000.0)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind.startswith("sliding") for kind in kinds])
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["enable_moe_block"]:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    turned = wide // 8
    factors = np.array([1.0] * turned + [1e30] * (wide // 2 - turned), np.float32)
    writer.add_tensor("rope_freqs.weight", factors)
    if shared:  # published checkpoints have keys that nobody reads
        writer.add_tensor(SPARE, np.zeros((heads * wide, config["hidden_size"]), np.float32))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", slow_but(MODELS[:1], MODELS))
def test_floats_compute_what_the_checkpoint_does_bit_for_bit(tmp_path, case):
    """Sizes, frequencies, keys as values, and keys that are passed over."""
    directory = tmp_path / "checkpoint"
    name = save(make_model(*CASES[case]), directory)
    path = write(tmp_path / "m.gguf", directory, case)
    first, second = open_model(name), open_model(str(path))
    assert replace(second.spec, norm_eps=first.spec.norm_eps) == first.spec  # the file has float32
    weights, others = first.load().tensors, second.load().tensors
    assert weights.keys() == others.keys()
    for tensor, values in weights.items():
        given = others[tensor].unpacked().float32()
        assert np.array_equal(given, values.unpacked().float32()), tensor
    ids = np.arange(30).tolist()
    logits = [alone(load_runner(checkpoint), ids).tobytes() for checkpoint in (first, second)]
    assert logits[0] == logits[1]


KINDS = {"attention.sliding_window_pattern": [True, False, True, False]}


def read(said=(), **changes):
    """The config that settings of a file give."""
    config = {
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 8,
    } | changes
    read_own_layers(config, {**KINDS, **dict(said)}, {}, "m: gemma4.")
    return config


@pytest.mark.parametrize(
    ("said", "changes", "words"),
    [
        ({"attention.sliding_window_pattern": 6}, {}, "sliding_window_pattern is 6"),
        ({"attention.sliding_window_pattern": [True]}, {}, r"sliding_window_pattern is \[True\]"),
        ({}, {"num_key_value_heads": [1, 2, 2, 2]}, "head_count_kv is .* the same for layers"),
        ({}, {"intermediate_size": [8, 8, 8, 9]}, "feed_forward_length is .* twice that size"),
        ({"attention.value_length_swa": 8}, {}, "value_length_swa is 8; 32 is implemented"),
    ],
)
def test_other_sizes_are_refused_by_name(said, changes, words):
    """The error says what is implemented."""
    with pytest.raises(ConfigError, match=rf"^m: gemma4\.\S*{words}"):
        read(said, **changes)


def test_frequencies_with_other_factors_are_refused():
    """Factors are 1 for the first pairs, and huge for those that do not turn."""
    assert rope_of_layers({}, {}, np.array([1, 1e30], np.float32), "m: ")["full_attention"][
        "partial_rotary_factor"
    ] == pytest.approx(0.5)
    with pytest.raises(ConfigError, match=r"factors of 1 and then of 1e\+20"):
        rope_of_layers({}, {}, np.array([1, 8, 1e30], np.float32), "m: ")


def test_a_vocabulary_with_merges_has_no_prefix_and_bytes():
    """Spaces are ordinary characters; a character that is no token is bytes."""
    tokens = ["<unk>", "<turn|>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b"]
    tokens += ["ab", "▁ab"]
    kinds = [2, 1, *[6] * 256, *[1] * 5]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["a b", "▁ ab"],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    vocabulary = read_vocabulary(metadata, "m")
    tokenizer = Tokenizer.from_buffer(make_files(vocabulary)["tokenizer.json"])
    ids = tokenizer.encode("ab abé<turn|>").ids
    assert [tokens[i] for i in ids] == ["ab", "▁ab", "<0xC3>", "<0xA9>", "<turn|>"]
    assert tokenizer.decode(ids) == "ab abé"
    assert vocabulary.eos_token_ids == [1]
