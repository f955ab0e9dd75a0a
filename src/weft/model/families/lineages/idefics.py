"""Idefics3 and SmolVLM: text models of Llama's kind with a tower of SigLIP's kind."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.family import Family
from weft.model.families.lineages.llama import LLAMA_FAMILIES
from weft.model.families.lineages.siglip import IDEFICS3_TOWER

_IDEFICS3 = replace(
    LLAMA_FAMILIES["llama"],
    architecture="Idefics3ForConditionalGeneration",
    defaults={**LLAMA_FAMILIES["llama"].defaults, "rms_norm_eps": 1e-5},
    prefixes=("model.text_model.",),
    tower=IDEFICS3_TOWER,
)

IDEFICS_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "idefics3": _IDEFICS3,
        "smolvlm": replace(_IDEFICS3, architecture="SmolVLMForConditionalGeneration"),
    }
)
