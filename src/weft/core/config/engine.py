"""`EngineConfig`: the settings that an engine runs with, decided once from `EngineOptions`.

The function `weft.engine.start.configure.resolve` makes the config; every setting has a final value. Sizes are in
tokens, blocks or bytes, as the name says.
"""

from collections.abc import Mapping

import msgspec

from weft.core.config.elastic import ElasticConfig
from weft.core.config.file_overrides import NO_OVERRIDES, FileOverrides
from weft.core.config.profiling import ProfilerConfig
from weft.core.config.ranks import RanksConfig
from weft.core.config.speculation import SpeculativeConfig
from weft.core.errors import NotFound
from weft.core.values.kv_cache import CacheConfig, KvEventsConfig, KvOffloadingConfig
from weft.core.values.kv_transfer import KvTransferConfig
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.media import MediaConfig, SpeechConfig
from weft.core.values.pictures import ItemsConfig, SoundsConfig, TowerConfig
from weft.core.values.types import LoRARequest, PoolingKind
from weft.core.values.weight_transfer import WeightTransferConfig

_MAX_SHOWN = 64
_MAX_LISTED = 20


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the served model. `model` is the name that the user gave; `vocab_size` is the width of the logits.

    `dtype` is the type of most of the weights. Another process that loads the model with `load_dtype` gets the same
    weights: "auto" keeps the stored type of each tensor.

    `eos_token_ids[0]` is the primary end-of-sequence id; an answer that ends with another end-of-sequence id reports
    this id as its stop reason.
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
    max_new_tokens: int | None = None  # per answer; None: limited by the context length only
    media: MediaConfig | None = None  # None: no media inputs
    speech: SpeechConfig | None = None  # None: no speech to text

    @property
    def served_model_name(self) -> str:
        """First of the names under which the model is served."""
        return self.served_model_names[0]

    def find_lora(self, name: str, loras: Mapping[str, LoRARequest]) -> LoRARequest | None:
        """Returns the adapter with that name; None for a name of the served model itself.

        Raises `NotFound` for an unknown name.
        """
        if name in self.served_model_names:
            return None
        found = loras.get(name)
        if found is None:
            shown = name if len(name) <= _MAX_SHOWN else name[:_MAX_SHOWN] + "..."
            known = ", ".join([*self.served_model_names, *loras][:_MAX_LISTED])
            raise NotFound(f"The model {shown!a} does not exist; this server has {known}", "model")
        return found

    def get_vocab_size(self) -> int:
        """Returns `vocab_size`; vLLM's servers call this method."""
        return self.vocab_size


class PoolerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of a pooling model, and settings of its embeddings.

    `kinds` maps each task to the kind of hidden states that it pools. `dimensions` are the allowed lengths of a
    matryoshka model's shortened embeddings; empty means any length. `prompt` is prepended to every text; `prompts`
    are those that callers choose by name.
    """

    kinds: dict[str, PoolingKind]
    normalize: bool
    embedding_size: int
    is_matryoshka: bool = False
    dimensions: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    lowercases: bool = False
    prompt: str = ""
    prompts: dict[str, str] = {}
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(self.kinds)


class ComputeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The compute backend: its name in `compute`, and its number of threads.

    `quantization` is the number format in which linear layers are computed: "int8", "int4", "stored" for the
    checkpoint's quantized format, or None for the format of all other layers. `kv_cache_dtype` "int8" quantizes keys
    and values; "auto" does not.
    """

    compute: str
    num_threads: int
    quantization: str | None = None
    kv_cache_dtype: str = "auto"


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a step and of the queue. `policy` is "fcfs" or "priority".

    If `chunks_prompts` is False, every prompt is computed in one step. A `target_itl_ms` above 0 also limits the size
    of a step by the time that the step takes.
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
    """Maximum number of loaded LoRA adapters, and the maximum rank of an adapter."""

    max_loras: int
    max_lora_rank: int


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one engine. `pooler_config` is None for a model that generates text.

    With `structured_outputs_in_reasoning` grammars apply from the first token on, also to reasoning. If `lora_config`
    is None, the engine serves no adapters. A stream emits at most one output per `stream_interval_ms`; with 0, one
    output after every step. A single engine has no rank. If there are several API servers, their sockets are in the
    directory `api_server_directory`. A lost engine is restarted at most `engine_restarts` times in a row; None is no
    limit for several engines, and 0 for one.
    """

    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    structured_outputs_in_reasoning: bool = False
    compute_config: ComputeConfig | None = None  # None: the engine computes on another machine
    data_parallel_size: int = 1
    data_parallel_rank: int | None = None
    ranks: RanksConfig | None = None  # None: all ranks are on this machine
    engine_restarts: int | None = None
    elastic_config: ElasticConfig | None = None
    kv_transfer_config: KvTransferConfig | None = None
    kv_events_config: KvEventsConfig | None = None
    kv_offloading_config: KvOffloadingConfig | None = None
    pooler_config: PoolerConfig | None = None
    items_config: ItemsConfig | None = None  # None: prompts have no items that this engine computes
    sounds_config: SoundsConfig | None = None  # None: this is no model of speech
    lora_config: LoraConfig | None = None
    prompt_embeds_size: int | None = None  # numbers per row; None: embeddings are refused
    stream_interval_ms: float = 0.0
    profiler_config: ProfilerConfig | None = None
    weight_transfer_config: WeightTransferConfig | None = None
    api_server_directory: str | None = None

    @property
    def tower_config(self) -> TowerConfig | None:
        """Configuration of the model's tower; None if this engine computes neither pictures nor sounds."""
        return self.items_config or self.sounds_config

    @property
    def has_ranks(self) -> bool:
        """True if there are several engines, or if their number may grow."""
        return self.data_parallel_size > 1 or self.elastic_config is not None

    @property
    def has_group(self) -> bool:
        """True if a group supervises the engines, be it a single one, and starts them again."""
        return self.has_ranks or bool(self.engine_restarts)

    def of_rank(self, rank: int) -> "EngineConfig":
        """Returns the configuration of the engine with this rank; a single engine has no rank."""
        return msgspec.structs.replace(self, data_parallel_rank=rank) if self.has_ranks else self

    def of_size(self, size: int) -> "EngineConfig":
        """Returns the configuration for `size` engines, each with an equal share of the threads."""
        assert self.elastic_config is not None
        assert self.compute_config is not None
        num_threads = self.elastic_config.num_threads // size
        compute = msgspec.structs.replace(self.compute_config, num_threads=num_threads)
        return msgspec.structs.replace(self, data_parallel_size=size, compute_config=compute)
