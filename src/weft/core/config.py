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
        list[str] | None, Flag("Name clients use; repeat for aliases.", "Model")
    ] = None
    tokenizer: Annotated[
        str | None,
        Flag("Directory or Hub id of the tokenizer and its template, if not the model's.", "Model"),
    ] = None
    hf_overrides: Annotated[
        str | dict[str, Any] | None,
        Flag("Values in place of those of config.json.", "Model", is_json=True),
    ] = None
    generation_config: Annotated[
        str,
        Flag(
            "Where defaults of sampling come from: auto, the model's files; vllm, nowhere; or a directory "
            "with a generation_config.json.",
            "Model",
        ),
    ] = "auto"
    override_generation_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Values in place of those of generation_config.json, such as {"temperature": 0.5}.',
            "Model",
            is_json=True,
        ),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Flag("Round the weights to this type; auto keeps their own.", "Model"),
    ] = "auto"
    runner: Annotated[
        Literal["auto", "generate", "pooling"],
        Flag(
            "Generate text, or pool hidden states: embed, classify, score; auto follows the model's files.",
            "Model",
        ),
    ] = "auto"
    pooler_config: Annotated[
        str | dict[str, Any] | PoolerOptions | None,
        Flag(
            "How to embed: pooling_type, normalize, enable_chunked_processing, max_embed_len.",
            "Model",
            is_json=True,
        ),
    ] = None
    quantization: Annotated[
        Literal["int8", "int4", "none"] | None,
        Flag(
            "Round linear layers, weights and inputs: int8 takes half the memory, near the answers; int4 a third, "
            "with int8 inputs; none widens a checkpoint's rounded weights, which are computed as they are stored.",
            "Model",
        ),
    ] = None
    weight_format: Annotated[
        Literal["auto", "safetensors", "gguf", "awq", "gptq", "compressed-tensors", "fp8"],
        Flag(
            "What the model's files must be, or it is refused: auto takes whatever they are; awq, gptq, "
            "compressed-tensors and fp8 are safetensors of rounded weights.",
            "Model",
        ),
    ] = "auto"
    packed_cache_bytes: Annotated[
        int | None,
        Flag(
            "Disk for weights as kernels read them, in XDG_CACHE_HOME/weft/packed, where the next start finds "
            f"them; {DEFAULTS['packed_cache_bytes'] >> 30}GiB if unset, 0 keeps none.",
            "Model",
            is_size=True,
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "int8"],
        Flag(
            "Round keys and values to this type: twice the tokens in the same memory; auto leaves them.",
            "Model",
        ),
    ] = "auto"
    compute: Annotated[
        str,
        Flag(
            "What computes: native, in C++, or reference, slow and in numpy; auto takes what suits.",
            "Model",
        ),
    ] = "auto"
    num_threads: Annotated[
        int | None, Flag("Threads that compute; the CPUs of this process if unset.", "Model")
    ] = None
    data_parallel_size: Annotated[
        int,
        Flag(
            "Engines, each a process with a share of CPUs, --num-threads and free memory; limits and sizes are of one.",
            "Scheduling",
        ),
    ] = 1
    enable_elastic_ep: Annotated[
        bool, Flag("Let scale_elastic_ep change how many there are while they serve.", "Scheduling")
    ] = False
    max_model_len: Annotated[
        int | None,
        Flag(
            "Longest prompt and answer together, in tokens; the model's own if unset.",
            "Model",
            is_size=True,
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        Flag(
            f"Most sequences that run at once; {DEFAULTS['max_num_seqs']} if unset.", "Scheduling"
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | Literal["auto"] | None,
        Flag(
            f"Most tokens computed in one step: a number, {DEFAULTS['max_num_batched_tokens']} if unset, or auto: "
            f"{MOST_ROWS:,} as far as the memory goes, and a target of --target-itl-ms.",
            "Scheduling",
            is_size=True,
        ),
    ] = None
    target_itl_ms: Annotated[
        float | None,
        Flag(
            "Time between tokens of running streams, in ms, that prompts computed beside them are cut for; "
            f"{DEFAULT_TARGET_ITL_MS:g} with --max-num-batched-tokens auto, else 0: no target.",
            "Scheduling",
        ),
    ] = None
    block_size: Annotated[
        int | None, Flag(f"Tokens in a block; {DEFAULTS['block_size']} if unset.", "Memory")
    ] = None
    mamba_block_size: Annotated[
        int | None,
        Flag(f"Tokens between states; {DEFAULTS['mamba_block_size']} if unset.", "Memory"),
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None, Flag("The KV pool as a number of blocks.", "Memory")
    ] = None
    kv_cache_bytes: Annotated[
        int | None,
        Flag(
            "Memory for the KV pool, such as 4GiB; sized from what is free if unset.",
            "Memory",
            is_size=True,
        ),
    ] = None
    memory_share: Annotated[
        float | None,
        Flag(
            "Share of the free memory that weights and KV pool take together; "
            f"{DEFAULT_MEMORY_SHARE:g} if unset, with a pool of 4 GiB at most.",
            "Memory",
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool, Flag("Reuse the KV of prompts that start alike.", "Memory")
    ] = True
    kv_offloading_size: Annotated[
        float | None,
        Flag(
            "GiB of each engine for what leaves its KV pool, as a second tier of the prefix cache: of memory, "
            "or of files with --kv-offloading-path.",
            "Memory",
        ),
    ] = None
    kv_offloading_path: Annotated[
        str | None,
        Flag(
            "Directory for the files of the second tier, where the next start finds them again.",
            "Memory",
        ),
    ] = None
    kv_transfer_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            "Compute prompts for other engines, or continue theirs; JSON, such as "
            '{"kv_connector": "TcpConnector", "kv_role": "kv_both"}; ShmConnector on one machine.',
            "Memory",
            is_json=True,
        ),
    ] = None
    kv_events_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            "Publish what enters and leaves the prefix cache over ZeroMQ, with the tokens of prompts; JSON, "
            'such as {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": '
            '"tcp://*:5558", "topic": "kv-events"}. On loopback, port 5557, without an endpoint.',
            "Memory",
            is_json=True,
        ),
    ] = None
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        Flag("First come first served, or by request priority.", "Scheduling"),
    ] = "fcfs"
    max_num_queued_reqs: Annotated[
        int | None,
        Flag(
            f"Requests that may wait, {DEFAULTS['max_num_queued_reqs']} if unset; more are refused.",
            "Scheduling",
        ),
    ] = None
    max_num_queued_tokens: Annotated[
        int | None,
        Flag(
            f"Prompt tokens that may wait, {DEFAULTS['max_num_queued_tokens']} if unset; more are refused.",
            "Scheduling",
            is_size=True,
        ),
    ] = None
    max_logprobs: Annotated[
        int, Flag("Most log-probabilities a request may ask for; -1: no limit.", "Model")
    ] = 20
    logprobs_mode: Annotated[
        Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"],
        Flag(
            "What log-probabilities are of: the model's logits, or what is left to draw from.",
            "Model",
        ),
    ] = "raw_logprobs"
    structured_outputs_in_reasoning: Annotated[
        bool, Flag("Let structured output rule the reasoning too, not the answer only.", "Model")
    ] = False
    speculative_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Draft tokens from what was said before, {"method": "ngram", "num_speculative_tokens": 4, '
            '"prompt_lookup_max": 4, "prompt_lookup_min": 2}, by a smaller model of the same tokenizer, '
            '{"model": "…", "num_speculative_tokens": 4}, or by the model\'s own head for multi-token prediction, '
            '{"method": "mtp", "num_speculative_tokens": 1}; answers stay the same.',
            "Scheduling",
            is_json=True,
        ),
    ] = None
    profiler_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'Where /start_profile may write traces of steps; JSON, such as {"torch_profiler_dir": '
            '"/tmp/traces", "max_iterations": 1000}.',
            "Scheduling",
            is_json=True,
        ),
    ] = None
    weight_transfer_config: Annotated[
        str | dict[str, Any] | None,
        Flag(
            'How weights may be sent while it serves; JSON, {"backend": "shared_memory"} or '
            '{"backend": "safetensors", "directory": "/tmp/weights"}.',
            "Model",
            is_json=True,
        ),
    ] = None
    stream_interval_ms: Annotated[
        float | None,
        Flag(
            "Tokens of one stream that come within so many ms of its last event leave together, "
            f"{DEFAULT_STREAM_INTERVAL_MS:g} if unset; 0: every token by itself.",
            "API",
        ),
    ] = None
    enable_lora: Annotated[
        bool, Flag("Serve LoRA adapters too. Memory is reserved for them.", "Model")
    ] = False
    max_loras: Annotated[
        int | None,
        Flag(
            f"Most adapters that are loaded at once, {DEFAULTS['max_loras']} if unset; the least "
            "recently used one is unloaded.",
            "Model",
        ),
    ] = None
    max_lora_rank: Annotated[
        int | None,
        Flag(f"Highest rank of an adapter; {DEFAULTS['max_lora_rank']} if unset.", "Model"),
    ] = None
    enable_prompt_embeds: Annotated[bool, Flag("Take embeddings as prompts.", "Model")] = False


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
