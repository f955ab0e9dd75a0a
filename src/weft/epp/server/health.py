"""Health checks of the picker (`grpc.health.v1`) for gateways and supervisors."""

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
    """Conditions besides the endpoints that decide whether a picker should get requests."""

    may_serve: Callable[[], bool] = lambda: True
    # True if gateways may call this picker: standbys may be called if a Service leads to the leader alone
    may_be_called: Callable[[], bool] = lambda: True


ALONE: Final = Standing()


class PickerHealth:
    """Health of the picker: live while the process answers, serving until it drains, ready while there are endpoints.

    If pickers elect a leader, only the leader is ready and serves ext_proc, unless a Service leads to the leader. A
    picker without endpoints still serves, because its error 503 is more helpful than the gateway's error. Probes of
    Helm charts use service names such as `inference-extension`; all of them report whether the picker serves.
    """

    def __init__(self, is_ready: Callable[[], bool], standing: Standing = ALONE) -> None:
        self._is_ready = is_ready
        self._standing = standing
        self._is_draining = False
        self._reported = Health((LIVENESS, READINESS, "", SERVICE), knows_all=True)

    @property
    def is_ready(self) -> bool:
        """True if the picker should get requests."""
        return self._serves and self._standing.may_be_called() and self._is_ready()

    @property
    def _serves(self) -> bool:
        return not self._is_draining and self._standing.may_serve()

    def handler(self) -> "GenericRpcHandler[Any, Any]":
        """Returns the handler of the health service's calls. Several servers may share it."""
        return self._reported.handler()

    def start(self) -> None:
        """Sets the first status of every service."""
        self._reported.set_serving(True, (LIVENESS,))
        self.refresh()

    def refresh(self) -> None:
        """Updates the status of every service from the director's state."""
        serves = self._serves
        states = {
            "": serves,
            SERVICE: serves and self._standing.may_be_called(),
            READINESS: self.is_ready,
        }
        for name, state in states.items():
            if state is not self._reported.is_serving(name):
                self._reported.set_serving(state, (name,))

    def drain(self) -> None:
        """Sets the status to not ready. Open streams continue."""
        self._is_draining = True
        self.refresh()
