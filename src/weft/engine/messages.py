"""What crosses between the front (tokens in, text out) and the engine thread or process.

One fixed schema for both: `LocalClient` passes these values by reference, `ProcessClient` as
msgpack. Nothing here is ever pickled.
"""

import logging
from typing import BinaryIO

import msgspec

from weft.core.config import EngineConfig
from weft.core.stats import StepStats
from weft.core.types import EngineLoad, KvEventBatch, Request, SequenceOutput

MAX_FRAME_BYTES = 256 << 20


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """All that an engine in a process of its own needs to know; one length-prefixed msgpack frame."""

    directory: str
    config: EngineConfig
    log_level: int = logging.INFO

    def to_frame(self) -> bytes:
        """Length in 8 bytes, then the value."""
        body = msgspec.msgpack.encode(self)
        return len(body).to_bytes(8, "big") + body

    @classmethod
    def read(cls, stream: BinaryIO) -> "Launch | None":
        """The frame at the start of `stream`; None where it ends without one."""
        size = int.from_bytes(stream.read(8), "big")
        if size == 0:
            return None
        return msgspec.msgpack.decode(stream.read(size), type=cls)


class Add(msgspec.Struct, frozen=True, tag=True):
    """Queue a request; the engine makes `params.n` sequences of it."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End whole requests, or one answer of a request when `index` is given. Unknown ids are no-ops.

    With `is_silent` there is no final output: the front has already ended the answer itself.
    """

    engine_ids: list[str]
    index: int | None = None
    is_silent: bool = False


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Stop scheduling; answered when the mode's condition holds (see `PauseMode`).

    From level 1 on the engine then sleeps: weights and KV pool leave its memory.
    """

    call_id: int
    mode: str
    clear_cache: bool
    sleep_level: int = 0


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Schedule again; refused while the engine sleeps."""

    call_id: int


class Wake(msgspec.Struct, frozen=True, tag=True):
    """Bring back what `tags` (`SleepTag`) name, and schedule again once all of it is there.

    The answer is whether it does.
    """

    call_id: int
    tags: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Drop cached blocks; the answer is whether it was done."""

    call_id: int
    reset_running_requests: bool


class AddLora(msgspec.Struct, frozen=True, tag=True):
    """Load the adapter in the directory `path`, under an id that no load has had before."""

    call_id: int
    lora_id: int
    path: str


class RemoveLora(msgspec.Struct, frozen=True, tag=True):
    """Forget a loaded adapter; the front sends it when no open request has it."""

    lora_id: int


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Prove that the engine's loop turns; answered with its load."""

    call_id: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Leave the loop when open requests are done, or after `timeout_s`: the rest then end with "abort"."""

    timeout_s: float


Call = Pause | Resume | Wake | ResetPrefixCache | AddLora | Ping
Command = Call | Add | Abort | RemoveLora | Stop


class StepOutput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What one step emits, and the load after it."""

    outputs: list[SequenceOutput]
    load: EngineLoad
    stats: StepStats = StepStats()
    kv_events: KvEventBatch | None = None


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The answer to a `Call`; `load` comes with the answer to a ping.

    `refusal` is the caller's mistake in one sentence, `is_missing` where nothing is there.
    """

    call_id: int
    is_done: bool = True
    load: EngineLoad | None = None
    refusal: str | None = None
    is_missing: bool = False


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and the loop turns."""

    load: EngineLoad


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot go on; `message` is one line, `is_config` where it is the user's mistake."""

    message: str
    is_config: bool = False


Event = StepOutput | Reply | Ready | Failed
