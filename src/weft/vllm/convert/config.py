"""Converts vLLM's resolved configuration to Weft's, by field names and without side effects."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from weft.core.config.engine import (
    EngineConfig,
    LoraConfig,
    ModelConfig,
    PoolerConfig,
    SchedulerConfig,
)
from weft.core.values.kv_cache import CacheConfig
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.media import MODALITIES, MediaConfig, Modality
from weft.core.values.types import PoolingKind

_ONE_RESULT = ("embed", "classify")
_EACH_TOKEN = ("token_embed", "token_classify")


def to_engine_config(
    config: Any, *, names: Sequence[str], eos_token_ids: tuple[int, ...], bos_token_id: int | None
) -> EngineConfig:
    """Converts a `VllmConfig`. Values that vLLM leaves open become 0; ids of special tokens come from the tokenizer."""
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    ranks = config.parallel_config.data_parallel_size
    lora = config.lora_config
    # An encoder has no KV cache, although vLLM counts one block.
    num_blocks = 0 if model.attn_type == "encoder_only" else cache.num_gpu_blocks or 0
    return EngineConfig(
        model_config=ModelConfig(
            model=model.model,
            served_model_names=tuple(names),
            model_type=model.hf_config.model_type,
            architectures=tuple(model.architectures),
            dtype=str(model.dtype).removeprefix("torch."),
            vocab_size=model.get_vocab_size(),
            max_model_len=model.max_model_len,
            eos_token_ids=eos_token_ids,
            default_sampling_params=_numbers(model.get_diff_sampling_param()),
            max_logprobs=model.max_logprobs,
            logprobs_mode=LogprobsMode(model.logprobs_mode),
            revision=model.revision,
            runner_type=model.runner_type,
            bos_token_id=bos_token_id,
            pad_token_id=None,
        ),
        cache_config=CacheConfig(
            block_size=cache.block_size,
            num_blocks=num_blocks // ranks,
            block_bytes=0,
            kv_cache_dtype=cache.cache_dtype,
            enable_prefix_caching=bool(cache.enable_prefix_caching),
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            policy=scheduler.policy,
            max_num_queued_reqs=scheduler.max_num_queued_reqs or 0,
            max_num_queued_tokens=scheduler.max_num_queued_tokens or 0,
            chunks_prompts=bool(scheduler.enable_chunked_prefill),
        ),
        structured_outputs_in_reasoning=config.structured_outputs_config.enable_in_reasoning,
        data_parallel_size=ranks,
        lora_config=(
            None
            if lora is None
            else LoraConfig(max_loras=lora.max_loras, max_lora_rank=lora.max_lora_rank)
        ),
    )


def with_pooler(config: EngineConfig, model: Any, tasks: Sequence[str]) -> EngineConfig:
    """Returns the configuration with the tasks of a pooling model, which are known after the model is loaded."""
    if config.model_config.runner_type != "pooling":
        return config
    kind = PoolingKind((model.pooler_config.seq_pooling_type or "LAST").lower())
    pooler = PoolerConfig(
        kinds={task: kind for task in tasks if task in _ONE_RESULT}
        | {task: PoolingKind.EACH for task in tasks if task in _EACH_TOKEN},
        normalize=model.pooler_config.use_activation is not False,
        embedding_size=model.embedding_size,
        is_matryoshka=model.is_matryoshka,
        dimensions=tuple(model.matryoshka_dimensions or ()),
    )
    return msgspec.structs.replace(config, pooler_config=pooler)


def with_media(config: EngineConfig, limits: Mapping[str, int], model: Any) -> EngineConfig:
    """Returns the configuration with the media that a prompt may contain, by the limits of the model's processor."""
    known = {modality: limits[modality] for modality in MODALITIES if modality in limits}
    if not any(known.values()):
        return config
    anchors = {modality: _anchor(modality, model.hf_config) for modality in known}
    media = MediaConfig(
        max_items=known, anchor_ids={name: i for name, i in anchors.items() if i is not None}
    )
    facts = msgspec.structs.replace(config.model_config, is_multimodal_model=True, media=media)
    return msgspec.structs.replace(config, model_config=facts)


def _anchor(modality: Modality, hf_config: Any) -> int | None:
    """Returns the placeholder token of a media item; models' configurations have two names for it."""
    for name in (f"{modality}_token_id", f"{modality}_token_index"):
        if isinstance(token := getattr(hf_config, name, None), int):
            return token
    return None


def to_eos_ids(tokenizers: int | None, generation: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the end-of-sequence ids in vLLM's order: the tokenizer's first, then those of generation_config.json."""
    given = generation.get("eos_token_id")
    listed = given if isinstance(given, list) else [given]
    return tuple(dict.fromkeys(i for i in (tokenizers, *listed) if i is not None))


def _numbers(values: Mapping[str, Any]) -> dict[str, float | int]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
