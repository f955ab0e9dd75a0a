"""From what a caller asked an answer to look like to the text that the grammar library builds from."""

import re
from typing import Any

from llguidance import LLMatcher

from weft.engine.gbnf import is_gbnf, to_lark


def to_grammar_text(kind: str, value: Any, whitespace_pattern: str | None) -> str:
    """The library's own notation. `ValueError` where the constraint cannot be written in it."""
    match kind:
        case "json":
            return _json_grammar(value, whitespace_pattern)
        case "json_object":
            return _json_grammar({"type": "object"}, whitespace_pattern)
        case "regex":
            return str(LLMatcher.grammar_from_regex(value))
        case "choice":
            # One expression: as rules of a grammar, a thousand alternatives are too many.
            return str(LLMatcher.grammar_from_regex("|".join(map(re.escape, value))))
        case "grammar":
            return str(LLMatcher.grammar_from_lark(to_lark(value) if is_gbnf(value) else value))
        case _:
            raise ValueError(f"there is no constraint {kind}")


def _json_grammar(schema: dict[str, Any], whitespace_pattern: str | None) -> str:
    """Without whitespace unless asked for: a model can write it for ever and say nothing."""
    if whitespace_pattern is None:
        return str(
            LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
        )
    return str(
        LLMatcher.grammar_from_json_schema(
            schema,
            overrides={"whitespace_flexible": True, "whitespace_pattern": whitespace_pattern},
        )
    )
