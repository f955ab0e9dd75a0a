"""Translates a request's constraint into the text from which the grammar library builds a grammar."""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import llguidance
from llguidance import LLMatcher

from weft.core.checks.json_schema import held
from weft.engine.constraints import structural_tag
from weft.engine.constraints.gbnf import is_gbnf, to_lark

_LIBRARY = tuple(int(part) for part in llguidance.__version__.split(".")[:2])
_KNOWS_WHITESPACE = (1, 9)  # older versions of the grammar library ignore such a pattern silently

NO_SPECIAL_IDS: Mapping[str, int] = MappingProxyType({})


def to_grammar_text(
    kind: str,
    value: Any,
    whitespace_pattern: str | None,
    special_ids: Mapping[str, int] = NO_SPECIAL_IDS,
) -> str:
    """Returns the grammar in the grammar library's notation. Raises `ValueError` for a constraint that it cannot
    express.

    `special_ids` are the model's special tokens, by name.
    """
    match kind:
        case "json":
            return _json_grammar(value, whitespace_pattern)
        case "json_object":
            return _json_grammar({"type": "object"}, whitespace_pattern)
        case "regex":
            return str(LLMatcher.grammar_from_regex(value))
        case "choice":
            # One regular expression: a thousand alternatives are too many as grammar rules.
            return str(LLMatcher.grammar_from_regex("|".join(map(re.escape, value))))
        case "grammar":
            return str(LLMatcher.grammar_from_lark(to_lark(value) if is_gbnf(value) else value))
        case "structural_tag":
            return structural_tag.to_grammar(json.loads(value), special_ids)
        case _:
            raise ValueError(f"unknown constraint {kind}")


def _json_grammar(given: dict[str, Any], whitespace_pattern: str | None) -> str:
    """Returns the grammar of a JSON schema. Without `whitespace_pattern` it allows no optional whitespace.

    A model could otherwise generate whitespace for ever.
    """
    # Passed as text: in an object the library accepts no integers beyond 64 bits.
    schema = json.dumps(held(given).schema)
    if whitespace_pattern is None:
        return str(
            LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
        )
    if _LIBRARY < _KNOWS_WHITESPACE:
        raise ValueError(
            f"whitespace_pattern needs llguidance {_KNOWS_WHITESPACE[0]}.{_KNOWS_WHITESPACE[1]}, and "
            f"{llguidance.__version__} is installed"
        )
    return str(
        LLMatcher.grammar_from_json_schema(
            schema,
            overrides={"whitespace_flexible": True, "whitespace_pattern": whitespace_pattern},
        )
    )
