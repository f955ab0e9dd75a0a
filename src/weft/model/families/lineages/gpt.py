"""Family rows of GPT-2 and OPT: layer norms, and an MLP without a gate."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.families.encoder_families import GPT2_KEYS
from weft.model.families.family import Family
from weft.model.families.names import GPT2, OPT
from weft.model.switches import Norm

_OPT = {
    "hidden_act": "relu",
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "enable_bias": True,
    "tie_word_embeddings": True,
}
_GPT2 = {
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}

GPT_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "gpt2": Family(
            architecture="GPT2LMHeadModel",
            defaults=_GPT2,
            aliases=GPT2_KEYS,
            names=GPT2,
            qkv_bias="always",
            o_bias="always",
            mlp_bias="always",
            is_gated=False,
            norm=Norm.LAYER,
            position_offset=0,
            prefixes=("transformer.", ""),
        ),
        "opt": Family(
            architecture="OPTForCausalLM",
            defaults=_OPT,
            aliases={"ffn_dim": "intermediate_size", "activation_function": "hidden_act"},
            names=OPT,
            qkv_bias="enable_bias",
            o_bias="enable_bias",
            mlp_bias="enable_bias",
            is_gated=False,
            norm=Norm.LAYER,
            position_offset=2,
            reads=frozenset({"do_layer_norm_before", "word_embed_proj_dim"}),
            prefixes=("model.decoder.", "decoder."),
        ),
    }
)
