"""`EngineChild`: the engine's process, from before it is known what it will compute until it is launched.

It is started first of all: what it imports takes as long as finding the model does, and runs beside it.
"""

import asyncio
import logging
import os
import sys
from contextlib import suppress

import zmq

from weft.core.config import EngineConfig
from weft.core.controls import HUNG_S, START_S
from weft.core.heartbeat import Heartbeat
from weft.core.log import log_format
from weft.engine.front.socket_directory import SocketDirectory
from weft.engine.messages import MAX_FRAME_BYTES, Launch
from weft.engine.weight_files import WeightFiles

log = logging.getLogger("weft.engine")

# BLAS threads that wait for each other spin: beside other work on two cores, a step of embedded:tiny
# took 6 ms with one thread and 175 ms with two. The user's environment comes first.
_ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class EngineChild:
    """Made by `spawn`. It lives no longer than we do: its standard input is a pipe from here.

    Over that pipe go beats, which a thread of the child answers over another, `beats`, whatever its engine is at. A
    child that does not answer is killed, and `is_hung`.
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
        """Start it. Until `launch` it reads nothing and loads nothing."""
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
        """Send it what to load. It begins at once, and its events wait for whoever listens.

        `weights` are those of the engines beside it; the first of several makes them.
        """
        # Late: a child is spawned before anything that computes is imported, for the server to be up.
        from weft.engine.weight_store import has_shared_weights  # noqa: PLC0415

        if weights is None and has_shared_weights(config):
            weights = WeightFiles()
        self.weights = weights
        self._directory = SocketDirectory()
        path = self._directory.path
        # Before the child knows of them: what is sent when it is ready finds it connected.
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
        if self.process.stdin.is_closing():  # it died already: whoever awaits its exit reports that
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
        else:  # it has ended
            asyncio.get_running_loop().remove_reader(self._beats)

    async def _end_hung(self) -> None:
        await self._heartbeat.silence()
        self.is_hung = True
        log.error("an engine process has not answered for %g s, and is killed", HUNG_S)
        with suppress(ProcessLookupError):
            self.process.kill()

    def send(self, command: bytes) -> None:
        """Send a command without waiting. One that nobody reads any more is dropped.

        Then the process has ended, and whoever waits for its answers is told when that is noticed.
        """
        if not self._commands.closed:
            with suppress(zmq.Again):
                self._commands.send(command, zmq.NOBLOCK)

    async def discard(self) -> None:
        """End it, and leave nothing behind; idempotent."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()
        self.close()

    def close(self) -> None:
        """Let go of our ends; idempotent."""
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
