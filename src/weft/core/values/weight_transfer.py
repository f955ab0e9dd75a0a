"""Weights that other programs send: the configuration, and the arguments of the calls under vLLM's names."""

from typing import Any, Literal

import msgspec


class WeightTransferConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of weight transfer: by a segment of shared memory, or by files below `directory`."""

    backend: Literal["shared_memory", "safetensors"]
    directory: str | None = None


class WeightTransferInitRequest(msgspec.Struct, frozen=True):
    """Arguments that a transfer backend needs before weights arrive; both backends need none."""

    init_info: dict[str, Any] = {}


class WeightTransferUpdateRequest(msgspec.Struct, frozen=True):
    """The tensors of one call, and the location of their data. `OperatorCalls.update_weights` documents the fields."""

    update_info: dict[str, Any]
