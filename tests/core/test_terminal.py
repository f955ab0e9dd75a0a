"""weft.core.observe.terminal"""

import io
import logging
import unicodedata

from weft.core.observe.log import configure_logging
from weft.core.observe.terminal import harmless, say

# Title, colour, an answer that is typed for the user (two ways to begin), a link, a sound, writing over.
ATTACKS = (
    "\x1b]0;x\x07\x1b[31m\x1b[6n\x9b6n\x1b]8;;http://a\x1b\\b\x08\x7f\x00ok\rno\u202egnp.\u2066"
)


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_nothing_that_a_terminal_obeys_is_left():
    """Line ends and tabs apart; what is taken away leaves a trace, but for what only goes back."""
    shown = harmless(ATTACKS)
    assert [char for char in shown if unicodedata.category(char) in ("Cc", "Cf")] == []
    assert shown.startswith("␛]0;x␇␛[31m")
    assert len(shown) == len(ATTACKS) - 1


def test_text_stays_as_it_is():
    """Of every script, with what joins its letters and emoji."""
    text = "a\tb\nпривет שלום عربي \u200fא\u200d 👩\u200d👩 \u00a0é"
    assert harmless(text) == text
    assert harmless("a\r\nb") == "a\nb"


def test_only_terminals_are_protected():
    """A pipe gets every byte."""
    terminal, pipe = Terminal(), io.StringIO()
    say(ATTACKS, end="", file=terminal)
    say(ATTACKS, end="", file=pipe)
    assert (terminal.getvalue(), pipe.getvalue()) == (harmless(ATTACKS), ATTACKS)


def test_logs_are_harmless_too(restored_logging: None):
    """They hold what clients sent, in tracebacks at least."""
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        configure_logging("info", stream)
        logging.getLogger("weft.web").info("model %s", "\x1b[2J")
    assert "\x1b" not in terminal.getvalue()
    assert "\x1b[2J" in pipe.getvalue()
