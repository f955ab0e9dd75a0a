"""Keys that callers bring: only their digests are kept, and comparing tells nobody how near a guess was."""

import hashlib
import hmac
from collections.abc import Iterable


class KeyRing:
    """Some keys. False when there are none."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def is_valid(self, key: bytes) -> bool:
        """Whether `key` is one of them."""
        digest = _digest(key)
        # Every key is compared, in constant time: neither a match nor its place shows in the timing.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def bearer_key(header: bytes) -> bytes | None:
    """The key of an `Authorization: Bearer KEY` header's value; None for any other scheme."""
    scheme, _, key = header.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
