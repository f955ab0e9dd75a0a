"""`HttpPrefiller`: other HTTP servers compute prompts, and lend their blocks while they compute."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import httpx2
import msgspec

from weft.core.observe.tracing import carried
from weft.core.prefilling import CONNECT_S, MAX_ANSWER_BYTES, PREFILL_S, Prefiller, PrefillError
from weft.core.values.kv_transfer import KEY
from weft.core.values.types import Request

PATH = "/inference/v1/generate"
_DATA = b"data: "
_DONE = b"data: [DONE]"

# The transfer parameters with which the prompt is fetched.
_Found: TypeAlias = asyncio.Future[dict[str, Any] | None]

log = logging.getLogger("weft.prefill")


class HttpPrefiller(Prefiller):
    """Reads each response to its end, because an earlier disconnect would abort the computation of the prompt."""

    way_failures = (
        httpx2.HTTPError,
        UnicodeError,  # a client's header that is not ASCII
    )

    def __init__(
        self,
        networks: Sequence[str],
        block_size: int,
        timeout_s: float = PREFILL_S,
        *,
        is_foreign: bool = False,
    ) -> None:
        super().__init__(networks, block_size, timeout_s, is_foreign=is_foreign)
        self._following: set[asyncio.Task[None]] = set()

    async def _lend(
        self, request: Request, address: str, authorization: str | None
    ) -> dict[str, Any] | None:
        body = {
            "token_ids": request.prompt_token_ids,
            "sampling_params": {"max_tokens": 1, "temperature": 0.0, "detokenize": False},
            "cache_salt": request.cache_salt,
            "priority": request.priority or None,
            "stream": True,
            KEY: {"do_remote_decode": True, "do_chunked_transfer": True},
        }
        headers = {"content-type": "application/json", "x-request-id": request.request_id}
        headers |= carried(request.trace_headers or {})
        if authorization is not None:
            headers["authorization"] = authorization
        found: _Found = asyncio.get_running_loop().create_future()
        content = msgspec.json.encode(body)
        following = asyncio.create_task(
            self._follow(f"http://{address}{PATH}", content, headers, found)
        )
        self._following.add(following)
        following.add_done_callback(self._following.discard)
        try:
            return await found
        except asyncio.CancelledError:
            following.cancel()
            raise

    async def _follow(
        self, url: str, content: bytes, headers: dict[str, str], found: _Found
    ) -> None:
        """Reads the response to its end; one of its events may hold the transfer parameters."""
        timeout = httpx2.Timeout(self._timeout_s, connect=CONNECT_S)
        # Plain HTTP without redirects, so the certificates, which take long to load, are not needed.
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                httpx2.AsyncClient(timeout=timeout, trust_env=False, verify=False) as client,
                client.stream("POST", url, content=content, headers=headers) as answer,
            ):
                if answer.status_code != httpx2.codes.OK:
                    raise PrefillError(f"it answered with status {answer.status_code}")
                await _read_events(answer, found)
            if not found.done():
                found.set_result(None)
        except Exception as error:  # noqa: BLE001 - the root of a task: who waits has it
            if not found.done():
                found.set_exception(error)
            else:  # the fetching engine will report it
                log.debug("a prefill was cancelled: %s", error)
        finally:
            found.cancel()


async def _read_events(answer: httpx2.Response, found: _Found) -> None:
    num_bytes, rest = 0, b""
    async for piece in answer.aiter_bytes():
        num_bytes += len(piece)
        if num_bytes > MAX_ANSWER_BYTES:
            raise PrefillError(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(_DATA) and line != _DONE and not found.done():
                event = msgspec.json.decode(line.removeprefix(_DATA), type=_Event)
                if event.error is not None:
                    raise PrefillError("it has failed")
                if event.kv_transfer_params is not None:
                    found.set_result(event.kv_transfer_params)


class _Event(msgspec.Struct, frozen=True):
    kv_transfer_params: dict[str, Any] | None = None
    error: Any = None
