"""Tensor names in GGUF files, by Weft's names."""

from weft.model.families.names import DecoderNames, MtpNames, joined
from weft.model.spec import NormPlacement

EMBED, HEAD = "token_embd", "output"

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

# This family names the norm before the MLP as a norm after attention.
GPT_OSS = DecoderNames(
    _NAMES,
    {NormPlacement.BEFORE: {**_BEFORE, "mlp_norm_before": _AFTER["attention_norm_after"]}},
)

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

_MTP = MtpNames(
    {
        "layer": "blk.{}.",
        "join": "blk.{}.nextn.eh_proj",
        "join_embed_norm": "blk.{}.nextn.enorm",
        "join_hidden_norm": "blk.{}.nextn.hnorm",
        "norm": "blk.{}.nextn.shared_head_norm",
    },
    counts_on=True,
)
GLM = DecoderNames(
    {**_NAMES, "router_correction": "exp_probs_b.bias"},
    {NormPlacement.BEFORE: GPT_OSS.norms[NormPlacement.BEFORE]},
    mtp=_MTP,
)
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
    mtp=_MTP,
)
