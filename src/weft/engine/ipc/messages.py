"""Messages between the front (tokens in, text out) and the engine's thread or process.

Both use one fixed schema: `LocalClient` passes these objects by reference, `ProcessClient` as msgpack. No message is
ever pickled.
"""

import logging
from typing import Any, BinaryIO

import msgspec

from weft.core.config.engine import EngineConfig
from weft.core.observe.log import LogFormat
from weft.core.observe.stats import StepStats
from weft.core.values.engine_snapshots import EngineLoad, RequestStates
from weft.core.values.kv_cache import KvEventBatch
from weft.core.values.kv_transfer import RemotePrompt
from weft.core.values.types import Request, SequenceOutput
from weft.engine.ipc.weight_files import PackedWeights

MAX_FRAME_BYTES = 256 << 20


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of an engine in its own process, sent as one length-prefixed msgpack frame."""

    directory: str
    config: EngineConfig
    weights: PackedWeights | None = None
    draft_weights: PackedWeights | None = None
    log_level: int = logging.INFO
    log_format: LogFormat = "text"

    def to_frame(self) -> bytes:
        """Returns the frame: the length in 8 bytes, then the encoded message."""
        body = msgspec.msgpack.encode(self)
        return len(body).to_bytes(8, "big") + body

    @classmethod
    def read(cls, stream: BinaryIO) -> "Launch | None":
        """Reads a frame from the start of `stream`; None if the stream ends before the frame."""
        size = int.from_bytes(stream.read(8), "big")
        if size == 0:
            return None
        return msgspec.msgpack.decode(stream.read(size), type=cls)


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A heartbeat, which proves that the sender is alive. Each of two processes disconnects a silent peer."""


class Add(msgspec.Struct, frozen=True, tag=True):
    """Queues a request; the engine creates `params.n` sequences for it."""

    request: Request


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Ends a request, or with `index` one answer of a request. Unknown ids have no effect.

    With `is_silent` the engine sends no final output: the front has already ended the answer itself. With `lends` the
    request continues at another engine, and the final output has the transfer parameters of its blocks, if the engine
    can lend them.
    """

    engine_ids: list[str]
    index: int | None = None
    is_silent: bool = False
    lends: bool = False


class _Call(msgspec.Struct, frozen=True):
    """A command that the engine answers with a `Reply` with the same id."""

    call_id: int


class Pause(_Call, frozen=True, tag=True):
    """Restricts scheduling; the engine replies when the mode's condition holds (see `PauseMode`).

    With `level` 1 or more the engine then sleeps: weights and KV pool leave its memory.
    """

    mode: str
    clear_cache: bool
    sleep_level: int = 0


class Resume(_Call, frozen=True, tag=True):
    """Schedules requests again; refused while the engine sleeps."""


class Wake(_Call, frozen=True, tag=True):
    """Restores the parts that `tags` (`SleepTag`) name, and schedules requests again once all parts are present.

    `is_done` in the reply is True if the engine schedules again.
    """

    tags: list[str]


class ResetPrefixCache(_Call, frozen=True, tag=True):
    """Drops cached blocks; `is_done` in the reply is True if they were dropped."""

    reset_running_requests: bool


class ResetTowerOutputs(_Call, frozen=True, tag=True):
    """Drops cached encoder outputs of pictures and recordings."""


class StartProfile(_Call, frozen=True, tag=True, kw_only=True):
    """Records a trace of steps; None stands for the configured value."""

    profile_prefix: str | None = None
    delay_iterations: int | None = None
    max_iterations: int | None = None


class StopProfile(_Call, frozen=True, tag=True):
    """Ends the trace of steps, if one is recorded."""


class CallWorker(_Call, frozen=True, tag=True):
    """Calls a function of `weft.engine.worker_calls` by name; the reply has the function's result."""

    method: str


class UseShare(_Call, frozen=True, tag=True):
    """Makes the engine compute on these CPUs and with this number of threads."""

    cpus: list[int]
    num_threads: int


class InitWeightTransfer(_Call, frozen=True, tag=True):
    """Announces that a sender will send weights; an update in progress is dropped."""


class StartWeightUpdate(_Call, frozen=True, tag=True):
    """Begins a weight update."""


class SentTensor(msgspec.Struct, frozen=True):
    """A tensor of the checkpoint, and its offset in bytes in a segment of shared memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class UpdateWeights(_Call, frozen=True, tag=True):
    """Copies these tensors of an update from a segment of shared memory.

    Without `tensors`, reads all tensors of the file or directory `source`.
    """

    source: str
    tensors: list[SentTensor] = []


class FinishWeightUpdate(_Call, frozen=True, tag=True):
    """Serves all sent weights from the next step on.

    If several engines share weights, `packed` is their location; with `is_elsewhere` another engine has packed them.
    """

    packed: PackedWeights | None = None
    is_elsewhere: bool = False


class AddLora(_Call, frozen=True, tag=True):
    """Loads the adapter in the directory `path` under a new id that was never used before."""

    lora_id: int
    path: str


class ReleaseRemote(msgspec.Struct, frozen=True, tag=True):
    """Releases a prompt's KV that another engine lends and that no request needs."""

    source: RemotePrompt


class RemoveLora(msgspec.Struct, frozen=True, tag=True):
    """Removes a loaded adapter; the front sends this command when no running request uses the adapter."""

    lora_id: int


class Ping(_Call, frozen=True, tag=True):
    """Checks that the engine's loop runs; the reply has the engine's load."""


class ListRequests(_Call, frozen=True, tag=True):
    """Lists the engine's requests and their blocks."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Stops the engine when running requests have finished, or after `timeout_s`: then the rest end with "abort"."""

    timeout_s: float


Controlled = (
    Resume
    | Wake
    | ResetPrefixCache
    | ResetTowerOutputs
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
    """Outputs of one step, and the engine's load after the step."""

    outputs: list[SequenceOutput]
    load: EngineLoad
    stats: StepStats = StepStats()
    kv_events: KvEventBatch | None = None


class Reply(msgspec.Struct, frozen=True, tag=True):
    """Reply to a command: `load` for a ping, `result` for a worker call, `states` for `ListRequests`.

    `refusal` describes the caller's mistake in one sentence; `is_missing` is set if an object that the call names, such
    as an adapter, does not exist.
    """

    call_id: int
    is_done: bool = True
    load: EngineLoad | None = None
    states: RequestStates | None = None
    refusal: str | None = None
    is_missing: bool = False
    result: Any = None


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Loading progress of the weights, in bytes of memory; sent several times a second."""

    num_bytes: int
    all_bytes: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded, and the engine loop runs."""

    load: EngineLoad


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot continue. `message` is one line; `is_config` is set for a mistake in the configuration."""

    message: str
    is_config: bool = False


Event = StepOutput | Reply | Loading | Ready | Failed
