"""Checkpoints of the tests as GGUF files, named and packed by the `gguf` package, as converters write them."""

import json
import re
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

from weft.model.embedded.byte_tokenizer import CHATML
from weft.model.families.encoder_families import GPT2_KEYS

ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "glm4_moe": "glm4moe",
    "lfm2_moe": "lfm2moe",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "youtu": "deepseek2",
    "internlm3": "llama",
    "hunyuan_v1_dense": "hunyuan-dense",
    "olmo3": "olmo2",
    "glm": "chatglm",
    "gpt_neox": "gptneox",
    "phi": "phi2",
    "cohere": "command-r",
    "ernie4_5_moe": "ernie4_5-moe",
    "granitemoehybrid": "granitehybrid",
    "bamba": "granitehybrid",
    "qwen2_vl_text": "qwen2vl",
    "qwen2_5_vl_text": "qwen2vl",
    "qwen3_vl_text": "qwen3vl",
    "falcon_mamba": "mamba",
    "falcon_h1": "falcon-h1",
}
INTERLEAVED = ("llama", "granite", "granitemoe", "smollm3", "arcee", "granitehybrid")
LAYER_NORMS = (
    *("gpt2", "gpt_neox", "phi", "starcoder2", "stablelm", "nemotron", "cohere", "cohere2"),
)
WITH_WINDOWS = ("gemma", "gpt_oss", "olmo3", "exaone4", "cohere2", "phi3")
KINDS = {"normal": 1, "unknown": 2, "control": 3, "user": 4, "unused": 5, "byte": 6}


def write_gguf(
    path: Path,
    checkpoint: Path,
    kinds="F32",
    *,
    change=None,
    metadata=(),
    extra=(),
    is_split=True,
    special=(),
    template=CHATML,
) -> Path:
    """The checkpoint as a file. `kinds` is a type of all matrices, or a function of their names.

    `is_split`: what makes keys and values of latent vectors is in two tensors, as in newer files.

    `change` may spoil or drop tensors; `metadata` are keys and values that come last, with the writer's method;
    `extra` are rows of numbers that the checkpoint does not have; `special` are texts of further special tokens, by id.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {new: config[old] for old, new in GPT2_KEYS.items() if old in config}
    stored = load_file(checkpoint / "model.safetensors")
    config["num_nextn_predict_layers"] = sum(name.endswith("eh_proj.weight") for name in stored)
    name = ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, name)
    _write_settings(writer, config, is_split)
    write_bytes_tokenizer(writer, config["vocab_size"], dict(special), template)
    for tensor, values in dict(extra).items():
        writer.add_tensor(tensor, values)
    for method, *values in metadata:
        getattr(writer, method)(*values)
    tensors = gguf_tensors(checkpoint, config, name)
    if is_split:
        tensors = with_split_heads(tensors, config)
    for tensor, values in tensors.items():
        kind = kinds if isinstance(kinds, str) else kinds(tensor)
        is_packed = values.ndim > 1 and "ffn_gate_inp" not in tensor and ".bias" not in tensor
        add_tensor(writer, tensor, values, kind if is_packed else "F32", change)
    return close(writer, path)


def close(writer, path):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tensor(writer, name, values, kind, change=None):
    values = values if change is None else change(name, values)
    if values is None:
        return
    packed = random_packed(values, kind)
    writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType[kind])


def random_packed(values, kind):
    """In that type: as the package packs it, or where it cannot, any blocks with scales of that size."""
    number = gguf.GGMLQuantizationType[kind]
    try:
        return gguf.quants.quantize(values, number)
    except NotImplementedError:
        size, num_bytes = gguf.GGML_QUANT_SIZES[number]
        rng = np.random.default_rng(values.size)
        shape = (len(values), values.shape[1] // size, num_bytes)
        blocks = rng.integers(0, 256, shape, dtype=np.uint8)
        scale = np.frombuffer(np.float16(values.std() / 1000).tobytes(), np.uint8)
        places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_K": (0, 2), "Q5_K": (0, 2)}
        for start in places.get(kind, (0,)):
            blocks[:, :, start : start + 2] = scale
        return blocks.reshape(len(values), -1)


def gguf_tensors(checkpoint, config, name):
    """By their names in the file, as float32: what llama.cpp's converter makes of a checkpoint."""
    number = next(n for n, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(number, _num_layers(config))
    tensors = {}
    stored = load_file(checkpoint / "model.safetensors")
    num_groups = config.get("mamba_n_groups", 1)
    for theirs, values in with_merged_experts(with_named_parts(stored, num_groups)).items():
        wide = values.astype(np.float32)
        if theirs.endswith("A_log"):
            wide = -np.exp(wide)
        if name == "gpt2" and wide.ndim == 2 and ".c_" in theirs:
            wide = np.ascontiguousarray(wide.T)
        if "query_key_value" in theirs:
            wide = by_part(wide, config["num_attention_heads"])
        renamed = theirs.replace("e_score_correction_bias", "e_score_correction.bias")
        renamed = renamed.replace("expert_bias", "expert_bias.bias")
        for short, part in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            renamed = renamed.replace(f"feed_forward.experts.{short}", f"mlp.experts.{part}")
        ours = names.get_name(renamed, (".weight", ".bias"))
        assert ours is not None, theirs
        if theirs.endswith("sinks"):
            ours += ".weight"
        if name in INTERLEAVED and ("q_proj" in theirs or "k_proj" in theirs):
            key = "num_attention_heads" if "q_proj" in theirs else "num_key_value_heads"
            wide = interleaved(wide, config[key])
        if name.startswith(("gemma", "nemotron")) and theirs.endswith("norm.weight"):
            wide = wide + np.float32(1)
        tensors[ours] = wide
    return tensors


def with_split_heads(tensors, config):
    """By head what makes keys, turned, and what makes values; each in a tensor for all heads."""
    split = {}
    for name, values in tensors.items():
        if "attn_kv_b" not in name:
            split[name] = values
            continue
        heads = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
        keys, own = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
        split[name.replace("kv_b", "k_b")] = np.ascontiguousarray(keys.swapaxes(1, 2))
        split[name.replace("kv_b", "v_b")] = np.ascontiguousarray(own)
    return split


def with_named_parts(stored, num_groups):
    """Parts of hybrids with Mamba-2 as the converter has them: gate and up apart, biases of steps, scales by group."""
    has_experts = any("block_sparse_moe" in name for name in stored)
    mlp = "mlp.shared_expert." if has_experts else "mlp."
    tensors = {}
    for name, values in stored.items():
        plain = name.replace("shared_mlp.output_linear", f"{mlp}down_proj")
        plain = plain.replace("dt_bias", "dt_proj.bias")
        if "shared_mlp.input_linear" in name:
            gate, up = np.split(values, 2)
            tensors[name.replace("shared_mlp.input_linear", f"{mlp}gate_proj")] = gate
            tensors[name.replace("shared_mlp.input_linear", f"{mlp}up_proj")] = up
        elif "conv1d.weight" in name:
            tensors[name] = values.squeeze(1)
        elif "mamba.norm" in name:
            tensors[name] = values.reshape(num_groups, -1)
        elif name.endswith(("mamba.A_log", "mamba.D")):
            tensors[name] = values[:, None]
        else:
            tensors[plain] = values
    return tensors


def with_merged_experts(stored):
    """All experts of a layer in one tensor for gates, one for what goes up and one for what comes down."""
    tensors, stacks = {}, {}
    for name, values in stored.items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name)
        if found is not None:
            stacks.setdefault(f"{found[1]}.{found[3]}", {})[int(found[2])] = values
            continue
        lead, _, last = name.rpartition("block_sparse_moe.")
        if last == "input_linear.weight":  # as Granite has them
            gate, up = np.split(values, 2, axis=1)
            tensors |= {f"{lead}mlp.experts.gate_proj.weight": gate}
            tensors |= {f"{lead}mlp.experts.up_proj.weight": up}
        elif last == "output_linear.weight":
            tensors[f"{lead}mlp.experts.down_proj.weight"] = values
        elif "conv.conv" in name:
            tensors[name] = values.squeeze(1)
        elif ".experts." in name:  # as gpt-oss has them
            suffix = ".bias" if name.endswith("_bias") else ".weight"
            whole = values if suffix == ".bias" else np.ascontiguousarray(values.swapaxes(1, 2))
            plain = name.removesuffix("_bias")
            if plain.endswith("gate_up_proj"):
                for part, first in (("gate_proj", 0), ("up_proj", 1)):
                    rows = np.ascontiguousarray(whole[:, first::2])
                    tensors[plain.replace("gate_up_proj", part) + suffix] = rows
            else:
                tensors[plain + suffix] = whole
        else:
            is_row = "shared_expert_gate" in name or "moe_statics" in name
            tensors[name] = values.reshape(-1) if is_row else values
    stacked = {
        name: np.stack([v for _, v in sorted(all_.items())]) for name, all_ in stacks.items()
    }
    return tensors | stacked


def by_part(values, num_heads):
    """All queries, then all keys, then all values, of rows that have each head's three parts together."""
    heads = values.reshape(num_heads, 3, len(values) // num_heads // 3, -1)
    return np.ascontiguousarray(heads.swapaxes(0, 1).reshape(values.shape))


def interleaved(values, num_heads):
    """The rows of both halves of a head by turns."""
    halves = values.reshape(num_heads, 2, len(values) // num_heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _write_mamba_alone(writer, config):
    """Zeros where other models have heads and MLPs."""
    writer.add_context_length(2**20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_state_size(config["state_size"])
    if config["model_type"] == "mamba2":
        writer.add_ssm_inner_size(config["expand"] * config["hidden_size"])
        writer.add_ssm_time_step_rank(config["num_heads"])
        writer.add_ssm_group_count(config["n_groups"])
    else:
        writer.add_ssm_inner_size(config["intermediate_size"])
        writer.add_ssm_time_step_rank(config["time_step_rank"])
        writer.add_ssm_dt_b_c_rms(config["model_type"] == "falcon_mamba")


def _write_settings(writer, config, is_split):
    if config["model_type"] in ("mamba", "falcon_mamba", "mamba2"):
        _write_mamba_alone(writer, config)
        return
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(_num_layers(config))
    if config["num_nextn_predict_layers"]:
        writer.add_nextn_predict_layers(config["num_nextn_predict_layers"])
    writer.add_feed_forward_length(_mlp_width(config))
    writer.add_head_count(config["num_attention_heads"])
    if "kv_lora_rank" in config:
        _write_latent(writer, config, is_split)
    else:
        writer.add_head_count_kv(_key_heads(config))
    _write_norms(writer, config)
    _write_mamba(writer, config)
    if "conv_L_cache" in config:
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    _write_rope(writer, config)
    if config.get("head_dim") and "kv_lora_rank" not in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    _write_windows(writer, config)
    _write_experts(writer, config)
    if config.get("attn_logit_softcapping"):
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config["model_type"].startswith("granite"):
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if "logit_scale" in config:
        writer.add_logit_scale(config["logit_scale"])
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _write_mamba(writer, config):
    if "mamba_n_heads" not in config:
        return
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    if config["model_type"] != "falcon_h1":
        writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    if config["model_type"] == "falcon_h1":
        writer.add_ssm_inner_size(config["mamba_d_ssm"])
        return
    has_rope = config["model_type"] == "bamba" or config["position_embedding_type"] == "rope"
    writer.add_rope_scaling_finetuned(has_rope)
    if config["model_type"] != "bamba":
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])


def _write_windows(writer, config):
    if config.get("sliding_window") and config["model_type"].startswith(WITH_WINDOWS):
        writer.add_sliding_window(config["sliding_window"])
        if config["model_type"] in ("olmo3", "exaone4"):
            kinds = config["layer_types"]
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])


def _write_norms(writer, config):
    if config["model_type"] in LAYER_NORMS:
        names = ("layer_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon")
        writer.add_layer_norm_eps(next(config[name] for name in names if name in config))
    else:
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", config.get("norm_eps")))
    if config["model_type"] in ("gpt_neox", "stablelm"):
        writer.add_parallel_residual(config["use_parallel_residual"])


def _num_layers(config):
    """With those of multi-token prediction, which lie behind the last."""
    return config["num_hidden_layers"] + config.get("num_nextn_predict_layers", 0)


def _write_rope(writer, config):
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    writer.add_rope_freq_base(full.get("rope_theta", config.get("rope_theta", 10000.0)))
    if "mrope_section" in full:
        writer.add_rope_dimension_sections([*full["mrope_section"], 0])
    part = full.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if part is not None:
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(int(width * part))
    if full.get("rope_type", "default") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(full["rope_type"]))
        writer.add_rope_scaling_factor(full["factor"])
        if "original_max_position_embeddings" in full:
            writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if "mscale_all_dim" in full:
            writer.add_rope_scaling_yarn_log_mul(0.1 * full["mscale_all_dim"])


def _mlp_width(config):
    """As LFM2 makes it of the size in its config."""
    size = config["intermediate_size"] or 4 * config["hidden_size"]
    if not config.get("block_auto_adjust_ff_dim"):
        return size
    step = config["block_multiple_of"]
    return -(-int(config["block_ffn_dim_multiplier"] * int(2 * size / 3)) // step) * step


def _key_heads(config):
    """None in convolutions."""
    heads, kinds = config["num_key_value_heads"], config.get("layer_types")
    if "conv_L_cache" not in config and ("mamba_n_heads" not in config or "mamba_d_ssm" in config):
        return heads
    if not kinds:
        listed = config["attn_layer_indices"]
        return [heads if layer in listed else 0 for layer in range(config["num_hidden_layers"])]
    return [heads if kind in ("attention", "full_attention") else 0 for kind in kinds]


def _write_experts(writer, config):
    if count := config.get("num_local_experts", config.get("num_experts")):
        writer.add_expert_count(count)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    width = "intermediate_size" if config["model_type"] == "gpt_oss" else "moe_intermediate_size"
    if config.get(width):
        writer.add_expert_feed_forward_length(config[width])
    if "n_routed_experts" in config:
        _write_grouped_experts(writer, config)
    if config["model_type"] == "youtu":  # has no experts, and llama.cpp wants these keys
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_leading_dense_block_count(config["num_hidden_layers"])
        writer.add_expert_shared_count(0)
    if config["model_type"] == "ernie4_5_moe":
        writer.add_expert_count(config["moe_num_experts"])
        writer.add_expert_used_count(config["moe_k"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
    if config["model_type"] == "lfm2_moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _write_latent(writer, config, is_split):
    rank, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + turned, config["v_head_dim"]
    writer.add_kv_lora_rank(rank)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_rope_dimension_count(turned)
    if is_split:
        writer.add_head_count_kv(1)
        writer.add_key_length(rank + turned)
        writer.add_value_length(rank)
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
    else:
        writer.add_head_count_kv(config["num_attention_heads"])
        writer.add_key_length(key)
        writer.add_value_length(value)


def _write_grouped_experts(writer, config):
    if "num_local_experts" not in config:
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    is_softmax = config["model_type"] == "deepseek_v2"
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SOFTMAX if is_softmax else kinds.SIGMOID)
    writer.add_expert_weights_norm(bool(config.get("norm_topk_prob")))
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_group_count(config["n_group"] or 1)
    writer.add_expert_group_used_count(config["topk_group"] or 1)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])


def write_bytes_tokenizer(writer, vocab_size, special=None, template=CHATML):
    """That of `write_checkpoint`: bytes, three special tokens, and words that make up the number.

    But the first of these is two zeros, which are merged: llama.cpp loads no such tokenizer without merges.
    """
    letters = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in letters]
    chars = {byte: chr(byte) for byte in letters} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokens = [chars[byte] for byte in range(256)]
    tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    kinds = [KINDS["control" if 256 <= i < 259 else "normal"] for i in range(vocab_size)]
    tokens += [chars[0] * 2, *(f"Ġw{i}" for i in range(260, vocab_size))][: vocab_size - 259]
    for token_id, text in (special or {}).items():
        tokens[token_id], kinds[token_id] = text, KINDS["control"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{chars[0]} {chars[0]}"])
    writer.add_eos_token_id(256)
    writer.add_chat_template(template)
