"""A progress bar on the terminal; no output without a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(total: int, *, is_wanted: bool) -> Iterator[Callable[[], None]]:
    """Yields a function to call, from any thread, whenever one of `total` items is done. The bar is shown on stderr."""
    console = Console(stderr=True)
    columns = (
        TextColumn("Prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    is_shown = is_wanted and console.is_terminal
    with Progress(*columns, console=console, disable=not is_shown) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
