"""Pages of the metrics port: metrics, decisions, counts, health. No page contains prompt text."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import msgspec

from weft.epp.decision.explain import DecisionRing, PastDecision, to_record
from weft.epp.server.admin import Page, Render
from weft.epp.server.server import PickerServer

_MAX_ROWS: Final = 100
# Maximum number of endpoints listed in all returned decisions together; each takes about 50 bytes.
_MAX_MENTIONS: Final = 200_000
PUBLIC: Final = ("/healthz", "/livez", "/readyz")


def pages(
    server: PickerServer,
    metrics_text: Callable[[], Awaitable[bytes]],
    ring: DecisionRing,
    state_of: Callable[[int], Mapping[str, object]],
) -> Mapping[str, Render]:
    """Returns the functions that render the pages, by path. `state_of(max_rows)` returns the picker's state, to which
    the page adds the open requests.
    """

    turn = asyncio.Lock()  # one at a time: decisions among thousands of endpoints take memory

    async def metrics(_query: Mapping[str, str]) -> Page:
        return Page(await metrics_text(), "text/plain; version=0.0.4; charset=utf-8")

    async def decisions(query: Mapping[str, str]) -> Page:
        request_id = query.get("request_id")
        if request_id is None:
            try:
                after = float(query.get("after", "-inf"))
            except ValueError:
                return _json({"error": "after must be a Unix time, in seconds"}, 400)
            newest = [one for one in ring.newest(_limit(query)) if one.at > after]
            async with turn:
                return Page(await asyncio.to_thread(_encode_all, newest))
        found = ring.find(request_id)
        if found is None:
            return _json({"error": f"no decision is stored for request {request_id}"}, 404)
        async with turn:
            return await asyncio.to_thread(lambda: _json(to_record(found)))

    def state(_query: Mapping[str, str]) -> Page:
        return _json({"open_requests": server.num_streams, **state_of(_MAX_ROWS)})

    def ready(_query: Mapping[str, str]) -> Page:
        is_ready = server.health.is_ready
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    def live(_query: Mapping[str, str]) -> Page:
        return _json({"live": True})

    return {
        "/metrics": metrics,
        "/debug/decisions": decisions,
        "/debug/plugins/state": state,
        "/healthz": live,
        "/livez": live,
        "/readyz": ready,
    }


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", "")
    # Cut first: Python refuses to parse thousands of digits.
    return min(int(text[:9]), _MAX_ROWS) if text.isascii() and text.isdigit() else _MAX_ROWS


def _encode_all(decisions: Iterable[PastDecision]) -> bytes:
    """Returns the newest decisions as JSON, up to a maximum size. They are encoded one by one, because encoding blocks
    other threads.
    """
    encoded: list[bytes] = []
    left = _MAX_MENTIONS
    for one in decisions:
        left -= one.num_mentions
        if encoded and left < 0:
            break
        encoded.append(msgspec.json.encode(to_record(one)))
    return b"[" + b",".join(encoded) + b"]\n"


def _json(value: object, status: int = 200) -> Page:
    return Page(msgspec.json.encode(value) + b"\n", "application/json", status)
