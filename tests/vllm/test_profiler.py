"""The profiler of the front: whoever calls it, its calls are made on one thread. No vLLM is needed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from weft.vllm.profiler import OneThread


class Recording:
    """Notes from which thread it is called, and fails when told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def set_output_name(self, worker_name: str) -> None:
        self.calls.append((worker_name, 0))

    def start(self) -> None:
        self.calls.append(("start", threading.get_ident()))

    def stop(self) -> None:
        self.calls.append(("stop", threading.get_ident()))
        raise OSError("no space")


def test_it_is_stopped_on_the_thread_that_started_it():
    """Though each call comes from another; what it raises, the caller gets."""
    recording = Recording()
    profiler = OneThread(recording)
    profiler.set_output_name("rank0")
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(profiler.start).result()
        with pytest.raises(OSError, match="no space"):
            other.submit(profiler.stop).result()
    name, (_, started), (_, stopped) = recording.calls
    assert name == ("rank0", 0)
    assert started == stopped
