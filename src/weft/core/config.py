"""What the user said (`EngineOptions`) and what was decided from it (`EngineConfig`): two types.

`weft.engine.configure.resolve` turns the first into the second, once; nothing in an `EngineConfig`
is left to choose. Sizes are in tokens, blocks or bytes, as the name says.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from weft.core.declare import Flag
from weft.core.defaults import (
    DEFAULT_MEMORY_SHARE,
    DEFAULT_STREAM_INTERVAL_MS,
    DEFAULT_TARGET_ITL_MS,
    DEFAULTS,
    MOST_ROWS,
)
from weft.core.elastic import ElasticConfig
from weft.core.errors import NotFound
from weft.core.file_overrides import NO_OVERRIDES, FileOverrides
from weft.core.kv_cache import CacheConfig, KvEventsConfig, KvOffloadingConfig
from weft.core.kv_transfer import KvTransferConfig
from weft.core.media import MediaConfig, SpeechConfig
from weft.core.pooler_options import PoolerOptions
from weft.core.profiling import ProfilerConfig
from weft.core.ranks import RanksConfig
from weft.core.speculation import SpeculativeConfig
from weft.core.types import LoRARequest, PoolingKind
from weft.core.weight_transfer import WeightTransferConfig

_MAX_SHOWN = 64
_MAX_LISTED = 20


class LogprobsMode(StrEnum):
    """What an engine reports as log-probabilities, of which stage of sampling.

    Raw is before everything but a grammar, processed after everything, temperature and truncation too.
    Prompt tokens are not sampled: of theirs there is only raw.
    """

    RAW_LOGPROBS = "raw_logprobs"
    RAW_LOGITS = "raw_logits"
    PROCESSED_LOGPROBS = "processed_logprobs"
    PROCESSED_LOGITS = "processed_logits"


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one engine as the user gave them; None means "choose for me"."""

    model: str = "embedded:tiny"
    revision: Annotated[str | None, Flag("Branch, tag or commit of a Hub model.", "Model")] = None
    served_model_name: Annotated[
        list[str] | None, Flag("Model name in the APIs; repeat for aliases.", "Model")
    ] = None
    tokenizer: Annotated[
        str | None,
        Flag(
            "Directory or Hub id of the tokenizer and chat template. Default: the model's.", "Model"
        ),
    ] = None
    hf_overrides: Annotated[
        str | dict[str, Any] | None,
        Flag("Values that override config.json, as a JSON object.", "Model", is_json=True),
    ] = None
    generation_config: Annotated[
        str,
        Flag(
            "Source of sampling defaults: auto (the model's generation_config.json), vllm (no defaults from the "
            "model), or a directory with a generation_config.json.",
            "Model",
        ),
    ] = "auto"
    override_generation_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Values that override generation_config.json, as a JSON object such as {"temperature": 0.5}.',
            "Model",
            is_json=True,
        ),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Flag("Data type of the weights; auto keeps the type in the checkpoint.", "Model"),
    ] = "auto"
    runner: Annotated[
        Literal["auto", "generate", "pooling"],
        Flag(
            "Task of the model: generate text, or pool hidden states (embed, classify, score). auto decides by "
            "the model's files.",
            "Model",
        ),
    ] = "auto"
    pooler_config: Annotated[
        str | dict[str, Any] | PoolerOptions | None,
        Flag(
            "Pooling settings as JSON: pooling_type, normalize, enable_chunked_processing, max_embed_len.",
            "Model",
            is_json=True,
        ),
    ] = None
    quantization: Annotated[
        Literal["int8", "int4", "none"] | None,
        Flag(
            "Quantize linear layers while loading: int8 (half the memory of bf16) or int4 (a third), both with "
            "int8 inputs. none dequantizes a quantized checkpoint, which is otherwise computed as it is stored.",
            "Model",
        ),
    ] = None
    weight_format: Annotated[
        Literal["auto", "safetensors", "gguf", "awq", "gptq", "compressed-tensors", "fp8"],
        Flag(
            "Required format of the model's files; a model in another format is refused. auto accepts every "
            "format; awq, gptq, compressed-tensors and fp8 are quantized safetensors.",
            "Model",
        ),
    ] = "auto"
    packed_cache_bytes: Annotated[
        int | None,
        Flag(
            "Disk space for the cache of packed weights (XDG_CACHE_HOME/weft/packed), which makes the next start "
            f"faster; 0 disables it. Default: {DEFAULTS['packed_cache_bytes'] >> 30}GiB.",
            "Model",
            is_size=True,
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "int8"],
        Flag(
            "Data type of the KV cache: int8 holds twice the tokens in the same memory; auto is the type of the "
            "computation.",
            "Model",
        ),
    ] = "auto"
    compute: Annotated[
        str,
        Flag(
            "Compute backend: native (C++), reference (numpy, slow) or auto.",
            "Model",
        ),
    ] = "auto"
    num_threads: Annotated[
        int | None, Flag("Number of compute threads. Default: the CPUs of this process.", "Model")
    ] = None
    data_parallel_size: Annotated[
        int,
        Flag(
            "Number of engines (data parallelism). Each is a process with its share of CPUs, --num-threads and "
            "free memory. Limits and sizes apply per engine.",
            "Scheduling",
        ),
    ] = 1
    enable_elastic_ep: Annotated[
        bool,
        Flag("Let POST /scale_elastic_ep change the number of engines at run time.", "Scheduling"),
    ] = False
    max_model_len: Annotated[
        int | None,
        Flag(
            "Maximum context length: prompt and answer together, in tokens. Default: the model's.",
            "Model",
            is_size=True,
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        Flag(
            f"Maximum number of running sequences. Default: {DEFAULTS['max_num_seqs']}.",
            "Scheduling",
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | Literal["auto"] | None,
        Flag(
            "Maximum number of tokens computed in one step, or auto: up to "
            f"{MOST_ROWS:,} by memory, with steps sized by --target-itl-ms. Default: {DEFAULTS['max_num_batched_tokens']}.",
            "Scheduling",
            is_size=True,
        ),
    ] = None
    target_itl_ms: Annotated[
        float | None,
        Flag(
            "Target inter-token latency in ms: prefill chunks are sized for it. 0 means no target. Default: "
            f"{DEFAULT_TARGET_ITL_MS:g} with --max-num-batched-tokens auto, else 0.",
            "Scheduling",
        ),
    ] = None
    block_size: Annotated[
        int | None, Flag(f"Tokens per KV block. Default: {DEFAULTS['block_size']}.", "Memory")
    ] = None
    mamba_block_size: Annotated[
        int | None,
        Flag(
            f"Tokens between cached states of recurrent layers. Default: {DEFAULTS['mamba_block_size']}.",
            "Memory",
        ),
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None, Flag("Size of the KV pool in blocks.", "Memory")
    ] = None
    kv_cache_bytes: Annotated[
        int | None,
        Flag(
            "Memory for the KV pool, such as 4GiB. Default: by free memory.",
            "Memory",
            is_size=True,
        ),
    ] = None
    memory_share: Annotated[
        float | None,
        Flag(
            "Share of free memory for weights and KV pool together. "
            f"Default: {DEFAULT_MEMORY_SHARE:g}, with a pool of at most 4 GiB.",
            "Memory",
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool, Flag("Reuse cached KV blocks of prompts that share a prefix.", "Memory")
    ] = True
    kv_offloading_size: Annotated[
        float | None,
        Flag(
            "Size in GiB, per engine, of the second tier of the prefix cache, which keeps blocks that leave the "
            "KV pool: in memory, or in files with --kv-offloading-path.",
            "Memory",
        ),
    ] = None
    kv_offloading_path: Annotated[
        str | None,
        Flag(
            "Directory for the files of the second tier; they are reused after a restart.",
            "Memory",
        ),
    ] = None
    kv_transfer_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Transfer of KV blocks between engines (disaggregated prefill), as JSON such as {"kv_connector": '
            '"TcpConnector", "kv_role": "kv_both"}; ShmConnector works on one machine.',
            "Memory",
            is_json=True,
        ),
    ] = None
    kv_events_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Publish prefix-cache events over ZeroMQ, as JSON such as {"enable_kv_cache_events": true, '
            '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv-events"}. Events contain '
            "prompt tokens. Default endpoint: port 5557 on loopback.",
            "Memory",
            is_json=True,
        ),
    ] = None
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        Flag(
            "Scheduling policy: fcfs (first come, first served) or priority (by request priority).",
            "Scheduling",
        ),
    ] = "fcfs"
    max_num_queued_reqs: Annotated[
        int | None,
        Flag(
            f"Maximum number of waiting requests; further ones are refused. Default: {DEFAULTS['max_num_queued_reqs']}.",
            "Scheduling",
        ),
    ] = None
    max_num_queued_tokens: Annotated[
        int | None,
        Flag(
            f"Maximum number of waiting prompt tokens; further requests are refused. "
            f"Default: {DEFAULTS['max_num_queued_tokens']}.",
            "Scheduling",
            is_size=True,
        ),
    ] = None
    max_logprobs: Annotated[
        int,
        Flag(
            "Maximum number of logprobs per token that a request may ask for; -1 means no limit.",
            "Model",
        ),
    ] = 20
    logprobs_mode: Annotated[
        Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"],
        Flag(
            "Stage at which logprobs are taken: raw (the model's logits) or processed (after penalties, "
            "temperature and top-k/top-p).",
            "Model",
        ),
    ] = "raw_logprobs"
    structured_outputs_in_reasoning: Annotated[
        bool,
        Flag(
            "Apply structured-output constraints to the reasoning too, not only to the answer.",
            "Model",
        ),
    ] = False
    speculative_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Speculative decoding, as JSON. Prompt lookup (n-gram): {"method": "ngram", "num_speculative_tokens": '
            '4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}. Draft model with the same tokenizer: {"model": '
            '"…", "num_speculative_tokens": 4}. The model\'s own head for multi-token prediction: {"method": '
            '"mtp", "num_speculative_tokens": 1}. Answers do not change.',
            "Scheduling",
            is_json=True,
        ),
    ] = None
    profiler_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Enable /start_profile and set its trace directory, as JSON such as {"torch_profiler_dir": '
            '"/tmp/traces", "max_iterations": 1000}.',
            "Scheduling",
            is_json=True,
        ),
    ] = None
    weight_transfer_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Enable weight updates at run time, as JSON: {"backend": "shared_memory"} or {"backend": '
            '"safetensors", "directory": "/tmp/weights"}.',
            "Model",
            is_json=True,
        ),
    ] = None
    stream_interval_ms: Annotated[
        float | None,
        Flag(
            "Minimum time in ms between two events of a stream: tokens generated in between are sent together. "
            f"0 sends every token by itself. Default: {DEFAULT_STREAM_INTERVAL_MS:g}.",
            "API",
        ),
    ] = None
    enable_lora: Annotated[
        bool, Flag("Serve LoRA adapters. Memory is reserved for them.", "Model")
    ] = False
    max_loras: Annotated[
        int | None,
        Flag(
            "Maximum number of LoRA adapters loaded at once; the least recently used one is unloaded. "
            f"Default: {DEFAULTS['max_loras']}.",
            "Model",
        ),
    ] = None
    max_lora_rank: Annotated[
        int | None,
        Flag(f"Maximum rank of a LoRA adapter. Default: {DEFAULTS['max_lora_rank']}.", "Model"),
    ] = None
    enable_prompt_embeds: Annotated[
        bool, Flag("Accept embeddings as prompts (prompt_embeds).", "Model")
    ] = False


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the served model. `model` is as the user named it; `vocab_size` is the logits width.

    `dtype` is what most of its weights are; with `load_dtype`, another process loads the same ones: "auto"
    keeps each as it is stored.
    `eos_token_ids[0]` is the primary end-of-sequence id; hitting another reports it as stop reason.
    """

    model: str
    served_model_names: tuple[str, ...]
    model_type: str
    architectures: tuple[str, ...]
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    default_sampling_params: dict[str, float | int]
    max_logprobs: int
    logprobs_mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS
    revision: str | None = None
    load_dtype: str = "auto"
    packed_cache_bytes: int = 0
    file_overrides: FileOverrides = NO_OVERRIDES
    runner_type: str = "generate"
    is_multimodal_model: bool = False
    media: MediaConfig | None = None  # None: it takes none here
    speech: SpeechConfig | None = None  # None: it makes no text of speech here

    @property
    def served_model_name(self) -> str:
        """The first of the names the model answers to."""
        return self.served_model_names[0]

    def find_lora(self, name: str, loras: Mapping[str, LoRARequest]) -> LoRARequest | None:
        """The adapter of that name among `loras`; None for the model itself; `NotFound` for no name here."""
        if name in self.served_model_names:
            return None
        found = loras.get(name)
        if found is None:
            shown = name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "..."
            known = ", ".join([*self.served_model_names, *loras][:_MAX_LISTED])
            raise NotFound(f"The model {shown!a} does not exist; this server has {known}", "model")
        return found

    def get_vocab_size(self) -> int:
        """`vocab_size`, under the name servers written for other engines call."""
        return self.vocab_size


class PoolerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a pooling model, and how it embeds.

    `kinds` are the tasks, each with the hidden states it is made of. `dimensions` are the lengths an
    embedding of a matryoshka model may be cut to; none: any. `prompt` leads every text.
    """

    kinds: dict[str, PoolingKind]
    normalize: bool
    embedding_size: int
    is_matryoshka: bool = False
    dimensions: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    lowercases: bool = False
    prompt: str = ""
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of `kinds`."""
        return tuple(self.kinds)


class ComputeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What computes: `compute` is the name of a backend, with `num_threads` threads.

    `quantization` is what linear layers are to be computed in: "int8", "int4", "stored" for as they are stored, or
    None for as all else. `kv_cache_dtype` is "int8" where keys and values are rounded to that; "auto" leaves them.
    """

    compute: str
    num_threads: int
    quantization: str | None = None
    kv_cache_dtype: str = "auto"


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one step and of the queue. `policy` is "fcfs" or "priority".

    Without `chunks_prompts` every prompt is computed in one step. With `target_itl_ms`, above 0, steps are sized by the
    time that they take too.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    policy: str
    max_num_queued_reqs: int
    max_num_queued_tokens: int
    speculation: SpeculativeConfig | None = None
    chunks_prompts: bool = True
    target_itl_ms: float = 0.0


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Adapters that may be loaded at once, and the highest rank of one."""

    max_loras: int
    max_lora_rank: int


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one engine runs with. `pooler_config` is None for a model that generates text.

    `structured_outputs_in_reasoning` lets every grammar rule from the first token, reasoning included. Without a
    `lora_config` there are no adapters. A stream emits at most once in `stream_interval_ms`; with 0, after every step.
    An engine that stays alone has no rank. Several API servers before it have sockets in `api_server_directory`.
    """

    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    structured_outputs_in_reasoning: bool = False
    compute_config: ComputeConfig | None = None  # None: it computes on another machine
    data_parallel_size: int = 1
    data_parallel_rank: int | None = None
    ranks: RanksConfig | None = None  # None: all are on this machine
    elastic_config: ElasticConfig | None = None
    kv_transfer_config: KvTransferConfig | None = None
    kv_events_config: KvEventsConfig | None = None
    kv_offloading_config: KvOffloadingConfig | None = None
    pooler_config: PoolerConfig | None = None
    lora_config: LoraConfig | None = None
    prompt_embeds_size: int | None = None  # numbers in a row; None: no prompt is of embeddings
    stream_interval_ms: float = 0.0
    profiler_config: ProfilerConfig | None = None
    weight_transfer_config: WeightTransferConfig | None = None
    api_server_directory: str | None = None

    @property
    def has_ranks(self) -> bool:
        """Whether there are several engines, or may be."""
        return self.data_parallel_size > 1 or self.elastic_config is not None

    def of_rank(self, rank: int) -> "EngineConfig":
        """What one of several engines runs with; one that stays alone has no rank."""
        return msgspec.structs.replace(self, data_parallel_rank=rank) if self.has_ranks else self

    def of_size(self, size: int) -> "EngineConfig":
        """The same for so many engines, each with its share of the threads."""
        assert self.elastic_config is not None
        assert self.compute_config is not None
        num_threads = self.elastic_config.num_threads // size
        compute = msgspec.structs.replace(self.compute_config, num_threads=num_threads)
        return msgspec.structs.replace(self, data_parallel_size=size, compute_config=compute)
