"""Entry points of the distributions that contain one command: `weft-picker` runs `weft epp`, `weft-bench` runs `weft
bench`.
"""

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
