"""Tensor names of families, by Weft's names for the same tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from weft.model.spec import NormPlacement


@dataclass(frozen=True, slots=True)
class Names:
    """Tensor names of an encoder family; `spellings` has one map for each naming scheme of its checkpoints.

    A map goes from Weft's name to the checkpoint's name without `.weight` or `.bias`. The value of `layer` is the
    prefix of a layer's tensors, with `{}` for its number. Several of Weft's names may map to one tensor, which then has
    their rows one after the other. Tensors whose names begin with an entry of `ignored` are not used for pooling.
    """

    spellings: tuple[Mapping[str, str], ...]
    ignored: tuple[str, ...]


def joined(name: str, *parts: str) -> dict[str, str]:
    return dict.fromkeys(parts, name)


@dataclass(frozen=True, slots=True)
class MtpNames:
    """Names of layers for multi-token prediction: full names with `{}` for the number of a layer.

    With `counts_on`, the numbers continue those of the ordinary layers; otherwise they begin at 0.
    """

    names: Mapping[str, str]
    counts_on: bool


@dataclass(frozen=True, slots=True)
class DecoderNames:
    """Tensor names of a decoder family: a map as in `Names`, and further names by the placement of norms.

    `is_transposed`: linear layers are stored as [in, out]. `has_bare_experts`: experts are stored as in gpt-oss.
    `has_short_experts`: names of tensors with all experts have no suffix; with `has_turned_experts` these tensors have
    rows and columns exchanged. With a name "second_layer" the two parts of a layer are layers of their own in the
    checkpoint, the MLP being the second; it is then the prefix of the second part's tensors.
    `has_correction_row`: the router's correction is stored as a matrix of one row.
    `has_mixed_heads`: one tensor has a head's query, key and value, then those of the next head. `has_neighbours`:
    elements of a head that are rotated together are adjacent.
    """

    names: Mapping[str, str]
    norms: Mapping[NormPlacement, Mapping[str, str]]
    is_transposed: bool = False
    has_bare_experts: bool = False
    has_short_experts: bool = False
    has_turned_experts: bool = False
    has_correction_row: bool = False
    has_mixed_heads: bool = False
    has_neighbours: bool = False
    head: str = "lm_head"
    mtp: MtpNames | None = None

    def of(self, placement: NormPlacement) -> Mapping[str, str]:
        """Returns all names for a placement of norms."""
        return {**self.names, **self.norms[placement]}


DECODER = {
    "embed": "embed_tokens",
    "layer": "layers.{}.",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "norm": "norm",
}
FUSED = {
    **joined("self_attn.qkv_proj", "q", "k", "v"),
    **joined("mlp.gate_up_proj", "gate", "up"),
}
# "post_attention_layernorm" is the norm before the MLP in families with norms only before attention and MLP.
DECODER_NORMS = {
    NormPlacement.BEFORE: {
        "attention_norm_before": "input_layernorm",
        "mlp_norm_before": "post_attention_layernorm",
    },
    NormPlacement.PARALLEL: {  # one norm for both attention and MLP
        "attention_norm_before": "input_layernorm",
        "mlp_norm_before": "input_layernorm",
    },
    NormPlacement.AFTER: {
        "attention_norm_after": "post_attention_layernorm",
        "mlp_norm_after": "post_feedforward_layernorm",
    },
    NormPlacement.BOTH: {
        "attention_norm_before": "input_layernorm",
        "attention_norm_after": "post_attention_layernorm",
        "mlp_norm_before": "pre_feedforward_layernorm",
        "mlp_norm_after": "post_feedforward_layernorm",
    },
}


_QWEN_EXPERTS = {
    "router": "mlp.gate",
    "expert_gate": "mlp.experts.{}.gate_proj",
    "expert_up": "mlp.experts.{}.up_proj",
    "expert_down": "mlp.experts.{}.down_proj",
    "shared_gate": "mlp.shared_expert_gate",
    "shared.gate": "mlp.shared_expert.gate_proj",
    "shared.up": "mlp.shared_expert.up_proj",
    "shared.down": "mlp.shared_expert.down_proj",
}

_MTP = MtpNames(
    {
        "layer": "model.layers.{}.",
        "join": "model.layers.{}.eh_proj",
        "join_embed_norm": "model.layers.{}.enorm",
        "join_hidden_norm": "model.layers.{}.hnorm",
        "norm": "model.layers.{}.shared_head.norm",
    },
    counts_on=True,
)
_QWEN_MTP = MtpNames(
    {
        "layer": "mtp.layers.{}.",
        "join": "mtp.fc",
        "join_embed_norm": "mtp.pre_fc_norm_embedding",
        "join_hidden_norm": "mtp.pre_fc_norm_hidden",
        "norm": "mtp.norm",
    },
    counts_on=False,
)
LLAMA = DecoderNames(DECODER, DECODER_NORMS)
QWEN_EXPERTS = DecoderNames({**DECODER, **_QWEN_EXPERTS}, DECODER_NORMS)
_DELTA = {
    "conv": "linear_attn.conv1d",
    "a_log": "linear_attn.A_log",
    "step_bias": "linear_attn.dt_bias",
    "output_scale": "linear_attn.norm.weight",
    "delta_out": "linear_attn.out_proj",
}
QWEN_NEXT = DecoderNames(
    {
        **QWEN_EXPERTS.names,
        **_DELTA,
        "delta_qkvz": "linear_attn.in_proj_qkvz",
        "delta_ba": "linear_attn.in_proj_ba",
    },
    DECODER_NORMS,
    mtp=_QWEN_MTP,
)
QWEN_DELTA = DecoderNames(
    {
        **QWEN_EXPERTS.names,
        **_DELTA,
        "delta_qkv": "linear_attn.in_proj_qkv",
        "delta_z": "linear_attn.in_proj_z",
        "delta_b": "linear_attn.in_proj_b",
        "delta_a": "linear_attn.in_proj_a",
    },
    DECODER_NORMS,
    mtp=_QWEN_MTP,
)
MIXTRAL = DecoderNames(
    {
        **DECODER,
        "router": "block_sparse_moe.gate",
        "expert_gate": "block_sparse_moe.experts.{}.w1",
        "expert_up": "block_sparse_moe.experts.{}.w3",
        "expert_down": "block_sparse_moe.experts.{}.w2",
    },
    DECODER_NORMS,
)
# All experts in one tensor; for each expert, its gate precedes its up matrix.
GRANITE_EXPERTS = DecoderNames(
    {
        **DECODER,
        "router": "block_sparse_moe.router.layer",
        **joined("block_sparse_moe.input_linear", "expert_gate", "expert_up"),
        "expert_down": "block_sparse_moe.output_linear",
    },
    DECODER_NORMS,
)
_MAMBA = {
    "mamba_in": "mamba.in_proj",
    "conv": "mamba.conv1d",
    "a_log": "mamba.A_log",
    "step_bias": "mamba.dt_bias",
    "skip": "mamba.D",
    "output_scale": "mamba.norm.weight",
    "mamba_out": "mamba.out_proj",
}
_GRANITE_SHARED = {
    f"{lead}{part}": f"shared_mlp.{name}_linear"
    for lead in ("", "shared.")
    for part, name in (("gate", "input"), ("up", "input"), ("down", "output"))
}
GRANITE_HYBRID = DecoderNames({**GRANITE_EXPERTS.names, **_GRANITE_SHARED, **_MAMBA}, DECODER_NORMS)
BAMBA = DecoderNames(
    {
        **DECODER,
        **_MAMBA,
        **{part: f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        "norm": "final_layernorm",
    },
    {
        NormPlacement.BEFORE: {
            "attention_norm_before": "input_layernorm",
            "mlp_norm_before": "pre_ff_layernorm",
        }
    },
)
# Attention, Mamba-2, MLPs and experts are all called mixers, each in a layer of its own.
NEMOTRON_H = DecoderNames(
    {
        "embed": "embeddings",
        "layer": "layers.{}.",
        "second_layer": "layers.{}.",
        **{part: f"mixer.{part}_proj" for part in ("q", "k", "v", "o", "up", "down")},
        **{ours: theirs.replace("mamba.", "mixer.") for ours, theirs in _MAMBA.items()},
        "router": "mixer.gate",
        "router_correction": "mixer.gate.e_score_correction_bias",
        "expert_up": "mixer.experts.{}.up_proj",
        "expert_down": "mixer.experts.{}.down_proj",
        "shared.up": "mixer.shared_experts.up_proj",
        "shared.down": "mixer.shared_experts.down_proj",
        "norm": "norm_f",
    },
    {NormPlacement.BEFORE: {"attention_norm_before": "norm", "mlp_norm_before": "norm"}},
)
MAMBA2 = DecoderNames(
    {
        "embed": "embeddings",
        "layer": "layers.{}.",
        **{ours: theirs.replace("mamba.", "mixer.") for ours, theirs in _MAMBA.items()},
        "norm": "norm_f",
    },
    {NormPlacement.BEFORE: {"attention_norm_before": "norm"}},
)
MAMBA1 = DecoderNames(
    {
        **MAMBA2.names,
        "step_in": "mixer.x_proj.weight",
        "step_out": "mixer.dt_proj.weight",
        "step_bias": "mixer.dt_proj.bias",
    },
    MAMBA2.norms,
)
GPT_OSS = DecoderNames(
    {
        **DECODER,
        "sinks": "self_attn.sinks",
        "router": "mlp.router",
        **joined("mlp.experts.gate_up_proj", "expert_gate", "expert_up"),
        "expert_down": "mlp.experts.down_proj",
    },
    DECODER_NORMS,
    has_bare_experts=True,
)
LFM2 = DecoderNames(
    {
        **DECODER,
        "o": "self_attn.out_proj",
        "q_norm": "self_attn.q_layernorm",
        "k_norm": "self_attn.k_layernorm",
        "conv_in": "conv.in_proj",
        "conv": "conv.conv",
        "conv_out": "conv.out_proj",
        "gate": "feed_forward.w1",
        "up": "feed_forward.w3",
        "down": "feed_forward.w2",
        "norm": "embedding_norm",
    },
    {
        NormPlacement.BEFORE: {
            "attention_norm_before": "operator_norm",
            "mlp_norm_before": "ffn_norm",
        }
    },
)
LFM2_EXPERTS = DecoderNames(
    {
        **LFM2.names,
        "router": "feed_forward.gate",
        "router_correction": "feed_forward.expert_bias",
        "expert_gate": "feed_forward.experts.{}.w1",
        "expert_up": "feed_forward.experts.{}.w3",
        "expert_down": "feed_forward.experts.{}.w2",
    },
    LFM2.norms,
)
GLM_EXPERTS = DecoderNames(
    {
        **DECODER,
        **_QWEN_EXPERTS,
        "router_correction": "mlp.gate.e_score_correction_bias",
        "shared.gate": "mlp.shared_experts.gate_proj",
        "shared.up": "mlp.shared_experts.up_proj",
        "shared.down": "mlp.shared_experts.down_proj",
    },
    DECODER_NORMS,
    mtp=_MTP,
)
DEEPSEEK = DecoderNames(
    {
        **GLM_EXPERTS.names,
        "q_a": "self_attn.q_a_proj",
        "q_a_norm": "self_attn.q_a_layernorm",
        "q_b": "self_attn.q_b_proj",
        "kv_a": "self_attn.kv_a_proj_with_mqa",
        "kv_a_norm": "self_attn.kv_a_layernorm",
        "kv_b": "self_attn.kv_b_proj",
    },
    DECODER_NORMS,
    mtp=_MTP,
)
LLAMA_FUSED = DecoderNames({**DECODER, **FUSED}, DECODER_NORMS)
OPT = DecoderNames(
    {
        **DECODER,
        "positions": "embed_positions",
        "project_in": "project_in",
        "project_out": "project_out",
        "o": "self_attn.out_proj",
        "up": "fc1",
        "down": "fc2",
        "norm": "final_layer_norm",
    },
    {
        placement: {
            f"attention_norm_{placement.value}": "self_attn_layer_norm",
            f"mlp_norm_{placement.value}": "final_layer_norm",
        }
        for placement in (NormPlacement.BEFORE, NormPlacement.SUM)
    },
)
WHISPER = DecoderNames(
    {
        **DECODER,
        "positions": "embed_positions",
        "o": "self_attn.out_proj",
        "cross_q": "encoder_attn.q_proj",
        "cross_o": "encoder_attn.out_proj",
        "cross_norm": "encoder_attn_layer_norm",
        "up": "fc1",
        "down": "fc2",
        "norm": "layer_norm",
    },
    {
        NormPlacement.BEFORE: {
            "attention_norm_before": "self_attn_layer_norm",
            "mlp_norm_before": "final_layer_norm",
        }
    },
    head="proj_out",
)
GPT2 = DecoderNames(
    {
        "embed": "wte",
        "positions": "wpe",
        "layer": "h.{}.",
        **joined("attn.c_attn", "q", "k", "v"),
        "o": "attn.c_proj",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
        "norm": "ln_f",
    },
    {NormPlacement.BEFORE: {"attention_norm_before": "ln_1", "mlp_norm_before": "ln_2"}},
    is_transposed=True,
)


_BERT_EMBED = {
    "embed": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "embed_norm": "embeddings.LayerNorm",
}
_BERT_LAYER = {
    "layer": "encoder.layer.{}.",
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "o": "attention.output.dense",
    "attention_norm_sum": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "mlp_norm_sum": "output.LayerNorm",
}

BERT = Names(
    spellings=(MappingProxyType({**_BERT_EMBED, **_BERT_LAYER}),),
    ignored=("pooler.", "cls.", "lm_head."),
)
DISTILBERT = Names(
    spellings=(
        MappingProxyType(
            {
                **_BERT_EMBED,
                "layer": "transformer.layer.{}.",
                "q": "attention.q_lin",
                "k": "attention.k_lin",
                "v": "attention.v_lin",
                "o": "attention.out_lin",
                "attention_norm_sum": "sa_layer_norm",
                "up": "ffn.lin1",
                "down": "ffn.lin2",
                "mlp_norm_sum": "output_layer_norm",
            }
        ),
    ),
    ignored=("vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
)
MODERNBERT = Names(
    spellings=(
        MappingProxyType(
            {
                "embed": "embeddings.tok_embeddings",
                "embed_norm": "embeddings.norm",
                "layer": "layers.{}.",
                **joined("attn.Wqkv", "q", "k", "v"),
                "o": "attn.Wo",
                "attention_norm_before": "attn_norm",
                **joined("mlp.Wi", "gate", "up"),
                "down": "mlp.Wo",
                "mlp_norm_before": "mlp_norm",
                "norm": "final_norm",
            }
        ),
    ),
    ignored=("head.", "decoder."),
)
_NOMIC_EMBED = {
    "embed": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
}
NOMIC = Names(
    spellings=(
        MappingProxyType(
            {
                **_NOMIC_EMBED,
                "embed_norm": "emb_ln",
                "layer": "encoder.layers.{}.",
                **joined("attn.Wqkv", "q", "k", "v"),
                "o": "attn.out_proj",
                "attention_norm_sum": "norm1",
                "gate": "mlp.fc12",
                "up": "mlp.fc11",
                "down": "mlp.fc2",
                "mlp_norm_sum": "norm2",
            }
        ),
        MappingProxyType(
            {
                **_NOMIC_EMBED,
                "embed_norm": "embeddings.LayerNorm",
                "layer": "layers.{}.",
                "q": "self_attn.q_proj",
                "k": "self_attn.k_proj",
                "v": "self_attn.v_proj",
                "o": "self_attn.o_proj",
                "attention_norm_sum": "post_attention_layernorm",
                "gate": "mlp.gate_proj",
                "up": "mlp.up_proj",
                "down": "mlp.down_proj",
                "mlp_norm_sum": "post_mlp_layernorm",
            }
        ),
    ),
    ignored=("pooler.", "cls.", "lm_head."),
)

# Names of a classifier's first linear layer and of its labels' linear layer, by model type. A name that begins with a
# dot follows the prefix of the encoder's tensors.
HEADS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "bert": (".pooler.dense", "classifier"),
        "roberta": ("classifier.dense", "classifier.out_proj"),
        "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
        "distilbert": ("pre_classifier", "classifier"),
        "modernbert": ("head.dense", "classifier"),
        "nomic_bert": (".pooler.dense", "classifier"),
    }
)
