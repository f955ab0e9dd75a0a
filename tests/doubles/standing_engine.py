"""What holds a real engine on its thread, so that no answer ends while the test looks elsewhere."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.busy import PATIENCE_S
from weft.engine.clients.local_client import LocalClient


@contextmanager
def only_when_told(client: LocalClient) -> Iterator[None]:
    """The engine takes a step with what it is sent, and none by itself: what is long enough stays open."""
    mailbox = client._mailbox
    receive = mailbox.receive
    mailbox.receive = lambda _timeout_s: receive(None)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del mailbox.receive
        mailbox.wake()


@contextmanager
def standing_still(client: LocalClient) -> Iterator[None]:
    """The engine takes neither steps nor commands, which wait for it."""
    mailbox = client._mailbox
    receive = mailbox.receive
    stands, may_go = threading.Event(), threading.Event()

    def wait_first(timeout_s: float | None) -> list:
        stands.set()
        assert may_go.wait(PATIENCE_S)
        return receive(timeout_s)

    mailbox.receive = wait_first  # type: ignore[method-assign]
    try:
        mailbox.wake()  # it may be waiting for a command
        assert stands.wait(PATIENCE_S)
        yield
    finally:
        del mailbox.receive
        may_go.set()
