"""Keeps the endpoints of the pool equal to the pods that an InferencePool or a label selector selects."""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from weft.core.errors import ConfigError
from weft.epp.kubernetes.api import ApiServer, connect
from weft.epp.kubernetes.manifests import (
    POOL_TYPES,
    InferencePool,
    Members,
    Pod,
    check_selector,
    parse_ports,
)
from weft.epp.kubernetes.objectives import FollowedObjects
from weft.epp.kubernetes.reflector import USUAL, Kind, Pace, Reflector
from weft.epp.pool.objects import Objects
from weft.epp.pool.pool import Pool

_log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SOURCE: Final = "kubernetes"
_FIRST_SYNC_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The pods to follow: the name of an InferencePool, or a label selector."""

    pool_name: str = ""
    pool_group: str = "inference.networking.k8s.io"
    namespace: str | None = None  # None: the picker's own namespace
    selector: str | None = None
    target_ports: str = ""

    def __post_init__(self) -> None:
        for flag, name in (("--pool-name", self.pool_name), ("--pool-namespace", self.namespace)):
            if name and not _NAME.fullmatch(name):
                raise ConfigError(f"{flag} {name!r}: must be a Kubernetes name: a-z, 0-9 and -")

    def members(self) -> Members | None:
        """Returns the members of the pool if a label selector defines them; None with an InferencePool. Raises
        `ConfigError`.
        """
        if self.selector is None:
            return None
        check_selector(self.selector)
        return Members(self.selector, parse_ports(self.target_ports))

    def kind(self, namespace: str) -> Kind[InferencePool]:
        """Returns the kind of object to follow: the InferencePool with the configured name. Raises `ConfigError`."""
        if self.pool_group not in POOL_TYPES:
            raise ConfigError(
                f"--pool-group {self.pool_group!r}: must be one of {', '.join(POOL_TYPES)}"
            )
        version, type_ = POOL_TYPES[self.pool_group]
        return Kind(
            path=f"apis/{self.pool_group}/{version}/namespaces/{namespace}/inferencepools",
            type=type_,
            params={"fieldSelector": f"metadata.name={self.pool_name}"},
        )


class KubernetesDiscovery:
    """Discovery of endpoints in Kubernetes. `start` and `close` manage its connections and tasks on one event loop."""

    def __init__(
        self,
        wanted: Wanted,
        pool: Pool,
        pace: Pace = USUAL,
        take_objects: Callable[[Objects], None] | None = None,
    ) -> None:
        members = wanted.members()
        self._wanted = wanted
        self._pool = pool
        self._pace = pace
        self._api: ApiServer = connect(wanted.namespace)
        self._key = f"{self._api.namespace}/{wanted.pool_name}"
        self._tasks: list[asyncio.Task[None]] = []
        self._synced = asyncio.Event()
        self._members: Members | None = None
        self._is_missed = False  # True once a missing InferencePool was logged
        self._pods: Reflector[Pod] | None = None
        self._pods_task: asyncio.Task[None] | None = None
        self._pools: Reflector[InferencePool] | None = None
        self._static = members
        if members is None:
            kind = wanted.kind(self._api.namespace)
            self._pools = Reflector(self._api, kind, self._pool_changed, pace)
        self._objects: FollowedObjects | None = None
        if take_objects is not None:
            named = (wanted.pool_name, wanted.pool_group)
            self._objects = FollowedObjects(self._api, named, take_objects, pace)

    @property
    def has_synced(self) -> bool:
        """True once the pods of the pool have been listed."""
        return self._synced.is_set()

    async def start(self) -> None:
        """Starts the tasks and waits a short time for the first pods, so that a picker seldom starts without
        endpoints.
        """
        self._follow(self._static)
        if self._pools is not None:
            self._tasks.append(asyncio.create_task(self._pools.run(), name="picker InferencePool"))
        if self._objects is not None:
            for each in self._objects.reflectors:
                self._tasks.append(asyncio.create_task(each.run(), name="picker objects"))
        try:
            async with asyncio.timeout(_FIRST_SYNC_S):
                await self._synced.wait()
        except TimeoutError:
            _log.warning("no pods are known yet; the picker is not ready until there are pods")

    async def close(self) -> None:
        """Ends all tasks and closes the connections."""
        tasks = [*self._tasks, *([self._pods_task] if self._pods_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._api.close()

    def _pool_changed(self) -> None:
        assert self._pools is not None
        found = self._pools.objects.get(self._key)
        members = None if found is None else found.members()
        if members is None and not self._is_missed:
            _log.warning(
                "the InferencePool %s of the API group %s does not exist",
                self._key,
                self._wanted.pool_group,
            )
        self._is_missed = members is None
        if members != self._members:
            self._follow(members)

    def _follow(self, members: Members | None) -> None:
        """Switches to the pods of other members. The known pods remain until the new ones are listed."""
        former, self._members = self._members, members
        if members is not None:
            ports = ",".join(map(str, members.ports))
            _log.info("pods of %s at ports %s, %s", members.selector, ports, members.app_protocol)
        if members is not None and former is not None and members.selector == former.selector:
            self._pods_changed()
            return
        if self._pods_task is not None:
            self._pods_task.cancel()
        self._pods = self._pods_task = None
        if members is None:
            self._pool.replace(_SOURCE, ())
            return
        kind = Kind(
            path=f"api/v1/namespaces/{self._api.namespace}/pods",
            type=Pod,
            params={"labelSelector": members.selector},
        )
        pods = Reflector(self._api, kind, lambda: self._pods_changed(pods), self._pace)
        self._pods = pods
        self._pods_task = asyncio.create_task(pods.run(), name="picker pods")

    def _pods_changed(self, pods: Reflector[Pod] | None = None) -> None:
        """Replaces the pool's endpoints by the ready pods. Pods of a former selector are ignored."""
        current = self._pods
        if current is None or self._members is None or not current.has_listed:
            return
        if pods is not None and pods is not current:
            return
        ports = self._members.ports
        ready = [pod for pod in current.objects.values() if pod.is_ready]
        specs = [spec for pod in ready for spec in pod.endpoints(ports)]
        self._pool.replace(_SOURCE, [(spec, spec.address) for spec in specs])
        self._synced.set()
