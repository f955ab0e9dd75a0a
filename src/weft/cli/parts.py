"""Entry points of distributions with one command: `weft-picker` is `weft epp`, `weft-bench` is `weft bench`."""

import sys
from typing import NoReturn

from weft.cli.entry import main
from weft.core.extras import PARTS


def picker() -> NoReturn:
    """Entry point of `weft-picker`."""
    _run("epp")


def bench() -> NoReturn:
    """Entry point of `weft-bench`."""
    _run("bench")


def _run(word: str) -> NoReturn:
    sys.argv = [PARTS[word], word, *sys.argv[1:]]
    main()
