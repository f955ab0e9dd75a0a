"""Entry point of the installed command: prints a first line at once, then imports `weft.cli.main`, which may take
seconds.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NoReturn

from weft import __version__
from weft.cli.help import show, wanted
from weft.core.extras import WHOLE, installed

_PERIOD_S = 0.1


def main() -> NoReturn:
    """Entry point of the `weft` command."""
    if len(others := installed()) > 1:
        sys.exit(_refuse(others))
    word = wanted(sys.argv[1:])
    if word is not None:
        # So that `weft serve --help | head` ends without a traceback.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if (shown := show(sys.argv[1:], word)) is not None:
            sys.exit(shown)
    command, *arguments = sys.argv[1:] or [""]
    if command == "serve" and sys.stderr.isatty() and "--version" not in arguments:
        print(f"Weft {__version__} is starting", file=sys.stderr, flush=True)
        with _importing():
            import_module("weft.cli.serving.serve")
    import_module("weft.cli.main").main()
    raise AssertionError("it has ended the process")


def _refuse(distributions: list[str]) -> int:
    """Returns the exit status for distributions of Weft that contain the same files: installed together, they may leave
    files of two versions.
    """
    print(
        f"error: {' and '.join(distributions)} have the same files; run: pip uninstall {' '.join(distributions)}, "
        f"then install one of them ({WHOLE} has all commands)",
        file=sys.stderr,
    )
    return 2


@contextmanager
def _importing() -> Iterator[None]:
    """Shows a message while imports run, which may take seconds from a cold disk."""
    progress = import_module("weft.core.observe.progress").Progress()
    status = import_module("weft.core.observe.terminal").StatusLine(sys.stderr)
    progress.enter("importing", 0.0)
    is_over = threading.Event()

    def show() -> None:
        while not is_over.wait(_PERIOD_S):
            status.show(f"  {progress.describe()}")

    thread = threading.Thread(target=show, name="weft-importing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        status.clear()


if __name__ == "__main__":
    main()
