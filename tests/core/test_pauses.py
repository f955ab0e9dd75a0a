"""Pauses before the next try: how they grow, and when they begin anew."""

from weft.core.aio.pauses import Pauses


def test_pauses_double_up_to_the_longest():
    """What keeps failing is tried ever more rarely, but never given up."""
    pauses = Pauses(0.5, 3.0)
    assert [pauses.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_what_lasted_begins_with_the_first_pause_again():
    """A failure after a long good run has another cause than those before it; one after a short run has not."""
    pauses = Pauses(1.0, 8.0, steady_s=60.0)
    pauses.next_s()
    assert not pauses.lasted(59.0)
    assert pauses.next_s() == 2.0
    assert pauses.lasted(61.0)
    assert pauses.next_s() == 1.0
