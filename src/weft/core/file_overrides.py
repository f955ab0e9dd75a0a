"""`FileOverrides`: what users have read in place of a model's files."""

from typing import Any

import msgspec


class FileOverrides(msgspec.Struct, frozen=True, kw_only=True):
    """What is read in place of a model's files: its tokenizer's, and values of its configs."""

    tokenizer: str | None = None
    hf_overrides: dict[str, Any] = {}
    generation_config: str = "auto"
    override_generation_config: dict[str, Any] = {}
    weight_format: str = "auto"  # not read in place of anything: what the files must be


NO_OVERRIDES = FileOverrides()
