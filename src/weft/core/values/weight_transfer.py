"""Weights that other programs send: the configuration, and the parameters of calls under vLLM's names."""

from typing import Any, Literal

import msgspec


class WeightTransferConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Way for other programs to send weights: a segment of shared memory, or files below `directory`."""

    backend: Literal["shared_memory", "safetensors"]
    directory: str | None = None


class WeightTransferInitRequest(msgspec.Struct, frozen=True):
    """Information that a backend needs before weights arrive; both backends need none."""

    init_info: dict[str, Any] = {}


class WeightTransferUpdateRequest(msgspec.Struct, frozen=True):
    """The tensors of one call and where they are stored; see `EngineClient.update_weights`."""

    update_info: dict[str, Any]
