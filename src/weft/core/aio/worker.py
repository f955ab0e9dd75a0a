"""A child process for work that must be stoppable: it reads lines of JSON and writes one line of JSON for each.

Neither a thread nor a sandbox can stop code that loops for ever or takes too much memory; ending the process does.
`Worker` is the parent's half, `serve_lines` the child's.
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

# Limit of a line by the clock, as a multiple of its limit of processor time: on a busy machine it waits for a
# processor.
_MAX_WAITING = 10
# Extra time for the parent's timeout: a starting child imports modules first, and a suspended child cannot end itself.
_GRACE_S = 60.0


class Worker:
    """A running `python -m module`; called one line at a time. `setup` is its first line, and names `time_limit_s`.

    Raises `Unavailable`, leaving nothing behind, if the system has no process or no file descriptors for it.
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
        """Returns the answer; None if the child died or did not answer, after which the caller must stop it."""
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
    """Answers lines until standard input closes, which also happens when the parent dies.

    The setup names `max_memory_bytes` and `time_limit_s`, in seconds of processor time. A line that takes too long
    ends the process, whatever code runs. A line that takes too much memory fails, or ends the process.
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
    with suppress(OSError):  # buffered text for a child that has exited
        channel.close()
