"""A server under attack: its own process, what is sent to it, and what its probe says of that."""

import http.client
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import grpc

from tests.attacks.bodies import Attack
from tests.attacks.messages import CALLS, MessageAttack
from tests.attacks.probe import ADDRESS
from tests.cli.running import Server, running

PROBED = (sys.executable, "-m", "tests.attacks.probe")
CONTROL_KEY = "for-control"
_TIMEOUT_S = 120
_ENDLESS = ("SubscribeKvEvents",)
_WATCH_S = 1
_UNBOUNDED = (("grpc.max_send_message_length", -1),)


@dataclass(frozen=True, slots=True)
class Reading:
    """Since the last one: the longest pause of the loop, and by how much memory grew at its height."""

    pause_s: float
    grown_bytes: int


class Probed:
    """A process with a probe on its event loop."""

    def __init__(self, asker: Connection) -> None:
        self._asker = asker

    def read(self) -> Reading:
        """What was measured since the last reading."""
        self._asker.send("read")
        return Reading(*self._asker.recv())


class Target(Probed):
    """A probed server."""

    def __init__(self, server: Server, asker: Connection) -> None:
        super().__init__(asker)
        self.server = server
        self._place = server.http.removeprefix("http://")

    def send(self, attack: Attack | MessageAttack, body: bytes) -> int | str:
        """How it ends: HTTP's status, or the name of gRPC's."""
        if isinstance(attack, Attack):
            return self.post(attack.path, body)[0]
        return self.call(attack.method, body)

    def is_well(self) -> bool:
        """Whether both servers answer."""
        with urllib.request.urlopen(f"{self.server.http}/health", timeout=_TIMEOUT_S) as answer:
            return answer.status == 200 and self.call("HealthCheck", b"") == "OK"

    def call(self, method: str, body: bytes) -> str:
        """The name of the status that a call ends with."""
        timeout_s = _WATCH_S if method in _ENDLESS else _TIMEOUT_S
        with grpc.insecure_channel(self.server.address, options=_UNBOUNDED) as channel:
            try:
                for _ in channel.unary_stream(CALLS[method].path)(body, timeout=timeout_s):
                    pass
            except grpc.RpcError as error:
                return error.code().name
        return "OK"

    def post(self, path: str, body: bytes, kind: str = "application/json") -> tuple[int, bytes]:
        """Status and body of the answer."""
        connection = http.client.HTTPConnection(self._place, timeout=_TIMEOUT_S)
        try:
            headers = {"content-type": kind, "authorization": f"Bearer {CONTROL_KEY}"}
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def target(*argv: str) -> Iterator[Target]:
    """A server until the end of the block."""
    with (
        listening() as (listener, settings),
        running(*argv, "--control-api-key", CONTROL_KEY, program=PROBED, **settings) as server,
        listener.accept() as asker,
    ):
        found = Target(server, asker)
        found.read()
        yield found


@contextmanager
def listening() -> Iterator[tuple[Listener, dict[str, str]]]:
    """Where a probe reports to, and the environment that it learns that from."""
    with tempfile.TemporaryDirectory() as directory:
        address = str(Path(directory, "probe"))
        with Listener(address) as listener:
            yield listener, {ADDRESS: address}
