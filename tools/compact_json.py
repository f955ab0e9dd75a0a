"""JSON that is generated, in few lines: what fits has one, and so has an array of plain values."""

import json
from typing import Any

_WIDTH = 120


def compact_json(value: Any, indent: str = "") -> str:
    """Its text, without a line break at the end."""
    line = json.dumps(value, ensure_ascii=False)
    below = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple) or not below:
        return line
    is_flat = not isinstance(value, dict) and not any(
        isinstance(one, dict | list | tuple) for one in below
    )
    if is_flat or len(indent) + len(line) <= _WIDTH:
        return line
    deeper = indent + " "
    rows = [compact_json(one, deeper) for one in below]
    if isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {row}" for key, row in zip(value, rows, strict=True)]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{deeper}" + f",\n{deeper}".join(rows) + f"\n{indent}{end}"
