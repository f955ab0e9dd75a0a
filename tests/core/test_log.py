"""weft.core.observe.log"""

import asyncio
import io
import json
import logging
from datetime import UTC, datetime

import pytest

from weft.core.observe.log import REQUEST, configure_logging, log_format, of_request

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


def test_json_has_an_object_a_line():
    """With time, level and logger; a message of several lines is one record, and no control character is left."""
    stream = io.StringIO()
    configure_logging("info", stream, "json")
    logging.getLogger("weft.rpc").warning("two\nlines \x1b[31m %s", "é")
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert "\x1b" not in line
    assert datetime.fromisoformat(record.pop("time")).tzinfo is UTC
    expected = {"level": "warning", "logger": "weft.rpc", "message": "two\nlines \x1b[31m é"}
    assert record == expected
    assert log_format() == "json"


async def test_json_has_the_ids_of_the_request_and_its_trace():
    """Of the task that logs, and of those that it begins; others have none."""
    stream = io.StringIO()
    configure_logging("info", stream, "json")
    log = logging.getLogger("weft.web")

    async def serve(request_id: str, traceparent: str | None) -> None:
        REQUEST.set((request_id, traceparent))
        await asyncio.create_task(asyncio.to_thread(log.info, "served"))

    await asyncio.create_task(serve("one", f"00-{'ab' * 16}-{'cd' * 8}-01"))
    await asyncio.create_task(serve("two", "nonsense"))
    log.info("nobody's")
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    ids = [(record.get("request_id"), record.get("trace_id")) for record in records]
    assert ids == [("one", "ab" * 16), ("two", None), (None, None)]


def test_json_keeps_the_traceback():
    """In the record that it belongs to."""
    stream = io.StringIO()
    configure_logging("info", stream, "json")
    try:
        raise ValueError("what")
    except ValueError:
        logging.getLogger("weft.rpc").exception("failed")
    assert "ValueError: what" in json.loads(stream.getvalue())["exception"]


def test_json_has_the_ids_that_a_record_brings():
    """An engine's step works for many requests; the record says for which it was."""
    stream = io.StringIO()
    configure_logging("info", stream, "json")
    extra = of_request("mine", {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
    logging.getLogger("weft.engine").info("failed", extra=extra)
    record = json.loads(stream.getvalue())
    assert (record["request_id"], record["trace_id"]) == ("mine", "ab" * 16)


def test_malformed_forms_are_not_logged(capsys):
    """A caller who sends them by the thousand would fill the log; each is answered with its error."""
    configure_logging("info")
    logging.getLogger("python_multipart.multipart").warning("a malformed form")
    assert capsys.readouterr().err == ""
