"""Tenants: the names, rights and limits that API keys have by `--api-key-file`, and what each has used of them."""

import hashlib
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Final

import msgspec

from weft.core.callers import KeyRing
from weft.core.errors import ConfigError, RateLimited

FLAG: Final = "--api-key-file"
_MAX_FILE_BYTES: Final = 1 << 20
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_PerMinute = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
_Priority = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class TenantRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant as the file has it. A limit that is None is none; `adapters` None are all.

    `priority` is that of all its requests; None leaves it to them.
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
    """So many a minute: full at first, refilled all the time, and overdrawn by what was not known before."""

    def __init__(self, what: str, per_minute: int, clock: Callable[[], float]) -> None:
        self._what = what
        self._most = per_minute
        self._level = float(per_minute)
        self._clock = clock
        self._filled_at = clock()

    def check(self) -> None:
        """Raise `RateLimited` unless one is left."""
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
    """Whom a request is of. Tokens count once they are known, so that an answer may overdraw them."""

    def __init__(self, rules: TenantRules, clock: Callable[[], float] = time.monotonic) -> None:
        self.rules = rules
        limits = (("requests", rules.requests_per_minute), ("tokens", rules.tokens_per_minute))
        self._requests, self._tokens = (
            None if most is None else _Bucket(what, most, clock) for what, most in limits
        )

    def admit(self) -> None:
        """Count a request; `RateLimited` where one more is beyond a limit."""
        for bucket in (self._requests, self._tokens):
            if bucket is not None:
                bucket.check()
        if self._requests is not None:
            self._requests.take(1)

    def spend(self, num_tokens: int) -> None:
        """Count tokens of a prompt or an answer."""
        if self._tokens is not None:
            self._tokens.take(num_tokens)

    def may_use(self, adapter: str) -> bool:
        """Whether its requests may name this LoRA adapter."""
        return self.rules.adapters is None or adapter in self.rules.adapters

    def salted(self, cache_salt: str | None) -> str:
        """The salt of a prompt of this tenant, which no other's is."""
        return hashlib.sha256(f"{self.rules.name}\n{cache_salt or ''}".encode()).hexdigest()


class ApiKeys:
    """The API keys of a server: those of `--api-key`, and those of a file, which have tenants.

    With `salts` a key that no file names is a tenant too. False when there are no keys.
    """

    def __init__(
        self, keys: Iterable[str] = (), file: Path | None = None, *, salts: bool = False
    ) -> None:
        self._keys = KeyRing(keys)
        self._tenants = Tenants() if file is None else read_tenants(file)
        self.salts = salts
        if salts and not self:
            raise ConfigError(f"--salt-by-key needs --api-key or {FLAG}")

    def __bool__(self) -> bool:
        return bool(self._keys) or bool(self._tenants)

    @property
    def has_priorities(self) -> bool:
        """Whether requests of some tenant have a priority of its own."""
        return self._tenants.has_priorities

    def is_valid(self, key: bytes) -> bool:
        """Whether `key` is one of them."""
        is_plain, tenant = self._keys.is_valid(key), self._tenants.find(key)
        return is_plain or tenant is not None

    def tenant_of(self, key: bytes) -> Tenant | None:
        """Whose key it is; None for one that sets nobody apart."""
        found = self._tenants.find(key)
        if found is None and self.salts and self._keys.is_valid(key):
            return Tenant(TenantRules(name=f"key-{hashlib.sha256(key).hexdigest()[:32]}"))
        return found


class Tenants:
    """The tenants of a file, by their keys. False when there are none."""

    def __init__(self, rules: Iterable[TenantRules] = ()) -> None:
        self._tenants = [(KeyRing(one.keys), Tenant(one)) for one in rules]

    def find(self, key: bytes) -> Tenant | None:
        """Whose key it is. All are compared, as in `KeyRing`."""
        found = [tenant for keys, tenant in self._tenants if keys.is_valid(key)]
        return found[0] if found else None

    def __bool__(self) -> bool:
        return bool(self._tenants)

    @property
    def has_priorities(self) -> bool:
        """See `ApiKeys`."""
        return any(one.rules.priority is not None for _, one in self._tenants)


@cache
def read_tenants(path: Path) -> Tenants:
    """The file's, once in a process: all its servers count together. `ConfigError` says what is wrong with it."""
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
        raise ConfigError(f"{FLAG} {path}: tenants must hold at least one")
    for what, values in (
        ("name", [one.name for one in rules]),
        ("key", [key for one in rules for key in one.keys]),
    ):
        if len(set(values)) != len(values):
            raise ConfigError(f"{FLAG} {path}: a {what} is there twice")
    for one in rules:
        if not one.keys or not all(key.strip() == key and key for key in one.keys):
            raise ConfigError(
                f"{FLAG} {path}: keys of {one.name} must be one or more texts without spaces around them"
            )
