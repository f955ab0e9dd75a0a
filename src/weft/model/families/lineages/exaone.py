"""Family rows of EXAONE 3, which is Llama with GPT-2's names, and of EXAONE 4.

EXAONE 4 has norms after attention and MLP, and rope only in layers with windows.
"""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.families.family import COMMON, Family
from weft.model.families.names import DecoderNames
from weft.model.spec import NormPlacement, QkNorm

_EXAONE = DecoderNames(
    {
        "embed": "wte",
        "layer": "h.{}.",
        **{part: f"attn.attention.{part}_proj" for part in ("q", "k", "v")},
        "o": "attn.attention.out_proj",
        "gate": "mlp.c_fc_0",
        "up": "mlp.c_fc_1",
        "down": "mlp.c_proj",
        "norm": "ln_f",
    },
    {NormPlacement.BEFORE: {"attention_norm_before": "ln_1", "mlp_norm_before": "ln_2"}},
)

EXAONE_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "exaone": Family(
            architecture="ExaoneForCausalLM",
            also_saved_as=("LlamaForCausalLM",),
            defaults={
                **COMMON,
                "max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
                "rope_theta": 500000.0,
            },
            aliases={
                "num_layers": "num_hidden_layers",
                "layer_norm_epsilon": "rms_norm_eps",
                "activation_function": "hidden_act",
            },
            mlp_bias="mlp_bias",
            names=_EXAONE,
            prefixes=("transformer.",),
        ),
        "exaone4": Family(
            architecture="Exaone4ForCausalLM",
            defaults={
                **COMMON,
                "rms_norm_eps": 1e-5,
                "sliding_window": 4096,
                "sliding_window_pattern": 4,
            },
            qkv_bias="never",
            o_bias="never",
            qk_norm=QkNorm.HEAD,
            norm_placement=NormPlacement.AFTER,
            windows="layer_types",
            rope_needs_window="if_any",
        ),
    }
)
