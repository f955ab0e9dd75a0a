"""Compare the facts of chat templates in a directory with the table that the tests hold.

Run as `python -m tools.template_facts DIRECTORY`. Templates that models were published with are not part
of this repository; their facts are. A row is found by the hash of a template's text. --write makes the
table anew, of the directory's *.jinja files.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from weft.core.errors import ConfigError
from weft.text.templates.chat import ChatTemplate
from weft.text.templates.template_facts import TemplateFacts

TABLE = Path(__file__).resolve().parent.parent / "tests" / "text" / "published_templates.json"
_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def main() -> int:
    """0 where every template that the table knows has its facts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = [_row(path) for path in sorted(options.directory.glob("*.jinja"))]
    if options.write:
        TABLE.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")
        return 0
    known = {row["sha256"]: row for row in json.loads(TABLE.read_text(encoding="utf-8"))}
    found = [(row, known[row["sha256"]]) for row in rows if row["sha256"] in known]
    differing = [(row, old) for row, old in found if row["facts"] != old["facts"]]
    for row, old in differing:
        print(f"{row['name']}: {row['facts']}, in the table {old['facts']}")
    print(f"{len(rows)} templates, {len(found)} of them in the table, {len(differing)} differ")
    return 1 if differing else 0


def _row(path: Path) -> dict[str, Any]:
    source = path.read_text(encoding="utf-8")
    return {
        "name": path.stem,
        "sha256": hashlib.sha256(source.encode()).hexdigest(),
        "facts": _facts(source),
    }


def _facts(source: str) -> dict[str, Any]:
    """Those that are not the default."""
    try:
        with ChatTemplate(source, _TOKENS) as template:
            found = msgspec.to_builtins(template.facts(has_tools=True), order="deterministic")
    except ConfigError as error:
        sys.exit(str(error))
    usual = msgspec.to_builtins(TemplateFacts())
    return {name: value for name, value in found.items() if value != usual[name]}


if __name__ == "__main__":
    sys.exit(main())
