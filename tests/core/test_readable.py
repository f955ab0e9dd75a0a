"""weft.core.observe.readable"""

import pytest

from weft.core.observe.readable import format_bytes, format_left


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1023 << 20, "1023 MiB"),
        (4 << 30, "4 GiB"),
        (3 << 42, "12 TiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_that_fits(num_bytes: int, text: str):
    """Three digits are enough to compare."""
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (200, "3 min")])
def test_a_guess_is_shown_without_false_digits(seconds: float, text: str):
    """Nobody plans by the seconds of minutes."""
    assert format_left(seconds) == text
