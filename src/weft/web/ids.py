"""Random parts of ids in answers. A continued stream draws the ids of its first part again."""

import secrets
from collections.abc import Callable
from contextvars import ContextVar

# The source of the bytes of ids, for the task that serves a request.
ID_BYTES: ContextVar[Callable[[int], bytes]] = ContextVar(
    "weft_id_bytes", default=secrets.token_bytes
)


def random_hex(num_bytes: int) -> str:
    """Returns hexadecimal digits that cannot be guessed."""
    return ID_BYTES.get()(num_bytes).hex()
