"""weft.core.log"""

import io
import logging

import pytest

from weft.core.log import configure_logging

pytestmark = pytest.mark.usefixtures("restored_logging")


def test_events_below_the_level_are_not_written():
    """--log-level decides about our events; libraries are heard from WARNING up."""
    stream = io.StringIO()
    configure_logging("info", stream)
    logging.getLogger("weft.rpc").debug("quiet one")
    logging.getLogger("weft.rpc").info("loud one")
    logging.getLogger("somebody").info("not ours")
    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == ["INFO loud one"]


def test_a_log_that_cannot_be_written_does_not_stop_the_service(capsys):
    """Neither an exception nor a traceback for each line, when the stream is broken."""
    stream = io.StringIO()
    configure_logging("info", stream)
    stream.close()
    logging.getLogger("weft.rpc").info("still here")
    assert capsys.readouterr().err == ""
