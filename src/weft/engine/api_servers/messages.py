"""Messages between API servers and their supervisor: fixed schemas, as between front and engine."""

from typing import Any

import msgspec

from weft.core.config.engine import EngineConfig
from weft.core.values.types import LoRARequest
from weft.engine.api_servers.faults import Fault
from weft.engine.ipc.messages import Abort, Add, ReleaseRemote

# -- from an API server ---------------------------------------------------------------------------


class Forward(msgspec.Struct, frozen=True, tag=True):
    """A call of `EngineClient`, for all engines; answered by an `Answer`, after `Item`s if the call yields values."""

    call_id: int
    method: str
    arguments: list[Any] = []
    named: dict[str, Any] = {}


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """The caller no longer waits for the answer."""

    call_id: int


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The API server has read and imported everything; it listens once it gets `Open`."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The API server listens."""

    grpc_port: int | None


class Family(msgspec.Struct, frozen=True, array_like=True):
    """A metric family of a registry; each sample is its name, labels and value."""

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


class Collected(msgspec.Struct, frozen=True, tag=True):
    """The series of this API server."""

    call_id: int
    families: list[Family]


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """A `State` was applied."""

    call_id: int


FromServer = (
    Add | Abort | ReleaseRemote | Forward | Cancel | Prepared | Opened | Collected | Acknowledged
)

# -- to an API server -----------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The first message. `options` are those of `weft serve`, as plain values."""

    name: str
    directory: str
    options: dict[str, Any]
    config: EngineConfig
    http_port: int | None
    grpc_port: int | None


class State(msgspec.Struct, frozen=True, tag=True):
    """Configuration and adapters that requests can use from now on."""

    call_id: int
    config: EngineConfig
    adapters: list[LoRARequest]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A request has failed outside the engine's steps, or did not reach an engine."""

    engine_id: str
    fault: Fault


class Aborted(msgspec.Struct, frozen=True, tag=True):
    """A request was ended by a call that another process made."""

    engine_id: str


class Item(msgspec.Struct, frozen=True, tag=True):
    """One of several values that a call yields."""

    call_id: int
    value: msgspec.Raw


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The end of a call: its value or its fault."""

    call_id: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: Fault | None = None


class Collect(msgspec.Struct, frozen=True, tag=True):
    """Requests the series of the API server's process."""

    call_id: int


class Open(msgspec.Struct, frozen=True, tag=True):
    """The API server must listen now."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Refuse new requests, finish open ones, then end; a second `Drain` ends at once."""


class EnginesStopped(msgspec.Struct, frozen=True, tag=True):
    """All engines have ended for good."""

    message: str


ToServer = (
    Start | State | Refused | Aborted | Item | Answer | Collect | Open | Drain | EnginesStopped
)
