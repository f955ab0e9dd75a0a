"""Converts Weft's flags to arguments of vLLM's engine, by field names and without side effects."""

import json
from collections.abc import Mapping
from typing import Any

from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.declare import spelled

FLAG = "--engine-args"
MAX_RANKS = 1024  # each rank has a port for its cache events
MAX_ELASTIC_RANKS = 64  # ports are reserved at the start, for all ranks that may be added
# Fields of `EngineOptions` that vLLM has under the same name; passed on if set.
SAME = (
    "revision", "tokenizer", "hf_overrides", "generation_config", "override_generation_config", "dtype",
    "runner", "pooler_config", "data_parallel_size", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "block_size", "mamba_block_size", "num_gpu_blocks_override",
    "enable_prefix_caching", "scheduling_policy", "max_num_queued_reqs", "max_num_queued_tokens",
    "max_logprobs", "logprobs_mode", "speculative_config", "profiler_config", "enable_lora", "max_loras",
    "max_lora_rank", "kv_transfer_config", "enable_elastic_ep",
    "limit_mm_per_prompt", "allowed_media_domains", "allowed_local_media_path", "mm_processor_cache_gb",
)  # fmt: skip
RENAMED = {"kv_cache_bytes": "kv_cache_memory_bytes", "memory_share": "gpu_memory_utilization"}
# Fields that are passed on under other names or in other ways.
OWN = ("model", "served_model_name", "structured_outputs_in_reasoning")
_IN_ARGS = f"give vLLM's own in {FLAG}, or on the command line"
_BY_TOKENS = "vLLM cuts prompts by tokens: give --max-num-batched-tokens a number, or --long-prefill-token-threshold"
REFUSED = {
    "compute": "vLLM has kernels of its own",
    "num_threads": "vLLM takes VLLM_CPU_OMP_THREADS_BIND from the environment",
    "stream_interval_ms": "give --stream-interval, in tokens",
    "target_itl_ms": _BY_TOKENS,
    "mmproj": "vLLM reads the vision tower from the model's own files",
    "quantization": _IN_ARGS,
    "weight_format": _IN_ARGS,
    "packed_cache_bytes": "vLLM does not store packed weights",
    "kv_cache_dtype": _IN_ARGS,
    "kv_offloading_size": _IN_ARGS,
    "kv_offloading_path": _IN_ARGS,
    "kv_events_config": "SubscribeKvEvents and the picker see vLLM's events through this server",
    "weight_transfer_config": _IN_ARGS,
    "engine_restarts": "vLLM ends when an engine of it ends",
    "enable_prompt_embeds": "prompts reach vLLM's engines as token ids",
}  # fmt: skip
# Fields that this server needs too: they are read here, and passed on like those above.
READ_HERE = (
    "model", "served_model_name", "tokenizer", "revision", "reasoning_parser", "enable_lora",
    "disable_log_stats", "otlp_traces_endpoint",
)  # fmt: skip
# Settings that this server decides, because its promises depend on them.
DECIDED = (
    "model", "served_model_name", "reasoning_parser", "kv_events_config", "disable_log_stats",
    "skip_tokenizer_init", "trust_remote_code",
)  # fmt: skip
# JSON without white space, as Weft's engine writes it; only xgrammar among vLLM's backends has this setting.
_COMPACT = {"backend": "xgrammar", "disable_any_whitespace": True}


def to_settings(
    options: EngineOptions, extra: Mapping[str, Any], reasoning_parser: str | None
) -> dict[str, Any]:
    """Returns the arguments of vLLM's `AsyncEngineArgs`. `extra` has vLLM's own arguments, which override Weft's flags.

    Raises a `ConfigError` that names a flag that means nothing to vLLM, or that this server decides.
    """
    defaults = EngineOptions()
    for name, why in REFUSED.items():
        if getattr(options, name) != getattr(defaults, name):
            raise ConfigError(f"{spelled(name)} has no effect with --engine vllm: {why}")
    if options.max_num_batched_tokens == "auto":
        raise ConfigError(
            f"--max-num-batched-tokens auto has no effect with --engine vllm: {_BY_TOKENS}"
        )
    for name in DECIDED:
        if name in extra:
            raise ConfigError(f"{FLAG}: this server sets {name} itself; {_remedy(name)}")
    num_ranks = extra.get("data_parallel_size", options.data_parallel_size)
    if type(num_ranks) is not int or not 1 <= num_ranks <= MAX_RANKS:
        raise ConfigError(
            f"{spelled('data_parallel_size')} must be a whole number from 1 to {MAX_RANKS}, got {num_ranks!r:.80}"
        )
    names = dict(zip(SAME, SAME, strict=True)) | RENAMED
    given = {
        theirs: _value(ours, getattr(options, ours))
        for ours, theirs in names.items()
        if getattr(options, ours) != getattr(defaults, ours)
    }
    constraints: dict[str, Any] = {**_COMPACT, **(extra.get("structured_outputs_config") or {})}
    if options.structured_outputs_in_reasoning:
        constraints["enable_in_reasoning"] = True
    if constraints["backend"] != _COMPACT["backend"]:
        constraints.pop("disable_any_whitespace", None)  # other backends refuse this setting
    return {
        **given,
        **extra,
        "model": options.model,
        "served_model_name": options.served_model_name or [options.model],
        "structured_outputs_config": constraints,
        **({"reasoning_parser": reasoning_parser} if reasoning_parser else {}),
    }


def read_engine_args(text: str | None) -> dict[str, Any]:
    """Returns the JSON object in the text of --engine-args. Raises `ConfigError`."""
    if text is None:
        return {}
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{FLAG}: not valid JSON ({error})") from None
    if not isinstance(given, dict):
        raise ConfigError(f'{FLAG}: must be a JSON object, such as {{"tensor_parallel_size": 2}}')
    return {str(key).replace("-", "_"): value for key, value in given.items()}


def _value(name: str, value: Any) -> Any:
    """Returns the value of a field; a flag with a JSON object becomes a dictionary."""
    if (
        name.endswith(("_config", "_overrides", "_per_prompt"))
        and isinstance(value, str)
        and value[:1] == "{"
    ):
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{spelled(name)}: not valid JSON ({error})") from None
    return value


def _remedy(name: str) -> str:
    return f"give {spelled(name)}" if name in READ_HERE else "leave it out"
