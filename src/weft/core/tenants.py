"""Tenants: names, permissions and limits of API keys in `--api-key-file`, and each tenant's current usage."""

import hashlib
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Final

import msgspec

from weft.core.callers import KeyRing
from weft.core.errors import ConfigError, NotFound, RateLimited

FLAG: Final = "--api-key-file"
_MAX_FILE_BYTES: Final = 1 << 20
BEHIND_ALL: Final = (
    2**31 - 1
)  # the priority of requests that run behind all others, those of their tenant too
_OF_KEY: Final = "key-"  # begins the name of a tenant that is a key of --api-key
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_PerMinute = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
_Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class TenantRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant as the file describes it. A limit of None means no limit; `adapters` None allows all adapters.

    `priority` applies to all requests of the tenant; None keeps the requests' own priorities.
    """

    name: Annotated[str, msgspec.Meta(pattern=_NAME)]
    keys: Annotated[list[str], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=list)
    requests_per_minute: _PerMinute | None = None
    tokens_per_minute: _PerMinute | None = None
    priority: _Priority | None = None
    adapters: list[str] | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    tenants: list[TenantRules]


class _Bucket:
    """A token bucket for a rate limit per minute: full at first, refilled continuously.

    The level may go below 0, for amounts that are known only after they are used.
    """

    def __init__(self, what: str, per_minute: int, clock: Callable[[], float]) -> None:
        self._what = what
        self._most = per_minute
        self._level = float(per_minute)
        self._clock = clock
        self._filled_at = clock()

    def check(self) -> None:
        """Raises `RateLimited` unless the bucket has at least one unit."""
        self.take(0)
        missing = 1 - self._level
        if missing > 0:
            raise RateLimited(
                f"this key's limit of {self._most} {self._what} a minute is reached; try again later",
                retry_after_s=60 * missing / self._most,
            )

    def take(self, amount: int) -> None:
        now = self._clock()
        refill = (now - self._filled_at) * self._most / 60
        self._level = min(self._most, self._level + refill) - amount
        self._filled_at = now


class Tenant:
    """A tenant's rules and usage. Tokens are counted once their number is known, so an answer may exceed the limit."""

    def __init__(self, rules: TenantRules, clock: Callable[[], float] = time.monotonic) -> None:
        self.rules = rules
        limits = (("requests", rules.requests_per_minute), ("tokens", rules.tokens_per_minute))
        self._requests, self._tokens = (
            None if most is None else _Bucket(what, most, clock) for what, most in limits
        )

    def admit(self) -> None:
        """Counts a request; raises `RateLimited` if the tenant has exceeded a limit."""
        for bucket in (self._requests, self._tokens):
            if bucket is not None:
                bucket.check()
        if self._requests is not None:
            self._requests.take(1)

    def spend(self, num_tokens: int) -> None:
        """Counts tokens of a prompt or an answer for the tenant's rate limit."""
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def may_use(self, adapter: str) -> bool:
        """True if requests of the tenant may name this LoRA adapter."""
        return self.rules.adapters is None or adapter in self.rules.adapters

    def salted(self, cache_salt: str | None) -> str:
        """Returns the cache salt for a prompt of this tenant, which differs from the salts of all other tenants."""
        return hashlib.sha256(f"{self.rules.name}\n{cache_salt or ''}".encode()).hexdigest()


class ApiKeys:
    """The API keys of a server: the keys in `--api-key`, and the keys in a file, which belong to tenants.

    With `salts` each key in `--api-key` is a tenant too. An object without keys is falsy.
    """

    def __init__(
        self, keys: Iterable[str] = (), file: Path | None = None, *, salts: bool = False
    ) -> None:
        self._keys = KeyRing(keys)
        self._tenants = Tenants() if file is None else read_tenants(file)
        self._is_empty = not (self._keys or self._tenants)
        self.salts = salts
        if salts and self._is_empty:
            raise ConfigError(f"--salt-by-key needs --api-key or {FLAG}")

    def __bool__(self) -> bool:
        return not self._is_empty

    @property
    def has_priorities(self) -> bool:
        """True if some tenant has a priority of its own."""
        return self._tenants.has_priorities

    def is_valid(self, key: bytes) -> bool:
        """True if `key` is one of the server's keys."""
        is_plain, tenant = self._keys.is_valid(key), self._tenants.find(key)
        return is_plain or tenant is not None

    def tenant_of(self, key: bytes) -> Tenant | None:
        """Returns the tenant of a key; None for a key without a tenant."""
        found = self._tenants.find(key)
        if found is None and self.salts and self._keys.is_valid(key):
            return Tenant(TenantRules(name=f"{_OF_KEY}{hashlib.sha256(key).hexdigest()[:32]}"))
        return found

    def tenant_named(self, name: str) -> Tenant | None:
        """Returns the tenant with a name, for work that goes on after its caller left; None for the name "". Raises
        `NotFound` if the tenant is no longer in the file.
        """
        if not name:
            return None
        found = self._tenants.named(name)
        if found is None and self.salts and name.startswith(_OF_KEY):
            return Tenant(TenantRules(name=name))
        if found is None:
            raise NotFound(f"the tenant {name!r} is no longer in {FLAG}")
        return found


class Tenants:
    """The tenants of a file, found by API key. An object without tenants is falsy."""

    def __init__(self, rules: Iterable[TenantRules] = ()) -> None:
        self._tenants = [(KeyRing(one.keys), Tenant(one)) for one in rules]

    def find(self, key: bytes) -> Tenant | None:
        """Returns the tenant of an API key. All keys are compared, in constant time, as in `KeyRing`."""
        found = [tenant for keys, tenant in self._tenants if keys.is_valid(key)]
        return found[0] if found else None

    def named(self, name: str) -> Tenant | None:
        """Returns the tenant with this name; None if there is none."""
        return next((one for _, one in self._tenants if one.rules.name == name), None)

    def __bool__(self) -> bool:
        return bool(self._tenants)

    @property
    def has_priorities(self) -> bool:
        return any(one.rules.priority is not None for _, one in self._tenants)


@cache
def read_tenants(path: Path) -> Tenants:
    """Returns the tenants of a file; raises `ConfigError` for an invalid file.

    The object is cached: all servers of a process share it, and so count usage together.
    """
    try:
        if not path.is_file():
            raise ConfigError(f"{FLAG} {path}: the file does not exist")
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError(f"{FLAG} {path}: has more than {_MAX_FILE_BYTES} bytes")
        rules = msgspec.json.decode(data, type=_File).tenants
    except OSError as error:
        raise ConfigError(f"{FLAG} {path}: cannot be read ({error.strerror})") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{FLAG} {path}: {error}") from error
    _check(rules, path)
    return Tenants(rules)


def _check(rules: list[TenantRules], path: Path) -> None:
    if not rules:
        raise ConfigError(f"{FLAG} {path}: tenants must hold at least one tenant")
    for what, values in (
        ("name", [one.name for one in rules]),
        ("key", [key for one in rules for key in one.keys]),
    ):
        if len(set(values)) != len(values):
            raise ConfigError(f"{FLAG} {path}: duplicate {what}")
    for one in rules:
        if not one.keys or not all(key.strip() == key and key for key in one.keys):
            raise ConfigError(
                f"{FLAG} {path}: keys of {one.name} must be one or more texts without spaces around them"
            )
