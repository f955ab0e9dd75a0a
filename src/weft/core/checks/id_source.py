"""Random parts of ids in answers. A stream that another server continues draws the ids of its first part again."""

import secrets
from collections.abc import Callable
from contextvars import ContextVar


class IdSource:
    """Gives the ids of one stream. `store` names the store in its ids: the first one that is asked for, unless it is
    known already.
    """

    def __init__(self, random_bytes: Callable[[int], bytes], store: str = "") -> None:
        self.random_bytes = random_bytes
        self.store = store

    def store_for(self, store: str) -> str:
        """Returns the store in an id whose object belongs to `store`."""
        self.store = self.store or store
        return self.store


# Set for the task that serves a stream which can be continued.
ID_SOURCE: ContextVar[IdSource | None] = ContextVar("weft_id_source", default=None)


def random_hex(num_bytes: int) -> str:
    """Returns hexadecimal digits that cannot be guessed."""
    source = ID_SOURCE.get()
    draw = secrets.token_bytes if source is None else source.random_bytes
    return draw(num_bytes).hex()


def store_in_ids(store: str) -> str:
    """Returns the store's name for an id: that of the server where the stream began."""
    source = ID_SOURCE.get()
    return store if source is None or not store else source.store_for(store)
