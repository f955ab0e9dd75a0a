"""What `collective_rpc` may call: the functions of this table, and no other code."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from weft.compute.backends import backend_of
from weft.compute.native import trim_heap
from weft.compute.runner import BlockCopies
from weft.core.config import EngineConfig
from weft.engine.engine_model import EngineModel


def _check_health(_model: EngineModel, _config: EngineConfig) -> None:
    """Nothing: who answers is well."""


def _available_memory(_model: EngineModel, config: EngineConfig) -> int:
    """Bytes that are free for weights and KV."""
    return backend_of(config).free_bytes()


def _expert_loads(model: EngineModel, _config: EngineConfig) -> list[list[int]]:
    """Tokens that went to each expert since the weights were loaded, by layer that has some."""
    return model.expert_loads()


def _fingerprint(model: EngineModel, _config: EngineConfig) -> str:
    """What tells weights, and the bits that come of them, from others, on another machine too."""
    runner: object = model.runner
    layout = runner.kv_layout if isinstance(runner, BlockCopies) else ""
    return f"{model.fingerprint()} {layout}".rstrip()


def _forward_seconds(model: EngineModel, _config: EngineConfig) -> dict[str, float]:
    """Time spent on steps since the weights were loaded, by part; of a backend that counts it."""
    return dict(model.part_seconds())


def _release_heap(_model: EngineModel, _config: EngineConfig) -> None:
    """Give the system what the C library holds and nothing uses."""
    trim_heap()


# Names that vLLM's workers have mean the same here.
WORKER_CALLS: Mapping[str, Callable[[EngineModel, EngineConfig], Any]] = MappingProxyType(
    {
        "check_health": _check_health,
        "determine_available_memory": _available_memory,
        "expert_loads": _expert_loads,
        "fingerprint": _fingerprint,
        "forward_seconds": _forward_seconds,
        "release_heap": _release_heap,
    }
)
