"""`AccessReviewer`: asks Kubernetes whether the owner of a token may GET a page. Like controller-runtime's filter for
metrics, a TokenReview finds the user, and a SubjectAccessReview decides whether the user may `get` the path, a
non-resource URL.

Access is refused if Kubernetes does not answer.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from weft.epp.kubernetes.api import ApiFailure, ApiServer, connect

_log = logging.getLogger(__name__)

_MAX_BYTES: Final = 256 * 2**10
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_UNAVAILABLE: Final = 503


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewLimits:
    """Times for which answers are cached, as in controller-runtime, and limits on the requests to Kubernetes."""

    token_s: float = 60.0
    allowed_s: float = 300.0
    denied_s: float = 30.0
    # For both reviews together; the page that waits for them is given up after 10 s.
    review_s: float = 8.0
    max_at_once: int = 4  # requests without access must not flood the API server
    max_entries: int = 1024  # of each cache


USUAL: Final = ReviewLimits()


class _User(msgspec.Struct, frozen=True):
    """The user that a token belongs to; an access review sends all of its fields."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User | None = None


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus


T = TypeVar("T")


class _Cache(Generic[T]):
    """Values that are valid for a limited time, by a digest of their keys. A full cache drops its oldest values."""

    def __init__(self, max_entries: int, clock: Callable[[], float]) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self._entries: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def get(self, key: bytes) -> tuple[T] | None:
        """Returns the cached value in a tuple, because the value may be None; None if no valid value is cached."""
        found = self._entries.get(key)
        if found is None or self._clock() >= found[0]:
            return None
        return (found[1],)

    def put(self, key: bytes, value: T, ttl_s: float) -> None:
        self._entries.pop(key, None)
        while len(self._entries) >= self._max_entries:
            self._entries.popitem(last=False)
        self._entries[key] = (self._clock() + ttl_s, value)


class AccessReviewer:
    """Authorizes requests for pages by Kubernetes tokens. Created and closed on one event loop."""

    def __init__(
        self,
        namespace: str | None,
        limits: ReviewLimits = USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api: ApiServer = connect(namespace)
        self._limits = limits
        self._users: _Cache[_User | None] = _Cache(limits.max_entries, clock)
        self._verdicts: _Cache[bool] = _Cache(limits.max_entries, clock)
        self._slots = asyncio.Semaphore(limits.max_at_once)
        self._has_failed = False  # True once a failure was logged

    async def refusal(self, token: bytes | None, path: str) -> tuple[int, str] | None:
        """Returns the status and the message of a refusal; None if the token's owner may read the page."""
        if not token:
            return (
                _UNAUTHORIZED,
                "a Kubernetes token is needed: send the header authorization: Bearer TOKEN",
            )
        try:
            async with asyncio.timeout(self._limits.review_s):
                refusal = await self._review(token, path)
        except (ApiFailure, TimeoutError, msgspec.DecodeError) as error:
            if not self._has_failed:
                said = str(error) or "the API server does not answer"
                _log.warning("access to the metrics port is refused for now: %s", said)
            self._has_failed = True
            return (
                _UNAVAILABLE,
                "access cannot be checked with Kubernetes now; the log has the cause",
            )
        return refusal

    async def close(self) -> None:
        """Closes the connections."""
        await self._api.close()

    async def _review(self, token: bytes, path: str) -> tuple[int, str] | None:
        user = await self._user(token)
        if user is None:
            return _UNAUTHORIZED, "Kubernetes does not know this token"
        if not await self._is_allowed(user, path):
            return (
                _FORBIDDEN,
                f"{user.username} may not get {path} (a nonResourceURL of a ClusterRole)",
            )
        return None

    async def _user(self, token: bytes) -> _User | None:
        key = hashlib.sha256(token).digest()
        if (known := self._users.get(key)) is not None:
            return known[0]
        kind = ("authentication.k8s.io", "tokenreviews", "TokenReview")
        status = (
            await self._fill_in(kind, {"token": token.decode("latin-1")}, _TokenReview)
        ).status
        user = status.user if status.authenticated else None
        self._users.put(key, user, self._limits.token_s)
        return user

    async def _is_allowed(self, user: _User, path: str) -> bool:
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }
        key = hashlib.sha256(msgspec.json.encode(spec)).digest()
        if (known := self._verdicts.get(key)) is not None:
            return known[0]
        kind = ("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview")
        status = (await self._fill_in(kind, spec, _AccessReview)).status
        is_allowed = status.allowed and not status.denied
        ttl_s = self._limits.allowed_s if is_allowed else self._limits.denied_s
        self._verdicts.put(key, is_allowed, ttl_s)
        return is_allowed

    async def _fill_in(
        self, kind: tuple[str, str, str], spec: dict[str, Any], answer: type[T]
    ) -> T:
        """Sends a review to the API server and returns the result. Raises `ApiFailure`."""
        group, plural, name = kind
        body = {"apiVersion": f"{group}/v1", "kind": name, "metadata": {}, "spec": spec}
        async with self._slots:
            said = await self._api.write(
                "POST", f"apis/{group}/v1/{plural}", msgspec.json.encode(body), _MAX_BYTES
            )
        self._has_failed = False
        return msgspec.json.decode(said, type=answer)
