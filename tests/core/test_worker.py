"""Child processes for work that must be stoppable, where the system has nothing left to give."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.busy import PATIENCE_S
from weft.core.aio import worker
from weft.core.aio.worker import Worker
from weft.core.errors import Unavailable
from weft.core.values.types import StructuredOutputsParams
from weft.engine.constraints.check import GrammarChecker
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.text.templates.chat import ChatTemplate
from weft.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello"}]
SETUP = json.dumps({"source": "a", "max_chars": 9, "time_limit_s": 9.0, "max_memory_bytes": 2**30})


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """No more files than these can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filler = [os.dup(0)]
    while filler[-1] < 200:  # numbers below the limit that are free would be given out
        filler.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (filler[-1] + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in filler:
            os.close(descriptor)


def open_files() -> int:
    """How many this process has."""
    return psutil.Process().num_fds()


@pytest.mark.parametrize("count", range(5))
def test_a_process_that_cannot_start_leaves_nothing_behind(count: int):
    """Wherever in its start the descriptors run out, none stays open, and the error says why."""
    before = open_files()
    with descriptors_left(count), pytest.raises(Unavailable, match="Too many open files"):
        Worker("weft.text.templates.render_worker", SETUP)
    assert open_files() <= before


async def test_structured_output_goes_on_when_there_are_descriptors_again():
    """The request that finds none is told to come again; the next one is answered."""
    tokenizer = Tokenizer.from_files(tokenizer_files(300, "<|endoftext|>"))
    checker = GrammarChecker(tokenizer, 300, (256,))
    asked = StructuredOutputsParams(regex="ab")
    with descriptors_left(1), pytest.raises(Unavailable, match="Too many open files"):
        await checker.check(asked)
    assert await checker.check(asked)
    checker.close()


SERVE = """
import time
from weft.core.aio.worker import serve_lines

def answer(line):
    time.sleep(float(line))
    return {"slept": line.strip()}

serve_lines(lambda setup: answer)
"""


@pytest.mark.parametrize(("sleep_s", "replies"), [("0.5", ['{"slept": "0.5"}']), ("60", [])])
def test_who_waits_has_more_time_than_who_works(sleep_s: str, replies: list[str]):
    """A busy machine is no fault of a text's; but nobody waits for ever."""
    setup = json.dumps({"time_limit_s": 0.2, "max_memory_bytes": 2**34})
    done = subprocess.run(
        [sys.executable, "-c", SERVE], input=f"{setup}\n{sleep_s}\n", text=True,
        stdout=subprocess.PIPE, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == replies
    assert done.returncode == (0 if replies else -signal.SIGALRM)


def test_chat_goes_on_when_there_are_descriptors_again():
    """The same of the process that renders."""
    with ChatTemplate("{{ messages[0].content }}", {}) as template:
        with descriptors_left(1), pytest.raises(Unavailable, match="Too many open files"):
            template.render(HELLO)
        assert template.render(HELLO) == "hello"


def test_a_child_that_was_stopped_is_not_waited_for(monkeypatch):
    """Whoever calls holds a lock meanwhile; the next call has another child."""
    monkeypatch.setattr(worker, "_GRACE_S", 0.3)
    monkeypatch.setattr(worker, "_MAX_WAITING", 0)
    before = set(psutil.Process().children())
    stopped = Worker("weft.text.templates.render_worker", SETUP)
    [child] = set(psutil.Process().children()) - before
    child.suspend()
    assert stopped.call("{}\n") is None
    stopped.stop()
    assert not child.is_running()
