"""Weights from outside, for holders of a control key: announced, sent in parts, and served whole."""

import msgspec

from weft.core.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.web.admin.control import Status, control_endpoint
from weft.web.http.endpoint import Answer, Call


class StartUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Names and forms of what comes are those of the checkpoint."""

    is_checkpoint_format: bool = True


class WorldSize(msgspec.Struct, frozen=True):
    """How many workers take weights."""

    world_size: int


async def _init(call: Call) -> Answer:
    await call.served.client.init_weight_transfer_engine(call.body)
    return Status("ready")


async def _start(call: Call) -> Answer:
    body: StartUpdate = call.body
    await call.served.client.start_weight_update(body.is_checkpoint_format)
    return Status("started")


async def _update(call: Call) -> Answer:
    await call.served.client.update_weights(call.body)
    return Status("taken")


async def _finish(call: Call) -> Answer:
    await call.served.client.finish_weight_update()
    return Status("updated")


async def _world_size(_call: Call) -> Answer:
    return WorldSize(1)


_UPDATE = {
    "update_info": {
        "segment": "psm_12ab34cd",
        "names": ["model.norm.weight"],
        "dtype_names": ["bfloat16"],
        "shapes": [[1024]],
    }
}


ENDPOINTS = (
    control_endpoint(
        "POST",
        "/init_weight_transfer_engine",
        _init,
        "Announce that weights will be sent, as --weight-transfer-config says.",
        Status,
        body=WeightTransferInitRequest,
        example={"init_info": {}},
    ),
    control_endpoint(
        "POST",
        "/start_weight_update",
        _start,
        "Begin an update of the weights.",
        Status,
        body=StartUpdate,
        example={"is_checkpoint_format": True},
    ),
    control_endpoint(
        "POST",
        "/update_weights",
        _update,
        "Send tensors: a segment of shared memory, or a path of safetensors.",
        Status,
        body=WeightTransferUpdateRequest,
        example=_UPDATE,
    ),
    control_endpoint(
        "POST",
        "/finish_weight_update",
        _finish,
        "Serve the weights that were sent, all of them or none.",
        Status,
    ),
    control_endpoint(
        "GET", "/get_world_size", _world_size, "Workers that take weights.", WorldSize
    ),
)
