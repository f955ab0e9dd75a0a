"""Messages between API servers and their supervisor, with fixed schemas like the messages between front and engine."""

from typing import Any

import msgspec

from weft.core.config.engine import EngineConfig
from weft.core.values.types import LoRARequest
from weft.engine.api_servers.faults import Fault
from weft.engine.ipc.messages import Abort, Add, ReleaseRemote

# -- from an API server ---------------------------------------------------------------------------


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The API server has all outputs of a request."""

    engine_id: str


class Forward(msgspec.Struct, frozen=True, tag=True):
    """A call of `EngineClient` for all engines.

    An `Answer` ends the call; calls that yield values send `Item`s before.
    """

    call_id: int
    method: str
    arguments: list[Any] = []
    named: dict[str, Any] = {}


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Cancels a call: its caller no longer waits for the answer."""

    call_id: int


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The API server has loaded all modules and files; it listens as soon as it gets `Open`."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The API server now listens for requests."""

    grpc_port: int | None


class Family(msgspec.Struct, frozen=True, array_like=True):
    """A metric family of a registry; each sample has a name, labels and a value."""

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


class Collected(msgspec.Struct, frozen=True, tag=True):
    """The metric series of this API server."""

    call_id: int
    families: list[Family]


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """The API server has applied a `State`."""

    call_id: int


FromServer = (
    Add
    | Abort
    | Finished
    | ReleaseRemote
    | Forward
    | Cancel
    | Prepared
    | Opened
    | Collected
    | Acknowledged
)

# -- to an API server -----------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The first message to an API server. `options` are the options of `weft serve`, as plain values. All API servers
    of a server have the same `store_name`, for stores in memory.
    """

    name: str
    directory: str
    options: dict[str, Any]
    config: EngineConfig
    http_port: int | None
    grpc_port: int | None
    store_name: str


class State(msgspec.Struct, frozen=True, tag=True):
    """Configuration and adapters that requests use from now on."""

    call_id: int
    config: EngineConfig
    adapters: list[LoRARequest]


class RequestFailed(msgspec.Struct, frozen=True, tag=True):
    """A request failed outside the engine's steps, or reached no engine."""

    engine_id: str
    fault: Fault


class Aborted(msgspec.Struct, frozen=True, tag=True):
    """A call of another process ended a request."""

    engine_id: str


class Item(msgspec.Struct, frozen=True, tag=True):
    """One of the values that a call yields."""

    call_id: int
    value: msgspec.Raw


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The end of a call, with its result or its fault."""

    call_id: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: Fault | None = None


class Collect(msgspec.Struct, frozen=True, tag=True):
    """Requests the metric series of the API server's process."""

    call_id: int


class Open(msgspec.Struct, frozen=True, tag=True):
    """The API server must now listen for requests."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """The API server must refuse new requests, finish running ones, and end. A second `Drain` ends it at once."""


class EnginesStopped(msgspec.Struct, frozen=True, tag=True):
    """All engines have stopped for good."""

    message: str


ToServer = (
    Start
    | State
    | RequestFailed
    | Aborted
    | Item
    | Answer
    | Collect
    | Open
    | Drain
    | EnginesStopped
)
