"""`EngineInfo`: the facts that an engine, local or remote, reports to the servers in front of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from weft.core.checks.validate import Limits
from weft.core.config.engine import EngineConfig, PoolerConfig
from weft.core.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Facts of an engine. `ModelConfig` has the facts of its model.

    `pooler` is None for a model that generates text. Priorities have an effect only if `policy` is "priority". With
    `structured_outputs_in_reasoning` grammars apply from the first token on, also to reasoning. `config` is the
    configuration at the start.
    """

    limits: Limits
    pooler: PoolerConfig | None
    policy: str
    chunks_prompts: bool
    structured_outputs_in_reasoning: bool
    has_kv_events: bool
    data_parallel_size: int
    max_num_seqs: int
    block_size: int
    dtype: str
    kv_cache_dtype: str
    config: EngineConfig
    is_of_speech: bool = False  # True: the model makes text of recordings, and nothing else

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """Returns the facts of an engine with this configuration."""
        cache, scheduler = config.cache_config, config.scheduler_config
        return cls(
            limits=Limits.of(config),
            pooler=config.pooler_config,
            policy=scheduler.policy,
            chunks_prompts=scheduler.chunks_prompts,
            structured_outputs_in_reasoning=config.structured_outputs_in_reasoning,
            has_kv_events=cache.enable_prefix_caching,
            data_parallel_size=config.data_parallel_size,
            max_num_seqs=scheduler.max_num_seqs,
            block_size=cache.block_size,
            dtype=config.model_config.dtype,
            kv_cache_dtype=cache.kv_cache_dtype,
            config=config,
            is_of_speech=config.sounds_config is not None,
        )

    @property
    def settings(self) -> Mapping[str, Any]:
        """All settings of the engine as JSON values, for people to read."""
        settings: Mapping[str, Any] = msgspec.to_builtins(self.config)
        return settings

    def check_priority(self, priority: int) -> None:
        """Raises `BadRequest` for a priority if the engine does not schedule by priority."""
        if priority != 0 and self.policy != "priority":
            raise BadRequest(
                "priority",
                "priority needs a server with --scheduling-policy priority; this one runs "
                f"{self.policy}",
                priority,
            )

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks of the model."""
        if self.is_of_speech:
            return ("transcription",)
        return ("generate",) if self.pooler is None else self.pooler.tasks
