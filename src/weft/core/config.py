"""`EngineConfig`: the settings that an engine runs with, decided once from `EngineOptions`.

`weft.engine.configure.resolve` makes it; no setting in it is left to choose. Sizes are in tokens, blocks
or bytes, as the name says.
"""

from collections.abc import Mapping

import msgspec

from weft.core.elastic import ElasticConfig
from weft.core.errors import NotFound
from weft.core.file_overrides import NO_OVERRIDES, FileOverrides
from weft.core.kv_cache import CacheConfig, KvEventsConfig, KvOffloadingConfig
from weft.core.kv_transfer import KvTransferConfig
from weft.core.logprobs import LogprobsMode
from weft.core.media import MediaConfig, SpeechConfig
from weft.core.profiling import ProfilerConfig
from weft.core.ranks import RanksConfig
from weft.core.speculation import SpeculativeConfig
from weft.core.types import LoRARequest, PoolingKind
from weft.core.weight_transfer import WeightTransferConfig

_MAX_SHOWN = 64
_MAX_LISTED = 20


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
    max_new_tokens: int | None = None  # of an answer; None: what the context leaves
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
