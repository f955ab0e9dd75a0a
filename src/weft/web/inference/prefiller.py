"""`Prefiller`: has another server compute a prompt that a router chose it for; this one continues it.

The picker names the server, in the header `x-prefiller-host-port`. Whatever goes wrong, the prompt is computed here.
"""

import asyncio
import ipaddress
import logging
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec

from weft.core.errors import BadRequest
from weft.core.kv_transfer import KEY, KvTransferConfig, read_params, to_extra_args
from weft.core.tracing import carried
from weft.core.types import Request

CONNECT_S = 5.0
PREFILL_S = 600.0
MAX_ANSWER_BYTES = 2 << 20
PATH = "/inference/v1/generate"

log = logging.getLogger("weft.web")


class PrefillError(Exception):
    """The other server did not do it."""


_FAILURES = (
    PrefillError,
    httpx2.HTTPError,
    msgspec.DecodeError,
    BadRequest,
    TimeoutError,
    UnicodeError,  # of a header of the client's that is no ASCII
)


class Prefiller:
    """For an engine that fetches prompts: `config` says from whom. A prompt may take `timeout_s`."""

    def __init__(
        self, config: KvTransferConfig, block_size: int, timeout_s: float = PREFILL_S
    ) -> None:
        self._networks = [ipaddress.ip_network(network) for network in config.networks]
        self._block_size = block_size
        self._timeout_s = timeout_s

    async def compute(self, request: Request, address: str, authorization: str | None) -> Request:
        """The request, with where its prompt lies; as it was where there is nothing to gain, or it failed."""
        params = request.params
        is_short = len(request.prompt_token_ids) <= self._block_size
        if is_short or params.skip_reading_prefix_cache or params.extra_args or request.lora_name:
            return request
        try:
            found = await self._lend(request, self._origin(address), authorization)
        except _FAILURES as error:
            reason = str(error) or type(error).__name__
            log.warning(
                "no prefill at %.80r: %s, request_id=%s", address, reason, request.request_id
            )
            return request
        params = msgspec.structs.replace(params, extra_args=to_extra_args(found))
        return msgspec.structs.replace(request, params=params)

    def _origin(self, address: str) -> str:
        """The start of its URLs. A client may have written the header: no other address is spoken to."""
        try:
            parts = urlsplit(f"//{address}")
            host, port = ipaddress.ip_address(parts.hostname or ""), parts.port
        except ValueError as error:
            raise PrefillError(f"it is no address with a port: {error}") from None
        if port is None or parts.path or not any(host in network for network in self._networks):
            raise PrefillError("it is not among the peers of --kv-transfer-config")
        return f"http://{f'[{host}]' if host.version == 6 else host}:{port}"

    async def _lend(
        self, request: Request, origin: str, authorization: str | None
    ) -> dict[str, Any] | None:
        body = {
            "token_ids": request.prompt_token_ids,
            "sampling_params": {"max_tokens": 1, "temperature": 0.0, "detokenize": False},
            "cache_salt": request.cache_salt,
            "priority": request.priority or None,
            KEY: {"do_remote_decode": True},
        }
        headers = {"content-type": "application/json", "x-request-id": request.request_id}
        headers |= carried(request.trace_headers or {})
        if authorization is not None:
            headers["authorization"] = authorization
        timeout = httpx2.Timeout(self._timeout_s, connect=CONNECT_S)
        # It speaks plain HTTP and follows no redirects: certificates, whose list takes long to read, are for
        # nothing here.
        async with (
            asyncio.timeout(self._timeout_s),
            httpx2.AsyncClient(timeout=timeout, trust_env=False, verify=False) as client,
            client.stream(
                "POST", origin + PATH, content=msgspec.json.encode(body), headers=headers
            ) as answer,
        ):
            content = bytearray()
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > MAX_ANSWER_BYTES:
                    raise PrefillError(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
            if answer.status_code != httpx2.codes.OK:
                raise PrefillError(f"it answered with status {answer.status_code}")
        found = msgspec.json.decode(content, type=_Answer).kv_transfer_params
        if found is not None:
            read_params(found)
        return found


class _Answer(msgspec.Struct, frozen=True):
    kv_transfer_params: dict[str, Any] | None = None
