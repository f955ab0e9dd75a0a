"""Arguments of past calls, which clients send as JSON text or as objects."""

import json
from collections.abc import Mapping
from typing import Any


def read_arguments(given: object) -> Mapping[str, Any]:
    """Arguments as an object; those that are none, because a call was cut off or malformed, are `{}`."""
    if isinstance(given, Mapping):
        return given
    try:
        parsed = json.loads(given) if isinstance(given, str) else None
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {}
