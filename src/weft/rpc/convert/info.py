"""Converts model, server and load information to the wire."""

import json
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.core.config.engine import ModelConfig
from weft.core.engine_info import EngineInfo
from weft.core.errors import BadRequest
from weft.core.values.engine_snapshots import EngineLoad
from weft.pb import vllm_engine_pb2 as pb

SERVER_TYPE = "vllm-grpc"

_REQUEST_COUNTS = ("num_running_reqs", "num_waiting_reqs", "num_total_reqs", "max_running_requests")
_TOKEN_COUNTS = ("num_used_tokens", "max_total_num_tokens", "token_usage")

# Sections that a caller may request, with the load fields that each fills. A section without fields has no field in
# the message (adapters are in the load records of SubscribeKvEvents) or does not exist in this engine.
_FIELDS_BY_SECTION = MappingProxyType(
    {
        "core": frozenset(field.name for field in pb.SchedulerLoad.DESCRIPTOR.fields),
        "queues": frozenset((*_REQUEST_COUNTS, "num_waiting_uncached_tokens")),
        "memory": frozenset(_TOKEN_COUNTS),
        "spec": frozenset[str](),
        "speculative": frozenset[str](),
        "lora": frozenset[str](),
        "disagg": frozenset[str](),
        "disaggregation": frozenset[str](),
    }
)


def to_model_info(model: ModelConfig) -> pb.GetModelInfoResponse:
    """Facts of the model. A gateway that cannot load `model_path` falls back to GetTokenizer."""
    defaults = model.default_sampling_params
    return pb.GetModelInfoResponse(
        model_path=model.model,
        is_generation=model.runner_type == "generate",
        max_context_length=model.max_model_len,
        vocab_size=model.vocab_size,
        supports_vision=model.is_multimodal_model,
        served_model_name=model.served_model_name,
        tokenizer_path=model.model if Path(model.model).is_dir() else "",
        model_type=model.model_type,
        architectures=model.architectures,
        eos_token_ids=model.eos_token_ids,
        pad_token_id=model.pad_token_id or 0,
        bos_token_id=model.bos_token_id or 0,
        # A prompt for generation must leave room for at least one token.
        max_req_input_len=model.max_model_len - (model.runner_type == "generate"),
        default_sampling_params_json=json.dumps(defaults, sort_keys=True) if defaults else "",
    )


def to_server_info(
    info: EngineInfo,
    *,
    num_active_requests: int,
    is_paused: bool,
    last_receive_time: float,
    uptime_s: float,
    reasoning_parser: str | None = None,
) -> pb.GetServerInfoResponse:
    """The server's properties.

    Fields of KV transfer and media stay empty, because they are not supported; the fields of reasoning stay empty
    without a `reasoning_parser`.
    """
    return pb.GetServerInfoResponse(
        active_requests=num_active_requests,
        is_paused=is_paused,
        last_receive_timestamp=last_receive_time,
        uptime_seconds=uptime_s,
        server_type=SERVER_TYPE,
        data_parallel_size=info.data_parallel_size,
        kv_cache_dtype=info.kv_cache_dtype,
        block_size=info.block_size,
        model_dtype=info.dtype,
        max_num_seqs=info.max_num_seqs,
        engine_reasoning_parser=reasoning_parser or "",
        constrained_decoding_start=_constraint_start(info, reasoning_parser),
    )


def _constraint_start(info: EngineInfo, reasoning_parser: str | None) -> str:
    if info.structured_outputs_in_reasoning:
        return "first_token"
    return "" if reasoning_parser is None else "after_reasoning"


def to_loads_response(
    request: pb.GetLoadsRequest, loads: Iterable[EngineLoad], version: str
) -> pb.GetLoadsResponse:
    """The loads of the requested ranks and sections."""
    fields = _to_field_names(request.include)
    chosen = list(loads)
    if request.HasField("dp_rank"):
        ranks = sorted(load.data_parallel_rank for load in chosen)
        chosen = [load for load in chosen if load.data_parallel_rank == request.dp_rank]
        if not chosen:
            raise BadRequest("dp_rank", f"dp_rank must be one of {ranks}, got {request.dp_rank}")
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        version=version,
        dp_rank_count=len(chosen),
        loads=[to_scheduler_load(load, fields) for load in chosen],
    )


def to_scheduler_load(load: EngineLoad, fields: Collection[str]) -> pb.SchedulerLoad:
    """Converts the load of one rank; fills only `fields` and the rank."""
    values: dict[str, Any] = {
        "num_running_reqs": load.num_running,
        "num_waiting_reqs": load.num_waiting,
        "num_total_reqs": load.num_running + load.num_waiting,
        "num_used_tokens": load.num_used_tokens,
        "max_total_num_tokens": load.max_total_tokens,
        "token_usage": load.token_usage,
        "gen_throughput": load.gen_throughput,
        "cache_hit_rate": load.cache_hit_rate,
        "utilization": load.num_running / load.max_running if load.max_running else 0.0,
        "max_running_requests": load.max_running,
        "num_waiting_uncached_tokens": load.num_waiting_uncached_tokens,
    }
    chosen = {name: value for name, value in values.items() if name in fields}
    return pb.SchedulerLoad(dp_rank=load.data_parallel_rank, **chosen)


def _to_field_names(sections: Collection[str]) -> frozenset[str]:
    names: frozenset[str] = frozenset()
    for section in sections or ("core",):
        if section == "all":
            section = "core"
        if section not in _FIELDS_BY_SECTION:
            allowed = ", ".join(("all", *_FIELDS_BY_SECTION))
            raise BadRequest("include", f"include takes {allowed}, got {section[:40]!a}", section)
        names |= _FIELDS_BY_SECTION[section]
    return names
