"""`grpc.health.v1`: what a gateway and a supervisor check before they send work."""

from collections.abc import Callable
from typing import Any, Final

from grpc import GenericRpcHandler

from weft.epp.server.ext_proc import SERVICE
from weft.wire.health import Health

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
_OWN: Final = ("", SERVICE)


class PickerHealth:
    """Live while the process answers; serving until it drains; ready while there is where to send.

    A picker without endpoints still serves: its 503 says more than a gateway's own error would. Probes
    of charts have names of their own, such as `inference-extension`; they all see whether it serves.
    """

    def __init__(
        self, is_ready: Callable[[], bool], may_serve: Callable[[], bool] = lambda: True
    ) -> None:
        self._is_ready = is_ready
        self._may_serve = may_serve
        self._is_draining = False
        self._reported = Health((LIVENESS, READINESS, *_OWN), knows_all=True)

    @property
    def is_ready(self) -> bool:
        """Whether work should come here."""
        return self._serves and self._is_ready()

    @property
    def _serves(self) -> bool:
        return not self._is_draining and self._may_serve()

    def handler(self) -> "GenericRpcHandler[Any, Any]":
        """The service's calls; several servers may answer them."""
        return self._reported.handler()

    def start(self) -> None:
        """The first state of every name."""
        self._reported.set_serving(True, (LIVENESS,))
        self._reported.set_serving(self._serves, _OWN)
        self.refresh()

    def refresh(self) -> None:
        """Follow the director."""
        if self.is_ready is not self._reported.is_serving(READINESS):
            self._reported.set_serving(self.is_ready, (READINESS,))
        if self._serves is not self._reported.is_serving(_OWN[0]):
            self._reported.set_serving(self._serves, _OWN)

    def drain(self) -> None:
        """No more work, please; what is open goes on."""
        self._is_draining = True
        self.refresh()
