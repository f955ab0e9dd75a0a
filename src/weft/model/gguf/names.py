"""Tensor names in GGUF files, by Weft's names."""

from collections.abc import Collection
from dataclasses import replace

from weft.model.families.names import DecoderNames, MtpNames, joined
from weft.model.spec import NormPlacement

EMBED, HEAD = "token_embd", "output"
JOINED_HEADS = "attn_qkv"
NEGATIVE_DECAYS = "ssm_a"  # -exp(A_log)

_NAMES = {
    "embed": EMBED,
    "layer": "blk.{}.",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "norm": "output_norm",
    "positions": "position_embd",
    "sinks": "attn_sinks.weight",
    "router": "ffn_gate_inp",
    "expert_gate": "ffn_gate_exps",
    "expert_up": "ffn_up_exps",
    "expert_down": "ffn_down_exps",
    "shared_gate": "ffn_gate_inp_shexp",
    "shared.gate": "ffn_gate_shexp",
    "shared.up": "ffn_up_shexp",
    "shared.down": "ffn_down_shexp",
}
_BEFORE = {"attention_norm_before": "attn_norm", "mlp_norm_before": "ffn_norm"}
_AFTER = {"attention_norm_after": "post_attention_norm", "mlp_norm_after": "post_ffw_norm"}
TENSORS = DecoderNames(
    _NAMES,
    {
        NormPlacement.BEFORE: _BEFORE,
        NormPlacement.AFTER: _AFTER,
        NormPlacement.BOTH: {**_BEFORE, **_AFTER},
    },
)

# These families name the norm before the MLP as a norm after attention.
_NAMED_AFTER = {
    NormPlacement.BEFORE: {**_BEFORE, "mlp_norm_before": _AFTER["attention_norm_after"]}
}
GPT_OSS = SEED_OSS = DecoderNames(_NAMES, _NAMED_AFTER)
# One norm for attention and MLP, if both are computed from the layer's input.
ONE_NORM = DecoderNames(
    _NAMES,
    {
        NormPlacement.BEFORE: _BEFORE,
        NormPlacement.PARALLEL: dict.fromkeys(_BEFORE, "attn_norm"),
    },
)
TWO_NORMS = DecoderNames(
    _NAMES, dict.fromkeys((NormPlacement.BEFORE, NormPlacement.PARALLEL), _BEFORE)
)
# Elements that are rotated together are adjacent in the original models too.
NEIGHBOURS = replace(TENSORS, has_neighbours=True)
NEIGHBOURS_OF_ONE_NORM = replace(ONE_NORM, has_neighbours=True)
_GATE_IN_UP = {**_NAMES, **joined("ffn_up", "gate", "up")}
PHI3 = replace(TENSORS, names=_GATE_IN_UP)
GLM4 = replace(PHI3, has_neighbours=True)

MTP = MtpNames(
    {
        "layer": "blk.{}.",
        "join": "blk.{}.nextn.eh_proj",
        "join_embed_norm": "blk.{}.nextn.enorm",
        "join_hidden_norm": "blk.{}.nextn.hnorm",
        "norm": "blk.{}.nextn.shared_head_norm",
    },
    counts_on=True,
)
MAMBA = DecoderNames(
    {
        **_NAMES,
        "mamba_in": "ssm_in",
        "conv": "ssm_conv1d",
        "a_log": NEGATIVE_DECAYS,
        "step_bias": "ssm_dt.bias",
        "skip": "ssm_d",
        "output_scale": "ssm_norm.weight",
        "mamba_out": "ssm_out",
    },
    {NormPlacement.BEFORE: _BEFORE},
)
# The first Mamba.
FIRST_MAMBA = DecoderNames(
    {**MAMBA.names, "step_in": "ssm_x.weight", "step_out": "ssm_dt.weight"}, MAMBA.norms
)
# A layer with a gated delta net has its queries, keys and values in the tensor that others name so in attention.
DELTA = DecoderNames(
    {
        **_NAMES,
        "delta_qkv": JOINED_HEADS,
        "delta_z": "attn_gate",
        "delta_b": "ssm_beta",
        "delta_a": "ssm_alpha",
        "conv": "ssm_conv1d",
        "a_log": NEGATIVE_DECAYS,
        "step_bias": "ssm_dt.bias",
        "output_scale": "ssm_norm.weight",
        "delta_out": "ssm_out",
    },
    _NAMED_AFTER,
    mtp=MTP,
)
DELTA_BY_KEY_HEAD = replace(DELTA, names={**DELTA.names, **joined("ssm_ba", "delta_b", "delta_a")})
# The MLP is the expert that every token uses, in layers with experts.
GEMMA4 = DecoderNames(
    {
        **_NAMES,
        "inputs.embed": "per_layer_token_embd",
        "inputs.join": "per_layer_model_proj",
        "inputs.norm": "per_layer_proj_norm",
        "input.gate": "inp_gate",
        "input.down": "proj",
        "input.norm": "post_norm",
        "scale": "layer_output_scale.weight",
        "router_norm": "ffn_gate_inp.scale",
        "router_scales": "ffn_down_exps.scale",
        **{f"shared.{part}": _NAMES[part] for part in ("gate", "up", "down")},
        "shared_norm": "post_ffw_norm_1",
        "expert_norm_before": "pre_ffw_norm_2",
        "expert_norm_after": "post_ffw_norm_2",
        **joined("ffn_gate_up_exps", "expert_gate", "expert_up"),
    },
    {NormPlacement.BOTH: TENSORS.norms[NormPlacement.BOTH]},
)

GLM = DecoderNames(
    {**_NAMES, "router_correction": "exp_probs_b.bias"},
    _NAMED_AFTER,
    mtp=MTP,
)
SIGMOID_EXPERTS = DecoderNames(GLM.names, TENSORS.norms, mtp=MTP)
ERNIE_EXPERTS = replace(SIGMOID_EXPERTS, has_neighbours=True, mtp=None)
# This family names the last norm as a norm after the embedding.
LFM2 = DecoderNames(
    {
        **GLM.names,
        "norm": "token_embd_norm",
        "conv_in": "shortconv.in_proj",
        "conv": "shortconv.conv",
        "conv_out": "shortconv.out_proj",
    },
    {NormPlacement.BEFORE: _BEFORE},
)
DEEPSEEK = DecoderNames(
    {
        **GLM.names,
        "q_a": "attn_q_a",
        "q_a_norm": "attn_q_a_norm",
        "q_b": "attn_q_b",
        "kv_a": "attn_kv_a_mqa",
        "kv_a_norm": "attn_kv_a_norm",
        "kv_b": "attn_kv_b",
        "kv_b.keys": "attn_k_b",
        "kv_b.values": "attn_v_b",
    },
    {NormPlacement.BEFORE: _BEFORE},
    mtp=MTP,
)


def with_joined_heads(names: DecoderNames, tensors: Collection[str]) -> DecoderNames:
    """Returns the names for a file that may have queries, keys and values of a layer in one tensor."""
    if "delta_qkv" in names.names:
        return names
    if f"blk.0.{JOINED_HEADS}.weight" not in tensors or names.names["q"] != _NAMES["q"]:
        return names
    return replace(names, names={**names.names, **joined(JOINED_HEADS, "q", "k", "v")})
