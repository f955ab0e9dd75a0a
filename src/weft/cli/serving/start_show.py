"""Shows the progress of a start on a terminal, or in the log if the start takes long."""

import asyncio
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from weft.core.observe.progress import Progress
from weft.core.observe.terminal import StatusLine

log = logging.getLogger("weft.cli")

_PERIOD_S = 0.1
_LOG_PERIOD_S = 5.0


@contextmanager
def show_start(progress: Progress) -> Iterator[None]:
    """While the `with` block runs, shows the start's progress on standard error: on the last line of a terminal,
    otherwise as log lines.
    """
    status = StatusLine(sys.stderr)

    def make_room(_record: logging.LogRecord) -> bool:
        status.clear()
        return True

    handlers = logging.getLogger().handlers[:]
    for handler in handlers:
        handler.addFilter(make_room)
    task = asyncio.create_task(_show(progress, status))
    try:
        yield
    finally:
        task.cancel()
        status.clear()
        for handler in handlers:
            handler.removeFilter(make_room)


async def _show(progress: Progress, status: StatusLine) -> None:
    due = time.monotonic() + _LOG_PERIOD_S / 2
    while True:
        if status.is_live:
            status.show(f"  {progress.describe()}")
        elif progress.loading is not None and time.monotonic() >= due:
            log.info("%s", progress.describe())
            due = time.monotonic() + _LOG_PERIOD_S
        await asyncio.sleep(_PERIOD_S)
