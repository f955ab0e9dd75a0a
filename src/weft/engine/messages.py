"""What crosses between the front (tokens in, text out) and the engine thread or process.

One fixed schema for both: `LocalClient` passes these values by reference, `ProcessClient` as
msgpack. Nothing here is ever pickled.
"""

import logging
from typing import Any, BinaryIO

import msgspec

from weft.core.config import EngineConfig
from weft.core.kv_transfer import RemotePrompt
from weft.core.log import LogFormat
from weft.core.request_states import RequestStates
from weft.core.stats import StepStats
from weft.core.types import EngineLoad, KvEventBatch, Request, SequenceOutput
from weft.engine.weight_files import PackedWeights

MAX_FRAME_BYTES = 256 << 20


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """All that an engine in a process of its own needs to know; one length-prefixed msgpack frame."""

    directory: str
    config: EngineConfig
    weights: PackedWeights | None = None
    draft_weights: PackedWeights | None = None
    log_level: int = logging.INFO
    log_format: LogFormat = "text"

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


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Whoever sends this is there; between two processes of which each ends what it has of the other in silence."""


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


class _Call(msgspec.Struct, frozen=True):
    """A command that is answered, by a `Reply` with its id."""

    call_id: int


class Pause(_Call, frozen=True, tag=True):
    """Stop scheduling; answered when the mode's condition holds (see `PauseMode`).

    From level 1 on the engine then sleeps: weights and KV pool leave its memory.
    """

    mode: str
    clear_cache: bool
    sleep_level: int = 0


class Resume(_Call, frozen=True, tag=True):
    """Schedule again; refused while the engine sleeps."""


class Wake(_Call, frozen=True, tag=True):
    """Bring back what `tags` (`SleepTag`) name, and schedule again once all of it is there.

    The answer is whether it does.
    """

    tags: list[str]


class ResetPrefixCache(_Call, frozen=True, tag=True):
    """Drop cached blocks; the answer is whether it was done."""

    reset_running_requests: bool


class StartProfile(_Call, frozen=True, tag=True, kw_only=True):
    """Record steps; None is what the configuration says."""

    profile_prefix: str | None = None
    delay_iterations: int | None = None
    max_iterations: int | None = None


class StopProfile(_Call, frozen=True, tag=True):
    """End the recording, if there is one."""


class CallWorker(_Call, frozen=True, tag=True):
    """Call what `weft.engine.worker_calls` has under that name; the answer has its result."""

    method: str


class UseShare(_Call, frozen=True, tag=True):
    """Compute on these CPUs from now on, with so many threads."""

    cpus: list[int]
    num_threads: int


class InitWeightTransfer(_Call, frozen=True, tag=True):
    """Somebody is about to send weights; an update that was open is forgotten."""


class StartWeightUpdate(_Call, frozen=True, tag=True):
    """Begin an update."""


class SentTensor(msgspec.Struct, frozen=True):
    """A tensor of the checkpoint, and where it begins in a segment."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class UpdateWeights(_Call, frozen=True, tag=True):
    """Take these out of a segment of shared memory; or, without any, what the file or directory holds."""

    source: str
    tensors: list[SentTensor] = []


class FinishWeightUpdate(_Call, frozen=True, tag=True):
    """Serve what was sent, all of it, from the next step on.

    One of several engines has its weights in `packed` then; with `is_elsewhere` another has packed them.
    """

    packed: PackedWeights | None = None
    is_elsewhere: bool = False


class AddLora(_Call, frozen=True, tag=True):
    """Load the adapter in the directory `path`, under an id that no load has had before."""

    lora_id: int
    path: str


class ReleaseRemote(msgspec.Struct, frozen=True, tag=True):
    """A prompt that another engine has computed is not needed."""

    source: RemotePrompt


class RemoveLora(msgspec.Struct, frozen=True, tag=True):
    """Forget a loaded adapter; the front sends it when no open request has it."""

    lora_id: int


class Ping(_Call, frozen=True, tag=True):
    """Prove that the engine's loop turns; answered with its load."""


class ListRequests(_Call, frozen=True, tag=True):
    """Answered with the requests that are held, and who has which blocks."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Leave the loop when open requests are done, or after `timeout_s`: the rest then end with "abort"."""

    timeout_s: float


Controlled = (
    Resume
    | Wake
    | ResetPrefixCache
    | StartProfile
    | StopProfile
    | CallWorker
    | UseShare
    | Ping
    | ListRequests
)
Transfer = InitWeightTransfer | StartWeightUpdate | UpdateWeights | FinishWeightUpdate
Call = Pause | AddLora | Controlled | Transfer
Command = Call | Add | Abort | ReleaseRemote | RemoveLora | Stop


class StepOutput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What one step emits, and the load after it."""

    outputs: list[SequenceOutput]
    load: EngineLoad
    stats: StepStats = StepStats()
    kv_events: KvEventBatch | None = None


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The answer to a `Call`; `load` comes with the answer to a ping, `result` with that of a worker, and
    `states` with that to `ListRequests`.

    `refusal` is the caller's mistake in one sentence, `is_missing` where nothing is there.
    """

    call_id: int
    is_done: bool = True
    load: EngineLoad | None = None
    states: RequestStates | None = None
    refusal: str | None = None
    is_missing: bool = False
    result: Any = None


class Loading(msgspec.Struct, frozen=True, tag=True):
    """How far the weights are loaded, in bytes of memory; sent some times a second."""

    num_bytes: int
    all_bytes: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and the loop turns."""

    load: EngineLoad


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot go on; `message` is one line, `is_config` where it is the user's mistake."""

    message: str
    is_config: bool = False


Event = StepOutput | Reply | Loading | Ready | Failed
