"""A child process for work that must be stoppable: it reads lines of JSON and answers each with one line of JSON.

Neither a thread nor a sandbox can stop code that loops for ever or takes too much memory; ending the process does.
`Worker` runs in the parent, `serve_lines` in the child.
"""

import json
import resource
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from weft.core.errors import Unavailable

Answerer = Callable[[str], dict[str, str]]

# Wall-clock limit of a line, as a multiple of its limit of processor time: on a busy machine the child waits for a
# processor.
_MAX_WAITING = 10
# Extra time for the parent's timeout: a starting child imports modules first, and a suspended child cannot end itself.
_GRACE_S = 60.0


class Worker:
    """A running child process `python -m module`, called with one line of JSON at a time.

    `setup` is the first line that the child reads, a JSON object with the key `time_limit_s`. The constructor raises
    `Unavailable`, without leaving a process or socket behind, if the system cannot start another process or has no free
    file descriptors.
    """

    def __init__(self, module: str, setup: str) -> None:
        try:
            # One pair of sockets instead of Popen's pipes: Popen leaks some of its pipes when file descriptors run out.
            ours, theirs = socket.socketpair()
            with ours, theirs:
                ours.settimeout(json.loads(setup)["time_limit_s"] * _MAX_WAITING + _GRACE_S)
                process = subprocess.Popen(  # noqa: S603 - modules of ours, named in the code
                    [sys.executable, "-X", "utf8", "-m", module],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                )
                channel = ours.makefile("rw", encoding="utf-8", newline="\n")
        except OSError as error:
            raise Unavailable(
                f"the server cannot start a process that this request needs ({error.strerror})"
            ) from error
        self._channel = channel
        self._setup: str | None = setup
        self.stop = weakref.finalize(self, _stop, process, channel)

    def call(self, line: str) -> dict[str, str] | None:
        """Returns the child's answer to a line; None if the child died or did not answer in time: the caller then stops
        it.
        """
        try:
            if self._setup is not None:
                self._channel.write(self._setup)
                self._setup = None
            self._channel.write(line)
            self._channel.flush()
            reply = self._channel.readline()
        except (ConnectionError, TimeoutError):
            return None
        if not reply.endswith("\n"):
            return None
        answer: dict[str, str] = json.loads(reply)
        return answer


def serve_lines(prepare: Callable[[dict[str, Any]], Answerer]) -> None:
    """Answers lines of JSON until standard input closes, which also happens when the parent dies.

    The first line, the setup, has `max_memory_bytes` and `time_limit_s`, a limit in seconds of processor time. A line
    that takes too long ends the process, whatever code is running. A line that takes too much memory fails, or ends the
    process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which may be draining
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)  # ends the process, even inside C code
    setup = json.loads(sys.stdin.readline())
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = setup["max_memory_bytes"]
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)  # at most `hard`
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answer = prepare(setup)
    time_limit_s = setup["time_limit_s"]
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, time_limit_s)
        signal.setitimer(signal.ITIMER_REAL, time_limit_s * _MAX_WAITING)
        reply = answer(line)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _stop(process: subprocess.Popen[bytes], channel: TextIO) -> None:
    process.kill()
    process.wait()
    with suppress(OSError):  # flushing buffered text fails if the child has exited
        channel.close()
