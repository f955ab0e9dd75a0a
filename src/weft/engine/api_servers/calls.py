"""Calls of `EngineClient` that API servers forward to their supervisor, and the types of arguments and answers."""

from collections.abc import Iterable
from typing import Any

import msgspec

from weft.core.values.request_states import RequestStates
from weft.core.values.types import EngineLoad, LoRARequest
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest

# Type of the first argument of calls that take a structure.
STRUCTURES: dict[str, type[msgspec.Struct]] = {
    "add_lora": LoRARequest,
    "init_weight_transfer_engine": WeightTransferInitRequest,
    "update_weights": WeightTransferUpdateRequest,
}
# Types of the answers.
ANSWERS: dict[str, Any] = {
    "abort": None,
    "add_lora": bool,
    "collective_rpc": list[Any],
    "do_log_stats": None,
    "finish_weight_update": None,
    "get_request_states": list[RequestStates],
    "init_weight_transfer_engine": None,
    "is_paused": bool,
    "is_scaling_elastic_ep": bool,
    "list_loras": set[int],
    "notify_kv_transfer_request_rejected": None,
    "pause_generation": None,
    "pin_lora": bool,
    "remove_lora": bool,
    "reset_encoder_cache": None,
    "reset_mm_cache": None,
    "reset_prefix_cache": bool,
    "resume_generation": None,
    "scale_elastic_ep": None,
    "sleep": None,
    "start_profile": None,
    "start_weight_update": None,
    "stop_profile": None,
    "update_weights": None,
    "wake_up": bool,
}
# Further calls, with answer types of their own.
CHECK_HEALTH, GET_LOADS = "check_health", "get_loads"
SUBSCRIBE, EXPOSE = "subscribe_kv_events", "expose"


class Health(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `check_health`, if it does not raise."""

    is_degraded: bool


class Loads(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `get_loads`: the load of each engine, and the number of open requests of all API servers."""

    loads: list[EngineLoad]
    num_active_requests: int


def plain(argument: Any) -> Any:
    """Returns an argument in a form that the channel can encode."""
    if isinstance(argument, Iterable) and not isinstance(argument, str | bytes | dict):
        return list(argument)
    return argument


def with_structures(method: str, arguments: list[Any], named: dict[str, Any]) -> None:
    """Converts the decoded argument back to its structure, in place."""
    kind = STRUCTURES.get(method)
    if kind is None:
        return
    if arguments:
        arguments[0] = msgspec.convert(arguments[0], kind)
    else:
        named.update({name: msgspec.convert(value, kind) for name, value in named.items()})
