"""Digest of the code that reads and packs weights."""

from functools import cache
from pathlib import Path

import xxhash

import weft.compute
import weft.model

_SUFFIXES = (".py", ".so", ".pyd")


@cache
def code_digest() -> str:
    """Returns a digest of the native core, of the Python code that prepares weights for it, and of Weft's version.

    The digest replaces a version number of the packed format that would have to be raised by hand.
    """
    digest = xxhash.xxh3_128(weft.__version__.encode())
    for package in (weft.model, weft.compute):
        (root,) = package.__path__
        for path in sorted(Path(root).rglob("*")):
            if path.suffix in _SUFFIXES:
                digest.update(path.read_bytes())
    return digest.hexdigest()
