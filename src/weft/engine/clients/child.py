"""`EngineChild`: the process of an engine, from its spawn until its launch.

The process is spawned before the configuration is known: its imports take as long as finding the model, and run in
parallel.
"""

import asyncio
import logging
import os
import sys
from contextlib import suppress

import zmq

from weft.core.aio.heartbeat import Heartbeat
from weft.core.config.engine import EngineConfig
from weft.core.observe.log import log_format
from weft.core.values.controls import HUNG_S, START_S
from weft.engine.front.socket_directory import SocketDirectory
from weft.engine.ipc.messages import MAX_FRAME_BYTES, Launch
from weft.engine.ipc.weight_files import WeightFiles

log = logging.getLogger("weft.engine")

# BLAS threads that wait for each other spin: beside other work on two cores, a step of embedded:tiny
# took 6 ms with one thread and 175 ms with two. The user's environment comes first.
_ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class EngineChild:
    """Process of an engine; made by `spawn`. The process ends with its parent, because its stdin is a pipe of the
    parent.

    The parent sends pings over this pipe. A thread of the child answers each ping over another pipe, `beats`, whatever
    the engine is doing. A child that does not answer is killed, and `is_hung` is set.
    """

    def __init__(self, process: asyncio.subprocess.Process, beats: int) -> None:
        self.process = process
        self.is_hung = False
        self._beats = beats
        self._heartbeat = Heartbeat(self._beat, HUNG_S, start_s=START_S)
        self._watching: asyncio.Task[None] | None = None
        self._directory: SocketDirectory | None = None
        self.weights: WeightFiles | None = None
        self._context = zmq.Context()
        self._commands: zmq.Socket[bytes] = self._context.socket(zmq.PUSH)
        self.events: zmq.Socket[bytes] = self._context.socket(zmq.PULL)
        for socket in (self._commands, self.events):
            socket.set(zmq.LINGER, 0)
            # Bounded by admission: every command and event belongs to an admitted request.
            socket.set_hwm(0)
        self.events.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)

    @classmethod
    async def spawn(cls) -> "EngineChild":
        """Starts the process, which reads and loads nothing until `launch`."""
        beats, answers = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "weft.engine.process",
                str(answers),
                pass_fds=(answers,),
                stdin=asyncio.subprocess.PIPE,
                env=_ONE_BLAS_THREAD | os.environ,
            )
        except BaseException:
            os.close(beats)
            raise
        finally:
            os.close(answers)
        return cls(process, beats)

    async def launch(self, config: EngineConfig, weights: WeightFiles | None = None) -> None:
        """Sends the configuration to the process, which then begins to load; its events wait until they are read.

        `weights` are the weight files that all engines of the server share; the first engine creates them.
        """
        # Imported late: a child is spawned before the compute modules are imported, so that the server starts early.
        from weft.engine.weights.weight_store import has_shared_weights  # noqa: PLC0415

        if weights is None and has_shared_weights(config):
            weights = WeightFiles()
        self.weights = weights
        self._directory = SocketDirectory()
        path = self._directory.path
        # Bound before the child knows the paths, so that commands sent when the child is ready reach it.
        self._commands.bind(f"ipc://{path}/commands")
        self.events.bind(f"ipc://{path}/events")
        launch = Launch(
            directory=str(path),
            config=config,
            weights=None if weights is None else weights.current,
            draft_weights=None if weights is None else weights.draft,
            log_level=log.getEffectiveLevel(),
            log_format=log_format(),
        )
        assert self.process.stdin is not None
        # The process has died: the task that awaits its exit reports the exit.
        if self.process.stdin.is_closing():
            return
        self.process.stdin.write(launch.to_frame())
        with suppress(ConnectionError):
            await self.process.stdin.drain()
        asyncio.get_running_loop().add_reader(self._beats, self._take_beats)
        self._watching = asyncio.create_task(self._end_hung())

    def _beat(self) -> None:
        assert self.process.stdin is not None
        if not self.process.stdin.is_closing():
            self.process.stdin.write(b".")

    def _take_beats(self) -> None:
        if os.read(self._beats, 4096):
            self._heartbeat.answered()
        else:  # the process has ended
            asyncio.get_running_loop().remove_reader(self._beats)

    async def _end_hung(self) -> None:
        await self._heartbeat.silence()
        self.is_hung = True
        log.error("an engine process has not answered for %g s, and is killed", HUNG_S)
        with suppress(ProcessLookupError):
            self.process.kill()

    def send(self, command: bytes) -> None:
        """Sends a command without waiting. A command that cannot be delivered is dropped.

        A command cannot be delivered if the process has ended. Callers that wait for a reply get an error when the exit
        is detected.
        """
        if not self._commands.closed:
            with suppress(zmq.Again):
                self._commands.send(command, zmq.NOBLOCK)

    async def discard(self) -> None:
        """Kills the process and frees all its resources, even if the wait for the exit is cancelled. Idempotent."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()
        try:
            await self.process.wait()
        finally:
            self.close()

    def close(self) -> None:
        """Closes the parent's ends of pipes and sockets; idempotent."""
        if self._beats >= 0:
            if self._watching is not None:
                self._watching.cancel()
                asyncio.get_running_loop().remove_reader(self._beats)
            os.close(self._beats)
            self._beats = -1
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._commands.close()
        self.events.close()
        self._context.term()
        if self._directory is not None:
            self._directory.remove()
