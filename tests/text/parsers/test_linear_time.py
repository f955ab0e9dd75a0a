"""Time is linear in the text, whatever the text is and however it comes."""

import time

import pytest

from tests.text.parsers.taking_apart import feed_all
from weft.text.parsers.table import TOOL_PARSERS, make_output_parser

NASTY = {
    "text": "some words ",
    "starts of marks": "<tool_call",
    "openers": "<tool_call>",
    "white space": " \n",
    "brackets": "[{",
    "quotes": "'\"",
    "escapes": "\\",
}


def _seconds(family: str, start: str, unit: str, size: int, width: int) -> float:
    """The least of several runs: what else the machine does only adds."""
    text = start + unit * (size // len(unit))
    pieces = [text[at : at + width] for at in range(0, len(text), width)]
    times = []
    for _ in range(3):
        parser = make_output_parser(reasoning="qwen3" if family != "openai" else None, tool=family)
        began = time.thread_time()
        feed_all(parser, pieces)
        times.append(time.thread_time() - began)
    return min(times)


def _starts(family: str) -> list[str]:
    """Places to be in: the answer, behind the first mark, and inside the arguments."""
    example = TOOL_PARSERS[family].example
    return ["", example[: example.index("get_weather")], example[: example.index("Paris")]]


PLACES = [
    (family, start)
    for family in ("hermes", "qwen3_coder", "pythonic", "openai")
    for start in _starts(family)
]


# Of milliseconds one may have waited for a processor; a quadratic step fails each time.
_ATTEMPTS = 5


@pytest.mark.parametrize("unit", NASTY)
@pytest.mark.parametrize(("family", "start"), PLACES)
@pytest.mark.parametrize(("width", "size"), [(3, 2_500), (10**9, 25_000)])
def test_four_times_the_text_takes_less_than_eight_times_as_long(family, start, unit, width, size):
    """A quadratic step would take sixteen times as long; in small pieces or as a whole."""
    for _ in range(_ATTEMPTS):
        short = _seconds(family, start, NASTY[unit], size, width)
        long = _seconds(family, start, NASTY[unit], size * 4, width)
        if long < max(8 * short, 0.01):
            return
    raise AssertionError(f"{short} s became {long} s")
