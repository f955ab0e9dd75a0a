"""Adapters while the server runs: load and unload, for holders of a control key."""

import secrets
from pathlib import Path

import msgspec
from starlette.responses import PlainTextResponse

from weft.core.errors import BadRequest, NotFound
from weft.core.values.types import LoRARequest
from weft.web.admin.control import control
from weft.web.http.endpoint import Answer, Call
from weft.web.http.problem import HttpError

_MAX_ID = 2**31 - 1


class LoadLoraBody(msgspec.Struct, frozen=True, kw_only=True):
    """`lora_path` is a directory of the server's; with `load_inplace` an adapter is loaded again."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadLoraBody(msgspec.Struct, frozen=True, kw_only=True):
    """The adapter that is to be forgotten."""

    lora_name: str


@control(
    "POST /v1/load_lora_adapter",
    body=LoadLoraBody,
    example={"lora_name": "mine", "lora_path": "/path/to/adapter"},
)
async def _load(call: Call) -> Answer:
    """Load a LoRA adapter from a directory of the server."""
    _check_allowed(call)
    body: LoadLoraBody = call.body
    client = call.served.client
    known = client.lora_requests.get(body.lora_name)
    if known is not None and not body.load_inplace:
        raise BadRequest(
            "lora_name", f"The lora adapter {body.lora_name!a} has already been loaded."
        )
    if not Path(body.lora_path).is_absolute():
        raise BadRequest("lora_path", "lora_path must begin with /")
    await client.add_lora(
        LoRARequest(
            lora_name=body.lora_name,
            # A random id, so that no table of used ids is needed.
            lora_int_id=1 + secrets.randbelow(_MAX_ID) if known is None else known.lora_int_id,
            lora_path=body.lora_path,
            load_inplace=body.load_inplace,
        )
    )
    return PlainTextResponse(f"Success: LoRA adapter {body.lora_name!r} added successfully.")


@control("POST /v1/unload_lora_adapter", body=UnloadLoraBody, example={"lora_name": "mine"})
async def _unload(call: Call) -> Answer:
    """Forget a LoRA adapter; open requests keep it."""
    _check_allowed(call)
    name = call.body.lora_name
    client = call.served.client
    known = client.lora_requests.get(name)
    if known is None or not await client.remove_lora(known.lora_int_id):
        raise NotFound(f"The lora adapter {name[:64]!a} cannot be found.", "lora_name")
    return PlainTextResponse(f"Success: LoRA adapter {name!r} removed successfully.")


def _check_allowed(call: Call) -> None:
    if not call.served.options.allow_runtime_lora_updating:
        raise HttpError(
            403,
            "adapters are fixed: start the server with --enable-lora --allow-runtime-lora-updating",
        )


ENDPOINTS = (_load, _unload)
