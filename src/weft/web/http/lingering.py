"""Closing a connection so that a client that still sends sees the last answer.

Closed with something unread, the system resets the connection, and what the client had not read yet of
our answer is lost to it. So we say that no more comes from us, and drop what comes, for a while.
"""

import asyncio
from collections.abc import Callable
from typing import Any


class LingeringTransport(asyncio.Transport):
    """A transport that is closed at once, or, while `has_more_to_come`, after `linger_s` at the latest."""

    def __init__(
        self, plain: asyncio.Transport, has_more_to_come: Callable[[], bool], linger_s: float
    ) -> None:
        super().__init__()
        self._linger_s = linger_s
        self._plain = plain
        self._has_more_to_come = has_more_to_come
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Close; while the client may be sending, for our side only. Idempotent."""
        if self.is_closing():
            return
        if not self._has_more_to_come():
            self._plain.close()
            return
        self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._plain.close)
        if self._plain.can_write_eof():  # not with TLS, where the answer has to say its length
            self._plain.write_eof()
        self._plain.resume_reading()

    def close_now(self) -> None:
        """Close for both sides."""
        self.forget()
        self._plain.close()

    def forget(self) -> None:
        """The connection is lost: there is nothing to wait for."""
        if self._timer is not None:
            self._timer.cancel()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._timer is not None or self._plain.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, unless it was said that nothing more comes."""
        if self._timer is None:
            self._plain.write(data)

    def abort(self) -> None:
        """Close at once, whatever is unsent."""
        self.forget()
        self._plain.abort()

    def pause_reading(self) -> None:
        self._plain.pause_reading()

    def resume_reading(self) -> None:
        self._plain.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._plain.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._plain.get_extra_info(name, default)
