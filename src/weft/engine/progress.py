"""A progress bar on the terminal, and nothing where there is none."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(total: int, *, is_wanted: bool) -> Iterator[Callable[[], None]]:
    """A function to call whenever one of `total` is done, from any thread. The bar is on stderr."""
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
