"""`grpc.health.v1`: health checks for gateways and supervisors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from grpc import GenericRpcHandler

from weft.epp.server.ext_proc import SERVICE
from weft.wire.health import Health

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"


@dataclass(frozen=True, slots=True)
class Standing:
    """Conditions, besides endpoints, that decide whether a picker should get requests."""

    may_serve: Callable[[], bool] = lambda: True
    is_leader: Callable[[], bool] = lambda: True  # True if this picker leads those of its pool


ALONE: Final = Standing()


class PickerHealth:
    """Live while the process answers; serving until the drain; ready while there are endpoints.

    If pickers elect a leader, only the leader is ready and serves ext_proc. A picker without endpoints still serves,
    because its 503 is more helpful than the gateway's error. Probes of Helm charts use service names such as
    `inference-extension`; all of them report whether the picker serves.
    """

    def __init__(self, is_ready: Callable[[], bool], standing: Standing = ALONE) -> None:
        self._is_ready = is_ready
        self._standing = standing
        self._is_draining = False
        self._reported = Health((LIVENESS, READINESS, "", SERVICE), knows_all=True)

    @property
    def is_ready(self) -> bool:
        """True if the picker should get requests."""
        return self._serves and self._standing.is_leader() and self._is_ready()

    @property
    def _serves(self) -> bool:
        return not self._is_draining and self._standing.may_serve()

    def handler(self) -> "GenericRpcHandler[Any, Any]":
        """The service's calls; several servers may answer them."""
        return self._reported.handler()

    def start(self) -> None:
        """Sets the first state of every service."""
        self._reported.set_serving(True, (LIVENESS,))
        self.refresh()

    def refresh(self) -> None:
        """Follow the director."""
        serves = self._serves
        states = {
            "": serves,
            SERVICE: serves and self._standing.is_leader(),
            READINESS: self.is_ready,
        }
        for name, state in states.items():
            if state is not self._reported.is_serving(name):
                self._reported.set_serving(state, (name,))

    def drain(self) -> None:
        """Turns readiness off; open streams continue."""
        self._is_draining = True
        self.refresh()
