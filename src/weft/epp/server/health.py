"""`grpc.health.v1`: what a gateway and a supervisor ask before they send work."""

from collections.abc import Callable
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio  # type: ignore[attr-defined]  # untyped

from weft.epp.wire.ext_proc import SERVICE

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
_OWN: Final = ("", SERVICE)
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """Live while the process answers; serving until it drains; ready while there is where to send.

    A picker without endpoints still serves: its 503 says more than a gateway's own error would.
    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._is_draining = False
        self._was_ready: bool | None = None
        self._servicer = health_aio.HealthServicer()

    @property
    def is_ready(self) -> bool:
        """Whether work should come here."""
        return not self._is_draining and self._is_ready()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer on this server too."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def start(self) -> None:
        """The first state of every name."""
        for name in (LIVENESS, *_OWN):
            await self._servicer.set(name, _SERVING)
        await self.refresh()

    async def refresh(self) -> None:
        """Follow the director."""
        is_ready = self.is_ready
        if is_ready is not self._was_ready:
            self._was_ready = is_ready
            await self._servicer.set(READINESS, _SERVING if is_ready else _NOT_SERVING)

    async def drain(self) -> None:
        """No more work, please; what is open goes on."""
        self._is_draining = True
        for name in _OWN:
            await self._servicer.set(name, _NOT_SERVING)
        await self.refresh()
