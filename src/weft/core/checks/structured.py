"""Checks the sizes of structured-output constraints; this module builds no grammar.

A constraint within these limits may still be an invalid grammar: the engine builds the grammar, within a time limit.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any

from weft.core.checks.json_schema import BOUNDS, LEAST, MAX_COUNT, held
from weft.core.errors import BadRequest
from weft.core.values.types import StructuredOutputsParams
from weft.core.values.unicode import encode_text

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
MAX_GRAMMAR_BYTES = 64 * 1024
MAX_JSON_DEPTH = 64
MAX_TAG_DEPTH = 80  # a schema of maximum depth plus the structural tags around it
MAX_CHOICES = 4096
# The grammar library unrolls counted repetitions.
MAX_REPEATS = 10_000
MAX_WHITESPACE_CHARS = 256
# An integer that float64 rounds to -2**63, used as a constant, crashes llguidance 1.9.1 (SIGSEGV).
FATAL_NUMBERS = range(-(2**63), -(2**63) + 2**9 + 1)
_FATAL_DIGITS = "-9223372036854775"  # the first digits that all these numbers share
_NEVER_CONSTANTS = frozenset({*BOUNDS, "default", "examples"})
_MAX_LISTED = 5
_MAX_PLACE_CHARS = 60

_REPEATS = re.compile(r"(?<!\\)\{\s*(\d*)\s*,?\s*(\d*)\s*\}")


def validate_structured_outputs(params: object) -> None:
    """Raises `BadRequest`, naming the constraint, unless exactly one constraint is given and within the limits."""
    if params is None:
        return
    if not isinstance(params, StructuredOutputsParams):
        raise BadRequest(
            "structured_outputs",
            f"structured_outputs must be StructuredOutputsParams, got a {type(params).__name__}",
        )
    kind = kind_of(params)
    value = getattr(params, kind)
    match kind:
        case "json":
            schema_of(value)
        case "json_object":
            if value is not True:
                raise BadRequest(kind, "json_object must be true or absent")
        case "regex" | "grammar":
            _check_text(kind, value)
            _check_repeats(kind, value)
        case "choice":
            _check_choice(value)
        case _:
            _check_tag(value)
    _check_whitespace(kind, params.whitespace_pattern)


def kind_of(params: StructuredOutputsParams) -> str:
    """Returns the name of the only constraint that is given."""
    given = [kind for kind in KINDS if getattr(params, kind) is not None]
    if len(given) != 1:
        raise BadRequest(
            "structured_outputs",
            f"structured_outputs takes exactly one of {', '.join(KINDS)}; "
            f"got {' and '.join(given) or 'none'}",
        )
    return given[0]


def schema_of(value: object) -> dict[str, Any]:
    """Returns a JSON schema, given as text or as an object, as an object."""
    text = value if isinstance(value, str) else _to_json(value)
    schema = _parsed("json", text, MAX_JSON_DEPTH)
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise BadRequest("json", f"json must be a schema, an object, got {text[:40]!a}")
    return schema


def unheld(schema: object) -> str | None:
    """Returns, as one text, the places of a schema's rules that the grammar does not enforce; None if there are none.

    Returns None for an invalid schema too: `validate_structured_outputs` refuses it.
    """
    try:
        places = held(schema_of(schema)).unheld
    except BadRequest:
        return None
    more = len(places) - _MAX_LISTED
    listed = ", ".join(place[:_MAX_PLACE_CHARS] for place in places[:_MAX_LISTED])
    return (listed if more <= 0 else f"{listed} and {more} more") or None


def check_strict(parameter: str, name: str, schema: Mapping[str, Any] | None) -> None:
    """Raises `BadRequest` unless the grammar enforces the whole schema.

    `name` is the place of the schema in the request.
    """
    if schema is not None and (places := unheld(dict(schema))):
        raise BadRequest(
            parameter,
            f"{name}: strict must be absent or false, since no grammar can enforce {places}",
        )


def _check_tag(text: object) -> None:
    """Checks that a structural tag is an object within the limits; the engine checks its parts when it builds the
    grammar.
    """
    tag = _parsed("structural_tag", text, MAX_TAG_DEPTH)
    if not isinstance(tag, dict) or tag.get("type") != "structural_tag":
        raise BadRequest(
            "structural_tag", 'structural_tag must be an object of type "structural_tag"'
        )
    if ("format" in tag) == ("structures" in tag):
        raise BadRequest("structural_tag", "structural_tag must have either format or structures")
    if unknown := sorted(tag.keys() - {"type", "format", "structures", "triggers"}):
        raise BadRequest("structural_tag", f"structural_tag has unknown keys {unknown[:5]}")


def _parsed(kind: str, text: object, max_depth: int) -> Any:
    _check_text(kind, text)
    assert isinstance(text, str)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep(kind, max_depth) from None
    except ValueError as error:
        raise BadRequest(kind, f"{kind} is not valid JSON: {error}") from error
    check_depth(kind, value, max_depth, partial(_check_sizes, kind))
    if _FATAL_DIGITS in text:
        check_depth(kind, value, max_depth, partial(_check_constants, kind))
    return value


def _to_json(value: object) -> str:
    if not isinstance(value, dict):
        raise BadRequest("json", f"json must be text or an object, got a {type(value).__name__}")
    _check_size(value)
    try:
        return json.dumps(value, allow_nan=False)
    except RecursionError:
        raise _too_deep("json", MAX_JSON_DEPTH) from None
    except (TypeError, ValueError) as error:
        raise BadRequest("json", f"json must be plain JSON: {error}") from error


def _check_size(whole: dict[Any, Any]) -> None:
    """Refuses a value that is too long in any JSON encoding, without encoding it: half a million numbers take 0.2 s."""
    num_bytes = 0
    unread: list[object] = [whole]
    seen: set[int] = set()  # encoding refuses values that contain themselves
    while unread:
        value = unread.pop()
        inner: Iterable[object] = ()
        if isinstance(value, str):
            num_bytes += len(value)
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            num_bytes += len(value)
            inner = chain.from_iterable(value.items()) if isinstance(value, dict) else value
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise BadRequest(
                "json", f"json takes at most {MAX_GRAMMAR_BYTES} bytes of UTF-8, got more"
            )
        unread += inner


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def check_depth(
    kind: str, whole: object, max_depth: int, look: Callable[[dict[Any, Any]], None] | None = None
) -> None:
    """Raises `BadRequest` for nesting deeper than `max_depth`, without recursion; calls `look` with every object."""
    level: list[object] = [whole]
    for _ in range(max_depth + 1):
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
                if look is not None:
                    look(value)
            elif isinstance(value, list):
                below += value
        if not below:
            return
        level = below
    raise _too_deep(kind, max_depth)


def _check_sizes(kind: str, schema: dict[Any, Any]) -> None:
    """Raises `BadRequest` for minimum counts, or repetitions in a pattern or grammar, that are too large."""
    for key in LEAST:
        count = schema.get(key)
        if isinstance(count, int | float) and count > MAX_COUNT:
            raise BadRequest(kind, f"{kind}: {key} must be at most {MAX_COUNT}")
    for text in (schema.get("pattern"), schema.get("grammar")):
        if isinstance(text, str):
            _check_repeats(kind, text)


def _check_constants(kind: str, schema: dict[Any, Any]) -> None:
    """Raises `BadRequest` if a schema, or a list in it, has a number that crashes the grammar library."""
    for key in schema.keys() - _NEVER_CONSTANTS:
        if _has_fatal_number(schema[key]):
            raise BadRequest(
                kind,
                f"{kind}: {key} must have no integer from {FATAL_NUMBERS[0]} to {FATAL_NUMBERS[-1]}",
            )


def _has_fatal_number(value: object) -> bool:
    unread = [value]
    while unread:
        value = unread.pop()
        if isinstance(value, list):
            unread += value
        elif isinstance(value, int) and value in FATAL_NUMBERS:
            return True
    return False


def _too_deep(kind: str, max_depth: int) -> BadRequest:
    return BadRequest(kind, f"{kind} is nested deeper than {max_depth} levels")


def _check_text(kind: str, value: object) -> None:
    if not isinstance(value, str):
        raise BadRequest(kind, f"{kind} must be text, got a {type(value).__name__}")
    if not value.strip():
        raise BadRequest(kind, f"{kind} must not be empty")
    if "\0" in value:
        raise BadRequest(kind, f"{kind} must not contain a NUL character")
    num_bytes = len(encode_text(kind, value))
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise BadRequest(
            kind, f"{kind} takes at most {MAX_GRAMMAR_BYTES} bytes of UTF-8, got {num_bytes}"
        )


def _check_repeats(kind: str, text: str) -> None:
    for found in _REPEATS.finditer(text):
        if any(len(count) > 9 or int(count or 0) > MAX_REPEATS for count in found.groups()):
            raise BadRequest(
                kind,
                f"{kind}: a repetition must be at most {MAX_REPEATS} times, got {found.group()[:40]}",
            )


def _check_choice(value: object) -> None:
    if not isinstance(value, list | tuple) or not value:
        raise BadRequest("choice", "choice must be a list of at least one string")
    if len(value) > MAX_CHOICES:
        raise BadRequest("choice", f"choice takes at most {MAX_CHOICES} strings, got {len(value)}")
    for item in value:
        if not isinstance(item, str) or not item:
            raise BadRequest("choice", "choice must hold strings, none of them empty")
    num_bytes = sum(len(encode_text("choice", item)) for item in value)
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise BadRequest(
            "choice", f"choice takes at most {MAX_GRAMMAR_BYTES} bytes of UTF-8, got {num_bytes}"
        )


def _check_whitespace(kind: str, pattern: object) -> None:
    if pattern is None:
        return
    if kind not in {"json", "json_object"}:
        raise BadRequest(
            "whitespace_pattern",
            f"whitespace_pattern is allowed with json or json_object, not with {kind}",
        )
    _check_text("whitespace_pattern", pattern)
    assert isinstance(pattern, str)
    if len(pattern) > MAX_WHITESPACE_CHARS:
        raise BadRequest(
            "whitespace_pattern",
            f"whitespace_pattern takes at most {MAX_WHITESPACE_CHARS} characters, got {len(pattern)}",
        )
    _check_repeats("whitespace_pattern", pattern)
