"""weft.core.observe.progress"""

from weft.core.observe.progress import Loading, Progress

MIB = 1 << 20


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_bytes_give_a_pace_and_the_time_that_is_left():
    """From the second report on: the first says only where it began."""
    clock = Clock()
    progress = Progress(clock=clock)
    progress.enter("loading the weights", 0.25, 0.75)
    progress.load(10 * MIB, 100 * MIB)
    assert progress.loading == Loading(loaded_bytes=10 * MIB, total_bytes=100 * MIB)
    clock.now += 2
    progress.load(50 * MIB, 100 * MIB)
    assert progress.describe() == "loading the weights, 50 MiB of 100 MiB, 50 %, 20 MiB/s, 2 s left"
    assert progress.fraction == 0.5


def test_what_has_no_bytes_shows_its_time():
    """So that a slow phase is not taken for one that hangs."""
    clock = Clock()
    progress = Progress(clock=clock)
    clock.now += 3
    progress.enter("reading", 0.1)
    clock.now += 1.5
    assert progress.describe() == "reading, 1.5 s"


def test_a_start_that_is_over_takes_no_more_time():
    """And has nothing left to load."""
    clock = Clock()
    progress = Progress(clock=clock)
    progress.enter("loading the weights", 0.0)
    progress.load(2, 1)
    clock.now += 4
    progress.finish()
    clock.now += 10
    assert (progress.elapsed_s, progress.fraction, progress.phase) == (4.0, 1.0, "ready")
    assert progress.loading is None
