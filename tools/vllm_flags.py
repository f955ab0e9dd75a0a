"""vLLM's flags: read from an installed vLLM, brought into our table, shown on a page.

`python tools/vllm_flags.py list > FILE` needs a Python with vLLM. `python -m tools.vllm_flags apply FILE`
makes the first five columns of the table anew; a flag that is new there stands with "?", to be decided.
"""

import argparse
import csv
import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "src" / "weft" / "compat" / "vllm_flags.tsv"
OLDER = "older"
_MAX_DEFAULT = 80


def rows_of(
    parser: argparse.ArgumentParser, release: str, of_engine: Collection[str] = ()
) -> list[tuple[str, ...]]:
    """Spellings, release, kind, part and default of each flag; a default that is no plain value is left out.

    `of_engine` are those that the engine is made with; the others are the server's.
    """
    rows = []
    for action in parser._actions:
        long_first = sorted(action.option_strings, key=lambda text: not text.startswith("--"))
        if not long_first or "--help" in long_first:
            continue
        if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
            kind = "switch"
        else:
            kind = "list" if action.nargs in ("+", "*") else "value"
        default = getattr(action.default, "value", action.default)
        is_plain = isinstance(default, bool | int | float | str) and default != argparse.SUPPRESS
        shown = str(default)[:_MAX_DEFAULT] if is_plain else ""
        part = "engine" if action.dest in of_engine else "server"
        rows.append((" ".join(long_first), release, kind, part, shown))
    return sorted(rows)


def read_vllm() -> list[tuple[str, ...]]:
    """The rows of the vLLM of this Python."""
    version = import_module("vllm").__version__
    parser_class = import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    parser = import_module("vllm.entrypoints.common.cli_args").make_arg_parser(parser_class())
    arguments = import_module("vllm.engine.arg_utils").AsyncEngineArgs
    engines = {action.dest for action in arguments.add_cli_args(parser_class())._actions}
    return rows_of(parser, ".".join(version.split(".")[:2]), engines)


def merged(table: str, listed: str) -> str:
    """The table's text with the first five columns as `listed` has them; what that lacks has gone from vLLM."""
    comments = [line for line in table.splitlines() if line.startswith("#")]
    ours = {row["spellings"].split()[0]: row for row in _read(table)}
    theirs = {row["spellings"].split()[0]: row for row in _read(listed)}
    rows = [_joined(row, ours.get(name, {})) for name, row in theirs.items()]
    gone = [row for name, row in ours.items() if name not in theirs]
    rows += [_joined({**row, "release": OLDER}, row) for row in gone]
    return "\n".join([*comments, "\t".join(_COLUMNS), *rows]) + "\n"


_COLUMNS = ("spellings", "release", "kind", "part", "default", "use", "detail", "why")
_NUM_THEIRS = 5


def _joined(left: Mapping[str, str], right: Mapping[str, str]) -> str:
    decided = (right.get("use", "?"), right.get("detail", ""), right.get("why", ""))
    return "\t".join([*(left[column] for column in _COLUMNS[:_NUM_THEIRS]), *decided])


def _read(text: str) -> list[dict[str, str]]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def main() -> int:
    """List, or apply a list."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    commands.add_parser("apply").add_argument("file", type=Path)
    given = parser.parse_args()
    if given.command == "list":
        print("\t".join(_COLUMNS[:_NUM_THEIRS]))
        for row in read_vllm():
            print("\t".join(row))
        return 0
    listed = given.file.read_text(encoding="utf-8")
    TABLE.write_text(merged(TABLE.read_text(encoding="utf-8"), listed), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
