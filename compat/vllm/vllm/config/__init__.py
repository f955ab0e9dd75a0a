"""Settings that programs pass as objects. Each is a dict, which Weft checks like the JSON of the flag."""

from typing import Any

from weft.core.config.pooler_options import PoolerOptions as PoolerConfig

__all__ = [
    "KVEventsConfig", "KVTransferConfig", "PoolerConfig", "ProfilerConfig", "SpeculativeConfig",
    "WeightTransferConfig",
]  # fmt: skip

_ELSEWHERE = {
    "AttentionConfig": "Weft's kernels are chosen by the machine",
    "CompilationConfig": "Weft compiles nothing",
    "ModelConfig": "pass its settings to LLM(...)",
    "VllmConfig": "pass its settings to LLM(...)",
}


class _Settings(dict[str, Any]):
    """Settings by name, which are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class KVTransferConfig(_Settings):
    """Settings of `kv_transfer_config`."""


class KVEventsConfig(_Settings):
    """Settings of `kv_events_config`."""


class ProfilerConfig(_Settings):
    """Settings of `profiler_config`."""


class SpeculativeConfig(_Settings):
    """Settings of `speculative_config`."""


class WeightTransferConfig(_Settings):
    """Settings of `weight_transfer_config`."""


def __getattr__(name: str) -> object:
    if name in _ELSEWHERE:
        raise ImportError(f"weft-vllm has no {name}: {_ELSEWHERE[name]}")
    raise AttributeError(f"module 'vllm.config' (weft-vllm) has no attribute {name!r}")
