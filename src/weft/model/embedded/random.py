"""The models `embedded:random?…`: decoders of any size with random weights, made from a seed and each tensor's name."""

import hashlib
import json
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.core.values.types import PoolingKind
from weft.model.embedded.byte_tokenizer import (
    ENDOFTEXT_ID,
    IM_END_ID,
    MIN_VOCAB,
    SPECIALS,
    tokenizer_files,
)
from weft.model.embedded.parameters import Parameters, parse_parameters
from weft.model.families.decoders import read_config, read_spec
from weft.model.families.names import DecoderNames
from weft.model.files.checkpoint import Checkpoint
from weft.model.files.directory import describe, read_part
from weft.model.files.layout import decoder_layout
from weft.model.files.tensor_plan import TensorPlan
from weft.model.overrides import read_generation
from weft.model.pooling import PoolingSpec
from weft.model.spec import ModelSpec
from weft.model.weights import DTYPES, Tensor, Weights, bfloat16_bits

_KEYS = tuple(
    "layers hidden heads kv_heads head_dim intermediate vocab qk_norm dtype seed max_len experts "
    "experts_per_token shared sinks conv delta mamba latent latent_queries".split()
)
_BESIDE_STATES = (
    "layers hidden heads kv_heads head_dim intermediate vocab dtype seed max_len".split()
)
_HEAD_SPREAD = 3.0  # standard deviation of the logits: neither flat nor all on one token


def open_random(name: str, query: str, dtype: str, runner: str = "auto") -> Checkpoint:
    """Returns the model that `query` describes; a `dtype` other than "auto" rounds the weights to this type."""
    parameters = parse_parameters("random", query, _KEYS)
    values = _config(parameters)
    config = read_config(values, name)
    spec = replace(read_spec(config), has_head=runner != "pooling")
    drawn = parameters.choice("dtype", "float32", DTYPES)
    files = {
        **tokenizer_files(spec.vocab_size, SPECIALS[2]),
        "config.json": json.dumps({**values, "dtype": drawn}, indent=1).encode(),
        "generation_config.json": json.dumps({"eos_token_id": [IM_END_ID, ENDOFTEXT_ID]}).encode(),
    }
    served = drawn if dtype == "auto" else dtype
    generation = read_generation(files, name)
    card = describe(name, config, spec, generation, served)
    if not spec.has_head:
        last, hidden = PoolingKind.LAST, spec.hidden_size
        card = replace(card, pooling=PoolingSpec(hidden_size=hidden, kind=last, normalize=True))
    seed = parameters.integer("seed", 0, low=0, high=2**63 - 1)
    return Checkpoint(
        card,
        spec,
        files,
        lambda: _draw_all(spec, config.family.names, seed, drawn, served),
        lambda: read_part(files, name, config, generation, spec.vocab_size),
    )


def _config(parameters: Parameters) -> dict[str, object]:
    hidden = parameters.integer("hidden", 64, low=2, high=2**16)
    heads = parameters.integer("heads", max(4, hidden // 64), high=2**12)
    kv_heads = parameters.integer("kv_heads", heads // 2 if heads % 2 == 0 else heads, high=2**12)
    if heads % kv_heads:
        raise ConfigError(
            f"embedded:random: heads ({heads}) must be a multiple of kv_heads ({kv_heads})"
        )
    if "head_dim" not in parameters.values and hidden % heads:
        raise ConfigError(
            f"embedded:random: hidden ({hidden}) must be a multiple of heads ({heads}), or head_dim given"
        )
    head_dim = parameters.integer("head_dim", hidden // heads, low=2, high=2**12)
    if head_dim % 2:
        raise ConfigError(f"embedded:random: head_dim ({head_dim}) must be even")
    qk_norm = parameters.flag("qk_norm")
    return {
        "num_hidden_layers": parameters.integer("layers", 2, high=1024),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": parameters.integer("intermediate", 3 * hidden, high=2**18),
        "vocab_size": parameters.integer("vocab", 512, low=MIN_VOCAB, high=2**20),
        "max_position_embeddings": _max_len(parameters),
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "eos_token_id": IM_END_ID,
        "pad_token_id": ENDOFTEXT_ID,
        "bos_token_id": None,
        **(
            _delta(parameters, head_dim)
            or _mamba(parameters, hidden)
            or _hybrid(parameters)
            or _latent(parameters, hidden, head_dim)
            or _experts(parameters, hidden, qk_norm)
            or _dense(qk_norm)
        ),
    }


def _max_len(parameters: Parameters) -> int:
    return parameters.integer("max_len", 4096, low=2, high=2**20)


def _hybrid(parameters: Parameters) -> dict[str, object] | None:
    """Returns the config of a model with convolutions instead of attention in every second layer; None without them.

    The parameter is the width of the convolutions.
    """
    width = parameters.integer("conv", 0, low=0, high=64)
    if not width:
        return None
    given = {
        "qk_norm",
        "experts",
        "experts_per_token",
        "shared",
        "sinks",
        "latent",
        "latent_queries",
    } & parameters.values.keys()
    if given:
        raise ConfigError(
            f"embedded:random: conv and {min(given)} exclude each other: no model family has both"
        )
    num_layers = parameters.integer("layers", 2, high=1024)
    if num_layers == 1 or width == 1:
        raise ConfigError(
            "embedded:random: conv must be at least 2, and needs layers of at least 2"
        )
    return {
        "model_type": "lfm2",
        "conv_L_cache": width,
        "full_attn_idxs": list(range(1, num_layers, 2)),
        "block_auto_adjust_ff_dim": False,
    }


def _delta(parameters: Parameters, head_dim: int) -> dict[str, object] | None:
    """Returns a Qwen3-Next config with gated delta nets instead of attention in every second layer; None without them.

    The parameter is the number of value heads of a delta net.
    """
    heads = parameters.integer("delta", 0, low=0, high=2**12)
    if not heads:
        return None
    return {
        "model_type": "qwen3_next",
        "layer_types": _layer_types(parameters, "delta"),
        "linear_num_value_heads": heads,
        "linear_num_key_heads": heads // 2 if heads % 2 == 0 else heads,
        "linear_key_head_dim": head_dim,
        "linear_value_head_dim": head_dim,
        "partial_rotary_factor": 1.0,
        "num_experts": 0,
    }


def _mamba(parameters: Parameters, hidden: int) -> dict[str, object] | None:
    """Returns a Bamba config with Mamba-2 layers instead of attention in every second layer; None without them.

    The parameter is the number of heads of a Mamba-2 layer.
    """
    heads = parameters.integer("mamba", 0, low=0, high=2**12)
    if not heads:
        return None
    if 2 * hidden % heads:
        raise ConfigError(
            f"embedded:random: mamba must be a divisor of twice hidden ({2 * hidden})"
        )
    kinds = _layer_types(parameters, "mamba")
    return {
        "model_type": "bamba",
        "attn_layer_indices": [i for i, kind in enumerate(kinds) if kind == "full_attention"],
        "mamba_n_heads": heads,
        "mamba_n_groups": 2 if heads % 2 == 0 else 1,
        "mamba_d_state": 16,
        "partial_rotary_factor": 1.0,
    }


def _layer_types(parameters: Parameters, key: str) -> list[str]:
    """Returns the types of all layers for a family with recurrent states; refuses parameters of other families."""
    given = parameters.values.keys() - {*_BESIDE_STATES, key}
    if given:
        raise ConfigError(
            f"embedded:random: {key} and {min(given)} exclude each other: no model family has both"
        )
    num_layers = parameters.integer("layers", 2, high=1024)
    if num_layers == 1:
        raise ConfigError(f"embedded:random: layers must be at least 2 with {key}")
    return ["full_attention" if layer % 2 else "linear_attention" for layer in range(num_layers)]


def _dense(qk_norm: bool) -> dict[str, object]:
    model_type, architecture = ("qwen3", "Qwen3") if qk_norm else ("llama", "Llama")
    return {"model_type": model_type, "architectures": [f"{architecture}ForCausalLM"]}


def _latent(parameters: Parameters, hidden: int, head_dim: int) -> dict[str, object] | None:
    """Returns a DeepSeek-V3 config whose latent vectors have the width `latent`; None without.

    The first layer has an MLP.
    """
    rank = parameters.integer("latent", 0, low=0, high=2**12)
    query_rank = parameters.integer("latent_queries", 0, low=0, high=2**12)
    if rank == 0:
        if query_rank:
            raise ConfigError("embedded:random: latent_queries needs latent")
        return None
    others = {"kv_heads", "qk_norm", "sinks"} & parameters.values.keys()
    if others:
        raise ConfigError(
            f"embedded:random: latent and {min(others)} exclude each other: no model family has both"
        )
    count = parameters.integer("experts", 4, high=4096)
    return {
        "model_type": "deepseek_v3",
        "num_key_value_heads": None,
        "kv_lora_rank": rank,
        "q_lora_rank": query_rank or None,
        "qk_nope_head_dim": head_dim,
        "qk_rope_head_dim": head_dim // 2 // 2 * 2 or 2,
        "v_head_dim": head_dim,
        "n_routed_experts": count,
        "num_experts_per_tok": parameters.integer("experts_per_token", min(2, count), high=count),
        "moe_intermediate_size": parameters.integer("intermediate", 3 * hidden, high=2**18),
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
    }


def _experts(parameters: Parameters, hidden: int, qk_norm: bool) -> dict[str, object] | None:
    """Returns the config of a family with experts, each of the width `intermediate`; None without experts."""
    count = parameters.integer("experts", 0, low=0, high=4096)
    per_token = parameters.integer("experts_per_token", min(2, max(count, 1)), high=4096)
    shared = parameters.integer("shared", 0, low=0, high=2**18)
    given = {"experts_per_token", "shared", "sinks"} & parameters.values.keys()
    if count == 0 and given:
        raise ConfigError(f"embedded:random: {min(given)} needs experts, the number of experts")
    if count == 0:
        return None
    if per_token > count:
        raise ConfigError(
            f"embedded:random: experts_per_token ({per_token}) must be at most experts ({count})"
        )
    if shared and qk_norm:
        raise ConfigError(
            "embedded:random: shared and qk_norm exclude each other: no model family has both"
        )
    if parameters.flag("sinks"):
        if shared or qk_norm:
            other = "shared" if shared else "qk_norm"
            raise ConfigError(
                f"embedded:random: sinks and {other} exclude each other: no model family has both"
            )
        return {
            "model_type": "gpt_oss",
            "num_local_experts": count,
            "num_experts_per_tok": per_token,
            "attention_bias": True,
            "sliding_window": 48,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "truncate": False,
                "original_max_position_embeddings": max(2, _max_len(parameters) // 32),
            },
        }
    model_type = "qwen2_moe" if shared else "qwen3_moe" if qk_norm else "mixtral"
    return {
        "model_type": model_type,
        "num_local_experts" if model_type == "mixtral" else "num_experts": count,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": parameters.integer("intermediate", 3 * hidden, high=2**18),
        "shared_expert_intermediate_size": shared,
        "qkv_bias": False,
        "norm_topk_prob": True,
    }


def _draw_all(spec: ModelSpec, names: DecoderNames, seed: int, drawn: str, served: str) -> Weights:
    plans = decoder_layout(spec, names)
    return Weights({plan.name: _draw(plan, seed, drawn).rounded_to(served) for plan in plans})


def _draw(plan: TensorPlan, seed: int, dtype: str) -> Tensor:
    size = int(np.prod(plan.shape))
    uniform = _uniform(f"{seed}:{plan.name}", size).reshape(plan.shape)
    if len(plan.shape) == 1:  # norm weights, around one; biases and sinks
        is_scale = "norm" in plan.name or plan.name.endswith(".output_scale")
        values = 1.0 + 0.1 * uniform if is_scale else 0.3 * uniform
    else:
        # Uniform numbers on [-1, 1) have variance 1/3. Matrices preserve the magnitude of their inputs.
        deviation = 1.0 if plan.name == "embed" else plan.shape[1] ** -0.5
        spread = _HEAD_SPREAD if plan.name == "head" else 1.0
        values = uniform * np.float32(deviation * spread * 3**0.5)
    if dtype == "bfloat16":
        return Tensor(dtype, bfloat16_bits(values))
    return Tensor(dtype, values.astype(dtype, copy=False))


def _uniform(key: str, size: int) -> NDArray[np.float32]:
    """Returns `size` multiples of 2^-15 in [-1, 1).

    The numbers are raw bits of the generator, so every release of numpy gives the same numbers.
    """
    state = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
    words = np.random.SFC64(state).random_raw((size + 3) // 4)
    steps = np.asarray(words, "<u8").view("<i2")[:size]
    return steps * np.float32(2**-15)
