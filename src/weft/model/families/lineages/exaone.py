"""Family rows of EXAONE 4: norms after attention and MLP, and rope only in layers with windows."""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.families.family import COMMON, Family
from weft.model.spec import NormPlacement, QkNorm

EXAONE_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
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
