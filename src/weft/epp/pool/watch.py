"""Notices that files changed, by looking: works on every file system, through symlinks and renames."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

LOOK_EVERY_S = 0.5

Marks = tuple[tuple[str, int, int, int], ...]


def mark(paths: Iterable[Path]) -> Marks:
    """What tells one state of the files from another."""
    marks = []
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError:
            continue
        marks.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(sorted(marks))


async def watch(
    list_paths: Callable[[], Iterable[Path]],
    seen: Marks,
    on_change: Callable[[], Awaitable[None]],
) -> None:
    """Call `on_change` whenever the files differ from `seen`, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = mark(list_paths())
        if now != seen:
            seen = now
            await on_change()
