"""Changes the number of engines of a running server, for holders of a control key."""

import msgspec

from weft.core.errors import DeadlineExceeded
from weft.web.admin.control import control
from weft.web.http.endpoint import Answer, Call
from weft.web.http.problem import HttpError


class ScaleBody(msgspec.Struct, frozen=True, kw_only=True):
    """Target number of engines, and the time that leaving engines have to finish their requests."""

    new_data_parallel_size: int
    drain_timeout: float = 300.0


class Scaled(msgspec.Struct, frozen=True):
    """Number of engines."""

    message: str


class Scaling(msgspec.Struct, frozen=True):
    """Whether the number of engines is changing."""

    is_scaling_elastic_ep: bool


@control("POST /scale_elastic_ep", Scaled, body=ScaleBody, example={"new_data_parallel_size": 2})
async def _scale(call: Call) -> Answer:
    """Serve with more engines, or with fewer once their requests are finished."""
    body: ScaleBody = call.body
    try:
        await call.served.client.scale_elastic_ep(body.new_data_parallel_size, body.drain_timeout)
    except DeadlineExceeded as error:
        raise HttpError(408, str(error)) from error
    return Scaled(f"Scaled to {body.new_data_parallel_size} data parallel engines")


@control("POST /is_scaling_elastic_ep", Scaling)
async def _is_scaling(call: Call) -> Answer:
    """Return whether the number of engines is changing."""
    return Scaling(await call.served.client.is_scaling_elastic_ep())


ENDPOINTS = (_scale, _is_scaling)
