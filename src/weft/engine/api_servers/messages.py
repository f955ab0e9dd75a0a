"""What crosses between API servers and their supervisor: fixed schemas, as between front and engine."""

from typing import Any

import msgspec

from weft.core.config import EngineConfig
from weft.core.types import LoRARequest
from weft.engine.api_servers.faults import Fault
from weft.engine.messages import Abort, Add, Beat, ReleaseRemote

# -- from an API server ---------------------------------------------------------------------------


class Forward(msgspec.Struct, frozen=True, tag=True):
    """A call of `EngineClient`, for all engines; answered by `Answer`, or by `Item`s and then that."""

    call_id: int
    method: str
    arguments: list[Any] = []
    named: dict[str, Any] = {}


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for the answer any more."""

    call_id: int


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """All is read and imported; it listens once it gets `Open`."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """It listens."""

    grpc_port: int | None


class Family(msgspec.Struct, frozen=True, array_like=True):
    """A metric as a registry has it; each sample is its name, labels and value."""

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


class Collected(msgspec.Struct, frozen=True, tag=True):
    """Its own series."""

    call_id: int
    families: list[Family]


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """A `State` was taken in."""

    call_id: int


FromServer = (
    Add
    | Abort
    | ReleaseRemote
    | Forward
    | Cancel
    | Prepared
    | Opened
    | Collected
    | Acknowledged
    | Beat
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
    """What requests may count on from now on."""

    call_id: int
    config: EngineConfig
    adapters: list[LoRARequest]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A request has failed outside of the engine's steps, or did not get there."""

    engine_id: str
    fault: Fault


class Aborted(msgspec.Struct, frozen=True, tag=True):
    """A request was ended by a call that came by another way."""

    engine_id: str


class Item(msgspec.Struct, frozen=True, tag=True):
    """One of several values that a call yields."""

    call_id: int
    value: msgspec.Raw


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The end of a call."""

    call_id: int
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: Fault | None = None


class Collect(msgspec.Struct, frozen=True, tag=True):
    """Somebody wants to see the series of all."""

    call_id: int


class Open(msgspec.Struct, frozen=True, tag=True):
    """Listen."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Refuse new requests, let open ones finish, and end; the second one ends at once."""


class EnginesStopped(msgspec.Struct, frozen=True, tag=True):
    """No engine is there any more, nor will be."""

    message: str


ToServer = (
    Start
    | State
    | Refused
    | Aborted
    | Item
    | Answer
    | Collect
    | Open
    | Drain
    | EnginesStopped
    | Beat
)
