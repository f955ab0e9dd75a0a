"""What the engine's process does: reads its configuration, loads the model, and turns the loop.

It ends with the pipe on its stdin, so that a front that is killed leaves no orphan.
"""

import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec
import zmq

from weft.core.config import EngineConfig
from weft.core.errors import ConfigError
from weft.core.log import configure_logging
from weft.engine.engine_model import EngineModel
from weft.engine.loop import EngineLoop
from weft.engine.messages import MAX_FRAME_BYTES, Command, Event, Failed, Launch
from weft.model.open import find_model
from weft.text.tokenizer import TOKENIZER_FILE

log = logging.getLogger("weft.engine")

_WAKE_ADDRESS = "inproc://weft-wake"
# Last events may still be on their way when the engine leaves; when it fails early, the front may be busy
# importing. A front that dies takes the engine with it.
_LINGER_MS = 20_000


class SocketMailbox:
    """Commands from the front's process."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        socket.bind(_WAKE_ADDRESS)
        self._waker = socket.context.socket(zmq.PUSH)
        self._waker.connect(_WAKE_ADDRESS)
        self._decoder = msgspec.msgpack.Decoder(Command)

    def receive(self, timeout_s: float | None) -> list[Command]:
        commands: list[Command] = []
        if timeout_s != 0.0:
            self._socket.poll(None if timeout_s is None else int(timeout_s * 1000) + 1)
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return commands
            if frame:
                commands.append(self._decoder.decode(frame))

    def wake(self) -> None:
        """See `Mailbox`. Only ever called from one thread: a socket is no more patient than that."""
        with suppress(zmq.Again):  # a thousand are there already: `receive` will not wait
            self._waker.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Close the sockets."""
        self._waker.close(0)
        self._socket.close(0)


def run() -> int:
    """Run one engine until `Stop`. The exit status is 0 only then."""
    launch = Launch.read(sys.stdin.buffer)
    if launch is None:  # the front found no model to serve
        return 0
    configure_logging(launch.log_level)
    threading.Thread(
        target=_end_with_parent, args=(launch.directory,), name="weft-parent", daemon=True
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

    def emit(event: Event) -> None:
        events.send(encoder.encode(event))

    mailbox = SocketMailbox(commands)
    status = _run(launch.config, mailbox, emit)
    mailbox.close()
    events.close()
    context.term()
    return status


def _run(config: EngineConfig, mailbox: SocketMailbox, emit: Callable[[Event], None]) -> int:
    try:
        model, files = _load(config)

        def read_tokenizer() -> str:
            return files[TOKENIZER_FILE].decode()

        EngineLoop(config, model, mailbox, emit, read_tokenizer).run()
    except ConfigError as error:
        emit(Failed(str(error), is_config=True))
        return 2
    except Exception as error:
        log.exception("the engine has stopped")
        emit(Failed(f"{type(error).__name__} in the engine; its log has the details"))
        return 1
    return 0


def _load(config: EngineConfig) -> tuple[EngineModel, Mapping[str, bytes]]:
    model, cache = config.model_config, config.cache_config
    try:
        checkpoint = find_model(
            model.model,
            revision=model.revision,
            dtype=model.dtype,
            runner=model.runner_type,
            overrides=model.file_overrides,
        )
        loaded = EngineModel.load(config, checkpoint)
        loaded.allocate_kv()
    except MemoryError as error:  # a limit of this process, which free memory does not show
        raise ConfigError(
            f"{model.model} and its KV pool of {cache.num_blocks} blocks do not fit the memory that "
            "this process may use: raise that limit (ulimit -v), or take a smaller model or pool "
            "(--num-gpu-blocks-override)"
        ) from error
    return loaded, checkpoint.tokenizer_files


def _end_with_parent(directory: str) -> None:
    while os.read(sys.stdin.fileno(), 1):  # empty when the front has died: it writes nothing more
        pass
    shutil.rmtree(directory, ignore_errors=True)  # a front that was killed could not
    os._exit(1)
