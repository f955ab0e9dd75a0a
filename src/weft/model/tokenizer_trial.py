"""A tokenizer.json of somebody else's, tried out in a child process before it is used in this one.

The library runs what the file says: it may take all memory, hang or abort, and nothing but the end of a
process stops it.
"""

import hashlib
import json
from typing import Final

from weft.core.errors import ConfigError
from weft.core.worker import Worker

TIME_LIMIT_S: Final = 60.0  # of a file of 30 MB it takes one to five
_MAX_MEMORY_BYTES: Final = 4 << 30

_sound: set[bytes] = set()  # digests of what this process has tried out: it need not be again


def try_out(data: bytes, where: str, *, time_limit_s: float = TIME_LIMIT_S) -> None:
    """Load, look through and use the tokenizer; `ConfigError` when that fails or takes too much.

    It bounds what a text can become, and finds what never ends on common texts. Of regular expressions
    that are slow on some other text it knows nothing: texts have limits for that.
    """
    digest = hashlib.sha256(data).digest()
    if digest in _sound:
        return
    try:
        line = json.dumps(data.decode()) + "\n"
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: not a valid tokenizer (not UTF-8 text, byte {error.start})"
        ) from error
    setup = {"time_limit_s": time_limit_s, "max_memory_bytes": _MAX_MEMORY_BYTES}
    worker = Worker("weft.model.tokenizer_worker", json.dumps(setup) + "\n")
    try:
        answer = worker.call(line)
    finally:
        worker.stop()
    if answer is None:
        raise ConfigError(
            f"{where}: not a usable tokenizer (to load it and try it out takes more than "
            f"{time_limit_s:g} s or {_MAX_MEMORY_BYTES >> 30} GiB)"
        )
    if "error" in answer:
        raise ConfigError(f"{where}: not a valid tokenizer ({answer['error']})")
    _sound.add(digest)
