"""Child processes for work that must be stoppable, where the system has nothing left to give."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from weft.core.errors import Unavailable
from weft.core.types import StructuredOutputsParams
from weft.core.worker import Worker
from weft.engine.constraints.check import GrammarChecker
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.text.chat import ChatTemplate
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
        Worker("weft.text.render_worker", SETUP)
    assert open_files() == before


async def test_structured_output_goes_on_when_there_are_descriptors_again():
    """The request that finds none is told to come again; the next one is answered."""
    tokenizer = Tokenizer.from_files(tokenizer_files(300, "<|endoftext|>"))
    checker = GrammarChecker(tokenizer, 300, (256,))
    asked = StructuredOutputsParams(regex="ab")
    with descriptors_left(1), pytest.raises(Unavailable, match="Too many open files"):
        await checker.check(asked)
    assert await checker.check(asked)
    checker.close()


def test_chat_goes_on_when_there_are_descriptors_again():
    """The same of the process that renders."""
    with ChatTemplate("{{ messages[0].content }}", {}) as template:
        with descriptors_left(1), pytest.raises(Unavailable, match="Too many open files"):
            template.render(HELLO)
        assert template.render(HELLO) == "hello"
