"""Changes the number of engines of a running server, and drains engines, for holders of a control key."""

import msgspec

from weft.core.errors import DeadlineExceeded
from weft.core.values.controls import Drained
from weft.web.admin.control import Status, control
from weft.web.http.endpoint import Answer, Call
from weft.web.http.problem import HttpError


class ScaleBody(msgspec.Struct, frozen=True, kw_only=True):
    """Target number of engines, and the time in seconds for requests of leaving engines that cannot move."""

    new_data_parallel_size: int
    drain_timeout: float = 300.0


class DrainBody(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of the engines to drain, and the time in seconds for requests that cannot move."""

    data_parallel_ranks: list[int]
    timeout: float = 300.0


class UndrainBody(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of drained engines that take requests again."""

    data_parallel_ranks: list[int]


class DrainedEngines(msgspec.Struct, frozen=True):
    """The requests of each drained engine, by the engines that continue them."""

    drained: list[Drained]


class Scaled(msgspec.Struct, frozen=True):
    """Number of engines."""

    message: str


class Scaling(msgspec.Struct, frozen=True):
    """Whether the number of engines is changing."""

    is_scaling_elastic_ep: bool


@control("POST /scale_elastic_ep", Scaled, body=ScaleBody, example={"new_data_parallel_size": 2})
async def _scale(call: Call) -> Answer:
    """Serve with more engines, or with fewer once their requests have moved to the others."""
    body: ScaleBody = call.body
    try:
        await call.served.client.scale_elastic_ep(body.new_data_parallel_size, body.drain_timeout)
    except DeadlineExceeded as error:
        raise HttpError(408, str(error)) from error
    return Scaled(f"Scaled to {body.new_data_parallel_size} data parallel engines")


@control("POST /drain", DrainedEngines, body=DrainBody, example={"data_parallel_ranks": [1]})
async def _drain(call: Call) -> Answer:
    """Hand the requests of engines over to other engines, and send no more requests to them."""
    body: DrainBody = call.body
    return DrainedEngines(await call.served.client.drain(body.data_parallel_ranks, body.timeout))


@control("POST /undrain", Status, body=UndrainBody, example={"data_parallel_ranks": [1]})
async def _undrain(call: Call) -> Answer:
    """Send requests to drained engines again."""
    await call.served.client.undrain(call.body.data_parallel_ranks)
    return Status("undrained")


@control("POST /is_scaling_elastic_ep", Scaling)
async def _is_scaling(call: Call) -> Answer:
    """Return whether the number of engines is changing."""
    return Scaling(await call.served.client.is_scaling_elastic_ep())


ENDPOINTS = (_scale, _is_scaling, _drain, _undrain)
