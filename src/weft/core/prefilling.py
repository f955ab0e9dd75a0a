"""`Prefiller`: asks the prefill server that a router chose to compute a prompt, which this server then continues.

The router names the prefill server in the header or gRPC metadata `x-prefiller-host-port`. If prefill fails, this
server computes the prompt itself.
"""

import ipaddress
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from weft.core.errors import WeftError
from weft.core.values.kv_transfer import Prefill, read_params, to_extra_args
from weft.core.values.types import Request

CONNECT_S = 5.0
PREFILL_S = 600.0
MAX_ANSWER_BYTES = 2 << 20

log = logging.getLogger("weft.prefill")


class PrefillError(Exception):
    """The prefill server did not compute the prompt."""


_FAILURES: tuple[type[Exception], ...] = (
    PrefillError,
    WeftError,
    msgspec.DecodeError,
    TimeoutError,
)


class Prefiller(ABC):
    """Client of the prefill servers in `networks`, for an engine that fetches computed prompts.

    A prefill may take `timeout_s` seconds. With `is_foreign` the transfer parameters are not checked here: the engine's
    connector checks them.
    """

    way_failures: tuple[type[Exception], ...] = ()  # errors of the protocol that a subclass uses

    def __init__(
        self,
        networks: Sequence[str],
        block_size: int,
        timeout_s: float = PREFILL_S,
        *,
        is_foreign: bool = False,
    ) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._block_size = block_size
        self._is_foreign = is_foreign
        self._timeout_s = timeout_s
        self._failures = _FAILURES + self.way_failures

    async def compute(self, request: Request, chosen: Prefill) -> Request:
        """Returns the request with the location of its computed prompt; unchanged if prefill gains nothing or fails."""
        params = request.params
        is_short = len(request.prompt_token_ids) <= self._block_size
        if is_short or params.skip_reading_prefix_cache or params.extra_args or request.lora_name:
            return request
        try:
            found = await self._lend(request, self._checked(chosen.address), chosen.authorization)
            if found is not None and not self._is_foreign:
                read_params(found)
        except self._failures as error:
            reason = str(error) or type(error).__name__
            log.warning(
                "prefill at %.80r failed, the prompt is computed here: %s, request_id=%s",
                chosen.address,
                reason,
                request.request_id,
            )
            return request
        params = msgspec.structs.replace(params, extra_args=to_extra_args(found))
        return msgspec.structs.replace(request, params=params)

    def _checked(self, address: str) -> str:
        """Returns the address as "host:port"; raises `PrefillError` for an address that is not a peer's, as clients may
        set it.
        """
        try:
            parts = urlsplit(f"//{address}")
            host, port = ipaddress.ip_address(parts.hostname or ""), parts.port
        except ValueError as error:
            raise PrefillError(f"the address must be IP:PORT ({error})") from None
        if port is None or parts.path or not any(host in network for network in self._networks):
            raise PrefillError(
                "the address must be IP:PORT of one of the peers of --kv-transfer-config"
            )
        return f"{f'[{host}]' if host.version == 6 else host}:{port}"

    @abstractmethod
    async def _lend(
        self, request: Request, address: str, authorization: str | None
    ) -> dict[str, Any] | None:
        """Requests that the server computes and lends the prompt; returns the transfer parameters, or None if the
        server has nothing to fetch.
        """
