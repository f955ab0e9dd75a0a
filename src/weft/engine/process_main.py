"""Main program of the engine's process: reads its configuration, loads the model, and runs the engine loop.

The process ends when the pipe on its stdin closes, so that a front that is killed leaves no orphan.
"""

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec
import zmq

from weft.compute.backends import backend_of
from weft.core.config.engine import EngineConfig
from weft.core.errors import ConfigError
from weft.core.observe.log import configure_logging
from weft.engine.ipc.messages import MAX_FRAME_BYTES, Command, Event, Failed, Launch, Loading
from weft.engine.ipc.output_ports import OutputPorts
from weft.engine.loop import EngineLoop
from weft.engine.start.cpu_shares import keep_to_own_cpus
from weft.engine.weights.draft_model import DraftModel
from weft.engine.weights.engine_model import EngineModel
from weft.engine.weights.packed_cache import PackedCache
from weft.engine.weights.weight_store import WeightStore
from weft.model.files.checkpoint import Checkpoint
from weft.model.open import find_served
from weft.text.tokenizer import TOKENIZER_FILE

log = logging.getLogger("weft.engine")

_WAKE_ADDRESS = "inproc://weft-wake"
# The last events may still be unsent when the engine ends; if it fails early, the front may be busy importing. If the
# front dies, this process is killed too.
_LINGER_MS = 20_000
_REPORT_PERIOD_S = 0.1
_POLLIN = int(zmq.POLLIN)


class SocketMailbox:
    """Mailbox of the engine: receives commands from the front's process."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        socket.bind(_WAKE_ADDRESS)
        self._waker = socket.context.socket(zmq.PUSH)
        self._waker.connect(_WAKE_ADDRESS)
        self._wake_lock = threading.Lock()
        self._decoder = msgspec.msgpack.Decoder(Command)

    def receive(self, timeout_s: float | None) -> list[Command]:
        commands: list[Command] = []
        if timeout_s != 0.0:
            self._socket.poll(None if timeout_s is None else int(timeout_s * 1000) + 1)
        # Checking for a message first is twice as fast as catching the exception of an empty socket.
        while int(self._socket.get(zmq.EVENTS)) & _POLLIN:
            frame = self._socket.recv(zmq.NOBLOCK)
            if frame:
                commands.append(self._decoder.decode(frame))
        return commands

    def wake(self) -> None:
        """Ends the wait of `receive`. The lock is needed because only one thread at a time may use a ZeroMQ socket."""
        with self._wake_lock, suppress(zmq.Again):  # a full queue also ends the wait
            self._waker.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        self._waker.close(0)
        self._socket.close(0)


def run(answers: int) -> int:
    """Runs one engine until `Stop`; the exit status is 0 only after `Stop`.

    Heartbeats of the front are answered on the file descriptor `answers`.
    """
    launch = Launch.read(sys.stdin.buffer)
    if launch is None:  # the front found no model to serve, and closed the pipe
        return 0
    configure_logging(launch.log_level, log_format=launch.log_format)
    keep_to_own_cpus(launch.config)
    threading.Thread(
        target=_end_with_parent, args=(launch.directory, answers), name="weft-parent", daemon=True
    ).start()
    context = zmq.Context()
    commands, events = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket in (commands, events):
        socket.set_hwm(0)
    commands.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    events.set(zmq.LINGER, _LINGER_MS)
    commands.connect(f"ipc://{launch.directory}/commands")
    events.connect(f"ipc://{launch.directory}/events")
    encoder = msgspec.msgpack.Encoder()
    directory = launch.config.api_server_directory
    ports = None if directory is None else OutputPorts(context, directory)

    def emit(event: Event) -> None:
        events.send(encoder.encode(event if ports is None else ports.divert(event)))

    mailbox = SocketMailbox(commands)
    status = _run(launch, mailbox, emit)
    mailbox.close()
    if ports is not None:
        ports.close()
    events.close()
    context.term()
    return status


def _run(launch: Launch, mailbox: SocketMailbox, emit: Callable[[Event], None]) -> int:
    config = launch.config
    try:
        model, files = _load(launch, emit)

        def read_tokenizer() -> str:
            return files[TOKENIZER_FILE].decode()

        EngineLoop(config, model, mailbox, emit, read_tokenizer).run()
    except ConfigError as error:
        emit(Failed(str(error), is_config=True))
        return 2
    except Exception as error:  # the process's outermost function: the front gets the reason
        log.exception("the engine has stopped")
        emit(Failed(f"{type(error).__name__} in the engine; its log has the details"))
        return 1
    return 0


def _load(launch: Launch, emit: Callable[[Event], None]) -> tuple[EngineModel, Mapping[str, bytes]]:
    config = launch.config
    model, cache = config.model_config, config.cache_config
    try:
        checkpoint = find_served(model)
        store = None if launch.weights is None else WeightStore(launch.weights)
        loaded = EngineModel.load(
            config,
            checkpoint,
            _reporter(config, checkpoint, emit),
            store,
            PackedCache.of(config),
        )
        loaded.draft = DraftModel.load(config, launch.draft_weights)
        loaded.allocate_kv()
    except MemoryError as error:
        # A limit of this process: the check of the machine's free memory does not include it.
        raise ConfigError(
            f"{model.model} and its KV pool of {cache.num_blocks} blocks do not fit the memory that "
            "this process may use: raise that limit (ulimit -v or -d), or take a smaller model or pool "
            "(--num-gpu-blocks-override)"
        ) from error
    return loaded, checkpoint.tokenizer_files


def _reporter(
    config: EngineConfig, checkpoint: Checkpoint, emit: Callable[[Event], None]
) -> Callable[[int], None]:
    """Returns a function that reports loading progress, at most once per `_REPORT_PERIOD_S`.

    The function converts a number of loaded elements to bytes.
    """
    assert config.compute_config is not None
    card = backend_of(config).sized(checkpoint, config.compute_config).card
    due = 0.0

    def report(num_elements: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _REPORT_PERIOD_S
            share = min(1.0, num_elements / card.num_parameters)
            emit(Loading(int(share * card.weight_bytes), card.weight_bytes))

    return report


def _end_with_parent(directory: str, answers: int) -> None:
    """Answers the front's heartbeats until the front has died, and then ends this process. Runs on its own thread.

    The first answer comes without a heartbeat: the buffer that read the launch may already hold the first heartbeat,
    and the front allows an engine that has never answered more time.
    """
    is_alive = True
    while is_alive:
        with suppress(OSError):
            os.write(answers, b".")
        is_alive = bool(os.read(sys.stdin.fileno(), 4096))
    shutil.rmtree(directory, ignore_errors=True)  # a front that was killed could not remove it
    os._exit(1)
