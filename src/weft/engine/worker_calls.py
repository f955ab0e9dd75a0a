"""Functions that `collective_rpc` may call; no other code can be called."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from weft.compute.backends import backend_of
from weft.compute.native import trim_heap
from weft.compute.protocols.runner import BlockCopies
from weft.core.config.engine import EngineConfig
from weft.engine.weights.engine_model import EngineModel


def _check_health(_model: EngineModel, _config: EngineConfig) -> None:
    """Does nothing: the reply proves that the engine works."""


def _available_memory(_model: EngineModel, config: EngineConfig) -> int:
    """Returns the number of bytes that are free for weights and KV."""
    return backend_of(config).free_bytes()


def _expert_loads(model: EngineModel, _config: EngineConfig) -> list[list[int]]:
    """Returns the number of tokens routed to each expert since the weights were loaded, by MoE layer."""
    return model.expert_loads()


def _fingerprint(model: EngineModel, _config: EngineConfig) -> str:
    """Returns a text that is equal on every machine with equal weights and bit-identical computation."""
    return f"{model.fingerprint()} {_layout(model)}".rstrip()


def _fingerprint_parts(model: EngineModel, _config: EngineConfig) -> list[str]:
    """Returns a text for the computation and the paths of the weight files, from which a server makes the fingerprint
    without stopping the engine; empty for weights that are in no file.
    """
    parts = model.fingerprint_parts()
    if parts is None:
        return []
    rules, paths = parts
    return [f"{rules} {_layout(model)}", *map(str, paths)]


def _layout(model: EngineModel) -> str:
    runner: object = model.runner
    return runner.kv_layout if isinstance(runner, BlockCopies) else ""


def _weights_identity(model: EngineModel, _config: EngineConfig) -> str:
    """Returns a text that tells the loaded weights from others on this machine; empty if they came by an update."""
    return model.identity() or ""


def _forward_seconds(model: EngineModel, _config: EngineConfig) -> dict[str, float]:
    """Returns the seconds of all steps since the weights were loaded, by part; empty if they are not measured."""
    return dict(model.part_seconds())


def _release_heap(_model: EngineModel, _config: EngineConfig) -> None:
    """Returns unused memory of the C library to the system."""
    trim_heap()


# A name that vLLM's workers also have means the same here.
WORKER_CALLS: Mapping[str, Callable[[EngineModel, EngineConfig], Any]] = MappingProxyType(
    {
        "check_health": _check_health,
        "determine_available_memory": _available_memory,
        "expert_loads": _expert_loads,
        "fingerprint": _fingerprint,
        "fingerprint_parts": _fingerprint_parts,
        "forward_seconds": _forward_seconds,
        "release_heap": _release_heap,
        "weights_identity": _weights_identity,
    }
)
