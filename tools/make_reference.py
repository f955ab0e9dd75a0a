"""Write docs/reference/ from the code: `make docs`. With --check, only say what is out of date."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {}


def out_of_date() -> list[str]:
    """Names of the pages whose file differs from what the code says now."""
    return [
        name
        for name, render in PAGES.items()
        if not (REFERENCE / name).is_file()
        or (REFERENCE / name).read_text(encoding="utf-8") != render()
    ]


def main() -> int:
    """Write every page, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    if parser.parse_args().check:
        stale = out_of_date()
        print(f"docs: out of date, run `make docs`: {stale}" if stale else "docs: up to date")
        return 1 if stale else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, render in PAGES.items():
        (REFERENCE / name).write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
