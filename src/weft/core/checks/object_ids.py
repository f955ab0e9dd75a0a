"""Ids of stored objects: random, after the name of the store that has the object. A router finds the server by it."""

import re
import secrets
from typing import Final

from weft.core.checks.id_source import random_hex, store_in_ids

# The metadata key with which a server names its store, in the answer of GetLoads.
STORE_METADATA: Final = "x-weft-store"
# The series with which a server names its store, and the series' label.
STORE_SERIES: Final = ("weft:store_info", "store")

_IN_MEMORY, _IN_FILE = "m", "s"
_NAME: Final = re.compile(rf"[{_IN_MEMORY}{_IN_FILE}][0-9a-f]{{12}}")
# No other server's ids begin like this: the letter is no hexadecimal digit.
_ID: Final = re.compile(rf"[_-]({_NAME.pattern})[0-9a-f]{{32}}(?![0-9A-Za-z])")


def new_store_name(*, is_durable: bool) -> str:
    """Returns a random name for a store, in a file if it `is_durable`, otherwise in memory."""
    return f"{_IN_FILE if is_durable else _IN_MEMORY}{secrets.token_hex(6)}"


def is_store_name(text: str) -> bool:
    """True if the text has the form of a store's name."""
    return _NAME.fullmatch(text) is not None


def is_durable(store: str) -> bool:
    """True if the store with this name outlives its server's process."""
    return store.startswith(_IN_FILE)


def new_id(prefix: str, store: str = "", *, mark: str = "_") -> str:
    """Returns a random id that cannot be guessed: knowing it gives access. `store` names the store of the object, and
    `mark` follows the prefix.
    """
    return f"{prefix}{mark}{store_in_ids(store)}{random_hex(16)}"


def store_of(text: str) -> str:
    """Returns the name of the store in the first id that names one; "" if there is none. `text` is an id, or a path
    that contains ids.
    """
    found = _ID.search(text)
    return "" if found is None else found[1]
