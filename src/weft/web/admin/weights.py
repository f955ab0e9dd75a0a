"""Weights from outside, for holders of a control key: announced, sent in parts, and served whole."""

import msgspec

from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.web.admin.control import Status, control
from weft.web.http.endpoint import Answer, Call


class StartUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The update uses the checkpoint's tensor names and shapes."""

    is_checkpoint_format: bool = True


class WorldSize(msgspec.Struct, frozen=True):
    """Number of workers that receive weights."""

    world_size: int


_UPDATE = {
    "update_info": {
        "segment": "psm_12ab34cd",
        "names": ["model.norm.weight"],
        "dtype_names": ["bfloat16"],
        "shapes": [[1024]],
    }
}


@control(
    "POST /init_weight_transfer_engine",
    Status,
    body=WeightTransferInitRequest,
    example={"init_info": {}},
)
async def _init(call: Call) -> Answer:
    """Announce that weights will be sent, as --weight-transfer-config says."""
    await call.served.client.init_weight_transfer_engine(call.body)
    return Status("ready")


@control(
    "POST /start_weight_update", Status, body=StartUpdate, example={"is_checkpoint_format": True}
)
async def _start(call: Call) -> Answer:
    """Begin an update of the weights."""
    body: StartUpdate = call.body
    await call.served.client.start_weight_update(body.is_checkpoint_format)
    return Status("started")


@control("POST /update_weights", Status, body=WeightTransferUpdateRequest, example=_UPDATE)
async def _update(call: Call) -> Answer:
    """Send tensors: a segment of shared memory, or a path of safetensors."""
    await call.served.client.update_weights(call.body)
    return Status("taken")


@control("POST /finish_weight_update", Status)
async def _finish(call: Call) -> Answer:
    """Serve the weights that were sent, all of them or none."""
    await call.served.client.finish_weight_update()
    return Status("updated")


@control("GET /get_world_size", WorldSize)
async def _world_size(_call: Call) -> Answer:
    """Workers that take weights."""
    return WorldSize(1)


ENDPOINTS = (_init, _start, _update, _finish, _world_size)
