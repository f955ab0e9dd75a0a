"""Facts of server and model for `vllm.Control`."""

from collections.abc import Iterable

from weft import __version__
from weft.core.config.engine import EngineConfig
from weft.core.config.ranks import served_ranks
from weft.core.engine_info import EngineInfo
from weft.core.values.kv_cache import at_rank
from weft.core.values.types import LoRARequest
from weft.pb import vllm_control_pb2 as pb

API_VERSION = "vllm"
PROTO_VERSION = "0.6.0"


def to_control_server_info(info: EngineInfo, instance_id: str) -> pb.ServerInfo:
    """The server's properties; limits of steps and blocks are those of all its engines together."""
    config = info.config
    num_engines = len(served_ranks(config))
    scheduler, cache, loras = config.scheduler_config, config.cache_config, config.lora_config
    return pb.ServerInfo(
        engine_version=__version__,
        api_version=API_VERSION,
        instance_id=instance_id,
        parallelism=_to_parallelism(config),
        max_model_len=config.model_config.max_model_len,
        kv_block_size=cache.block_size,
        total_kv_blocks=cache.num_blocks * num_engines,
        max_running_requests=scheduler.max_num_seqs,
        max_batched_tokens=scheduler.max_num_batched_tokens,
        max_loras=0 if loras is None else loras.max_loras,
        rl_capabilities=_to_capabilities(config),
        proto_version=PROTO_VERSION,
        effective_attention_block_size=cache.block_size,
    )


def _to_parallelism(config: EngineConfig) -> pb.ParallelismInfo:
    ranks = served_ranks(config)
    return pb.ParallelismInfo(
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=config.data_parallel_size,
        data_parallel_rank=ranks.start,
        decode_context_parallel_size=1,
        world_size=config.data_parallel_size,
        data_parallel_size_local=len(ranks),
    )


def _to_capabilities(config: EngineConfig) -> pb.RlCapabilities:
    transfer = config.weight_transfer_config
    return pb.RlCapabilities(
        weight_transfer_enabled=transfer is not None,
        weight_transfer_backend="" if transfer is None else transfer.backend,
        sleep_mode_enabled=config.compute_config is not None,  # vLLM needs a flag for it,
        draft_weight_updates_enabled=False,
    )


def to_control_model_info(
    info: EngineInfo, *, has_tokenizer: bool, reasoning_parser: str | None
) -> pb.ModelInfo:
    """Facts of the model. A model that embeds, or transcribes speech, takes no prompts here."""
    model, generates = info.config.model_config, "generate" in info.tasks
    return pb.ModelInfo(
        model_id=model.model,
        served_model_name=model.served_model_name,
        served_model_aliases=model.served_model_names[1:],
        supports_text_input=generates and has_tokenizer,
        supports_token_ids_input=generates,
        supports_lora=info.config.lora_config is not None,
        supports_multimodal=model.media is not None,
        reasoning_parser=reasoning_parser or "",
    )


def to_kv_event_sources(config: EngineConfig) -> list[pb.KvEventSource]:
    """The addresses at which each engine publishes changes of its prefix cache; none without --kv-events-config."""
    events = config.kv_events_config
    if events is None:
        return []
    return [
        pb.KvEventSource(
            transport="zmq",
            encoding="msgpack",
            schema_version=1,
            endpoint=at_rank(events.endpoint, rank),
            topic=events.topic,
            replay_endpoint=at_rank(events.replay_endpoint or "", rank),
            data_parallel_rank=rank,
            buffer_steps=events.buffer_steps,
            hwm=events.hwm,
        )
        for rank in served_ranks(config)
    ]


def to_adapters(loras: Iterable[LoRARequest]) -> list[pb.LoraAdapter]:
    """The adapters, by name."""
    return [to_adapter(lora) for lora in sorted(loras, key=lambda lora: lora.lora_name)]


def to_adapter(lora: LoRARequest) -> pb.LoraAdapter:
    """A LoRA adapter."""
    return pb.LoraAdapter(
        lora_id=lora.lora_int_id, lora_name=lora.lora_name, source_path=lora.lora_path
    )
