"""`LeaderElector`: decides which of a pool's pickers is the leader: the picker that holds a Lease object.

Compatible with client-go, so that Weft's and llm-d's pickers can compete for one Lease. A candidate measures with its
own clock how long the Lease was unchanged, and ignores the times in the Lease, because clocks of machines differ.
"""

import asyncio
import logging
import random
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import structs

from weft.epp.kubernetes.api import CONFLICT, FORESEEN, NOT_FOUND, ApiFailure, ApiServer, connect
from weft.epp.kubernetes.leader_service import LeaderService, own_pod

_log = logging.getLogger(__name__)

_MAX_BYTES: Final = 256 * 2**10
_VERSION: Final = "coordination.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Time limits of the election, with the defaults of controller-runtime. A leader stops well before another
    candidate may take over.
    """

    duration_s: int = 15  # a Lease that did not change for this long is free
    renew_deadline_s: float = 10.0  # a holder that could not renew for this long stops leading
    retry_s: float = 2.0


USUAL: Final = LeaseTimes()


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The holder of a Lease, the time of its last renewal, and its duration."""

    holder_identity: str | None = None
    lease_duration_seconds: Annotated[int, msgspec.Meta(ge=0, le=86400)] | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct, frozen=True):
    """A Lease object. Its metadata is written back unchanged."""

    metadata: dict[str, Any]
    spec: _LeaseSpec = _LeaseSpec()


class LeaderElector:
    """A candidate for leadership. `run` runs as a task; `close` releases the Lease."""

    def __init__(
        self,
        namespace: str | None,
        pool_name: str,
        times: LeaseTimes = USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.service: LeaderService | None = None  # leads to the leader, if set
        self._api: ApiServer = connect(namespace)
        # The same name as llm-d's picker uses, so that no two pickers lead one pool.
        self._name = f"epp-{self._api.namespace}-{pool_name}.llm-d.ai"
        self._path = f"apis/{_VERSION}/namespaces/{self._api.namespace}/leases"
        self._identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        self._times = times
        self._clock = clock
        self._seen: _LeaseSpec | None = None
        self._seen_at = 0.0
        # The Lease as this picker last wrote it; None while another picker holds it.
        self._held: _Lease | None = None
        self._renewed_at = 0.0
        self._was_leader = False  # state of the leadership when it was last logged
        self._has_failed = False  # True once a failure was logged
        self._is_released = False
        self._writing = asyncio.Lock()

    def serve_by(self, name: str, port: int) -> None:
        """Has the Service `name` lead to this picker, at this port, while it is the leader. Raises `ConfigError`."""
        self.service = LeaderService(self._api, name, own_pod(), port)

    @property
    def is_leader(self) -> bool:
        """True while this candidate holds the Lease and no other candidate can have taken it."""
        return (
            self._held is not None
            and self._clock() - self._renewed_at < self._times.renew_deadline_s
        )

    async def run(self) -> None:
        """Tries to acquire or renew the Lease repeatedly, until the task is cancelled."""
        while True:
            await self.try_acquire_or_renew()
            await asyncio.sleep(self._times.retry_s * random.uniform(1.0, 1.2))

    async def try_acquire_or_renew(self) -> None:
        """Acquires the Lease if it is free, or renews it if this candidate holds it. Failures are logged."""
        try:
            async with asyncio.timeout(self._times.renew_deadline_s / 2), self._writing:
                await self._attempt()
                if self.service is not None and self.is_leader:
                    await self.service.lead_here()
            self._has_failed = False
        except Exception as error:  # noqa: BLE001 - whatever it was, the next attempt may do better
            if not self._has_failed:
                said = str(error) or type(error).__name__
                exc_info = None if isinstance(error, FORESEEN) else error
                _log.warning("Lease %s: %s", self._name, said, exc_info=exc_info)
            self._has_failed = True
        if self.is_leader is not self._was_leader:
            self._was_leader = self.is_leader
            _log.info("%s the Lease %s", "leading by" if self._was_leader else "lost", self._name)

    async def release(self) -> None:
        """Stops competing and releases the Lease, so that another candidate can acquire it at once."""
        self._is_released = True
        try:
            async with asyncio.timeout(self._times.retry_s), self._writing:
                lease, self._held = self._held, None
                if lease is not None:
                    spec = structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1)
                    await self._write(structs.replace(lease, spec=spec))
        except FORESEEN as error:
            _log.warning("Lease %s could not be released: %r", self._name, error)

    async def close(self) -> None:
        """Releases the Lease and closes the connections. The task of `run` must have ended."""
        await self.release()
        await self._api.close()

    async def _attempt(self) -> None:
        if self._is_released:
            return
        # Taken before the request is sent: other pickers count from the time of the write.
        started = self._clock()
        try:
            found = await self._api.get(f"{self._path}/{self._name}", {}, _MAX_BYTES)
            lease = msgspec.json.decode(found, type=_Lease)
        except ApiFailure as error:
            if error.status != NOT_FOUND:
                raise
            lease = None
        spec = _LeaseSpec() if lease is None else lease.spec
        if spec != self._seen:
            self._seen, self._seen_at = spec, self._clock()
        holder = spec.holder_identity
        if holder and holder != self._identity:
            self._held = None
            if self._clock() - self._seen_at < (spec.lease_duration_seconds or 0):
                return
        metadata = {"name": self._name} if lease is None else lease.metadata
        try:
            self._held = await self._write(_Lease(metadata, self._ours(spec)))
        except ApiFailure as error:
            if error.status == CONFLICT:
                self._held = None  # another picker wrote first; the next attempt reads its name
                return
            raise
        self._seen, self._seen_at = self._held.spec, self._clock()
        self._renewed_at = started

    def _ours(self, former: _LeaseSpec) -> _LeaseSpec:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_renewed = former.holder_identity == self._identity
        return _LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._times.duration_s,
            acquire_time=former.acquire_time if is_renewed else now,
            renew_time=now,
            lease_transitions=(former.lease_transitions or 0) + (not is_renewed),
        )

    async def _write(self, lease: _Lease) -> _Lease:
        """Creates the Lease, or replaces the version that was read. Raises `ApiFailure` with status 409 if the Lease
        has changed since.
        """
        is_new = "resourceVersion" not in lease.metadata
        body = msgspec.json.encode(
            {"apiVersion": _VERSION, "kind": "Lease", **msgspec.to_builtins(lease)}
        )
        path = self._path if is_new else f"{self._path}/{self._name}"
        written = await self._api.write("POST" if is_new else "PUT", path, body, _MAX_BYTES)
        return msgspec.json.decode(written, type=_Lease)
