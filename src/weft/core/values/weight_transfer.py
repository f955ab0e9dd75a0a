"""Weights that other programs send: how they may, and what callers say of them, by the names of vLLM."""

from typing import Any, Literal

import msgspec


class WeightTransferConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How other programs may send weights: in a segment of shared memory, or as files below `directory`."""

    backend: Literal["shared_memory", "safetensors"]
    directory: str | None = None


class WeightTransferInitRequest(msgspec.Struct, frozen=True):
    """What a backend wants to know before weights come; ours want nothing."""

    init_info: dict[str, Any] = {}


class WeightTransferUpdateRequest(msgspec.Struct, frozen=True):
    """Which tensors come, and where they lie: see `EngineClient.update_weights`."""

    update_info: dict[str, Any]
