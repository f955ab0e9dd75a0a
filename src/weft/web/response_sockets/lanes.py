"""Lanes of a session: requests that are answered in order, and the responses that the next of them may continue."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from weft.schema.responses import ResponseCreateEvent
from weft.web.responses.store import StoredResponse


@dataclass(slots=True)
class Lane:
    """The requests of one `stream_id`, None for those without one. `response_id` is the response that is being made."""

    stream_id: str | None
    waiting: deque[tuple[ResponseCreateEvent, int]] = field(default_factory=deque)
    response_id: str | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """True while a request of the lane has no answer."""
        return self.task is not None and not self.task.done()


class LatestResponses:
    """The latest unstored response of each lane, with at most `max_chars` characters in all."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._by_lane: dict[str | None, StoredResponse] = {}

    @property
    def by_id(self) -> dict[str | None, StoredResponse]:
        """The responses by their ids."""
        return {stored.id: stored for stored in self._by_lane.values()}

    def keep(self, lane: Lane, stored: StoredResponse) -> None:
        """Keeps a response in place of the lane's last one. Drops those of other lanes if there is no room, the oldest
        first.
        """
        self.drop(lane)
        self._by_lane[lane.stream_id] = stored
        while sum(map(_size, self._by_lane.values())) > self._max_chars:
            del self._by_lane[next(iter(self._by_lane))]

    def drop(self, lane: Lane, response_id: str | None = None) -> None:
        """Drops the lane's response; with an id, only if it is this one."""
        unstored = self._by_lane.get(lane.stream_id)
        if unstored is not None and response_id in (None, unstored.id):
            del self._by_lane[lane.stream_id]


def _size(stored: StoredResponse) -> int:
    return sum(map(len, (stored.response, stored.items, stored.output, stored.messages)))
