"""A child process for work that must be stoppable: lines of JSON in, a line of JSON out for each.

Neither a thread nor a sandbox can stop code that loops for ever or eats memory; the end of a process
does. `Worker` is the parent's half, `serve_lines` the child's.
"""

import json
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

Answerer = Callable[[str], dict[str, str]]


class Worker:
    """A running `python -m module`; asked one thing at a time. `setup` is its first line."""

    def __init__(self, module: str, setup: str) -> None:
        process = subprocess.Popen(  # noqa: S603 - modules of ours, named in the code
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        self._process = process
        self._setup: str | None = setup
        self.stop = weakref.finalize(self, _stop, process)

    def ask(self, line: str) -> dict[str, str] | None:
        """The answer, or None when the child died over it."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if self._setup is not None:
                process.stdin.write(self._setup)
                self._setup = None
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            return None
        reply = process.stdout.readline()
        if not reply.endswith("\n"):
            return None
        answer: dict[str, str] = json.loads(reply)
        return answer


def serve_lines(prepare: Callable[[dict[str, Any]], Answerer]) -> None:
    """Answer until standard input closes, which it also does when the parent dies.

    The setup names `max_memory_bytes` and `time_limit_s`. An answer that takes too long ends the
    process, whatever it is doing, and one that takes too much memory fails or does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which may be draining
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the default is to die: also in the midst of C
    setup = json.loads(sys.stdin.readline())
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = setup["max_memory_bytes"]
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)  # it may be no higher
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answer = prepare(setup)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, setup["time_limit_s"])
        reply = answer(line)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:  # what was buffered for a child that is gone
            pass
