"""Table of decoder families: one row per family, in the module of its lineage.

`weft.model.families.decoders` reads configs by these rows.
"""

from collections.abc import Mapping
from types import MappingProxyType

from weft.model.families.family import Family
from weft.model.families.lineages.deepseek import DEEPSEEK_FAMILIES
from weft.model.families.lineages.exaone import EXAONE_FAMILIES
from weft.model.families.lineages.gemma import GEMMA_FAMILIES
from weft.model.families.lineages.glm import GLM_FAMILIES
from weft.model.families.lineages.gpt import GPT_FAMILIES
from weft.model.families.lineages.granite import GRANITE_FAMILIES
from weft.model.families.lineages.layer_norm import LAYER_NORM_FAMILIES
from weft.model.families.lineages.lfm import LFM_FAMILIES
from weft.model.families.lineages.llama import LLAMA_FAMILIES
from weft.model.families.lineages.olmo import OLMO_FAMILIES
from weft.model.families.lineages.pixtral import PIXTRAL_FAMILIES
from weft.model.families.lineages.qwen import QWEN_FAMILIES
from weft.model.families.lineages.qwen_delta import QWEN_DELTA_FAMILIES
from weft.model.families.lineages.qwen_vl import QWEN_VL_FAMILIES
from weft.model.families.lineages.siglip import IDEFICS_FAMILIES
from weft.model.families.sound_families import SOUND_FAMILIES

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        **LLAMA_FAMILIES,
        **QWEN_FAMILIES,
        **GEMMA_FAMILIES,
        **OLMO_FAMILIES,
        **GRANITE_FAMILIES,
        **DEEPSEEK_FAMILIES,
        **LFM_FAMILIES,
        **GPT_FAMILIES,
        **LAYER_NORM_FAMILIES,
        **GLM_FAMILIES,
        **EXAONE_FAMILIES,
        **QWEN_DELTA_FAMILIES,
        **QWEN_VL_FAMILIES,
        **IDEFICS_FAMILIES,
        **PIXTRAL_FAMILIES,
        **SOUND_FAMILIES,
    }
)
