"""`FileOverrides`: user settings that replace parts of a model's files."""

from typing import Any

import msgspec


class FileOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """Replacements for parts of a model's files: the tokenizer, and values of the configs."""

    tokenizer: str | None = None
    hf_overrides: dict[str, Any] = {}
    generation_config: str = "auto"
    override_generation_config: dict[str, Any] = {}
    mmproj: str | None = None  # projector file of a GGUF model, "none" for text alone
    weight_format: str = "auto"  # "auto": the format that the model's files have


NO_OVERRIDES = FileOverrides()
