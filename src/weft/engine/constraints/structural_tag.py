"""Structural tags: free text with constrained parts, translated into a grammar of the grammar library.

The module reads two notations: `{"structures": [{"begin", "schema", "end"}], "triggers"}`, and the newer `{"format":
{...}}` with nested parts. A marker that is a single special token may be generated as that token or spelled out as
text; both are equivalent.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.checks.json_schema import held
from weft.engine.constraints.gbnf import is_gbnf, to_lark

_SLASH = re.compile(r"(\\.)|/", re.DOTALL)
_FREE = ("any_text", "triggered_tags")
# Unlimited white space would let a model generate white space for ever. Most models were trained on calls with one
# space after a comma and a colon.
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
# Types of formats, and their allowed keys.
_KEYS = {
    "const_string": {"value"},
    "json_schema": {"json_schema"},
    "grammar": {"grammar"},
    "regex": {"pattern"},
    "any_text": set[str](),
    "sequence": {"elements"},
    "or": {"elements"},
    "tag": {"begin", "content", "end"},
    "triggered_tags": {"triggers", "tags", "at_least_one", "stop_after_first"},
    "tags_with_separator": {"tags", "separator", "at_least_one", "stop_after_first"},
}

_Part = dict[str, Any]
_WORDS: dict[type, str] = {str: "text", list: "a list", dict: "an object"}


def to_grammar(tag: dict[str, Any], special_ids: Mapping[str, int]) -> str:
    """Returns the text of the grammar. `special_ids` are the special tokens that do not end a sequence, by name."""
    if "format" in tag:
        return _Writer(special_ids).write(tag["format"])
    contents = [
        {
            "type": "tag",
            "begin": _text(structure, "begin"),
            "content": {"type": "json_schema", "json_schema": _get(structure, "schema", dict)},
            "end": _text(structure, "end"),
        }
        for structure in _list(tag, "structures")
    ]
    whole = {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": contents}
    return _Writer(special_ids).write(whole)


@dataclass(frozen=True, slots=True)
class _Lead:
    """A possible end of a stretch of free text: the text `trigger`, continued to the text `begin`, then the rule
    `rest`.
    """

    trigger: str
    begin: str
    rest: str


class _Writer:
    """Collects the rules of a grammar. Each expression describes a part of the text *and* the text that follows it.

    Free text extends up to the text that follows it, so the rule of free text needs the following text.
    """

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        self._special_ids = special_ids
        self._names = sorted(special_ids, key=len, reverse=True)
        self._rules: list[str] = []
        self._sides: list[dict[str, str]] = []

    def write(self, whole: object) -> str:
        """Returns the grammar of a whole format, which no text follows."""
        start = self._expression(whole, "")
        lines = ["%llguidance {}", f"start: {start}", "T: /(.|\\n)*/", *self._rules]
        main = {"name": "whole", "lark_grammar": "\n".join(lines) + "\n"}
        return json.dumps({"grammars": [main, *self._sides]})

    def _rule(self, kind: str, body: str, attributes: str = "") -> str:
        """Adds a rule and returns its name.

        A rule with a name in capitals is a terminal: one expression, matched as a whole.
        """
        name = f"{kind}{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _expression(self, part: object, end: str) -> str:
        kind = _text(part, "type")
        assert isinstance(part, dict)
        if kind not in _KEYS:
            raise ValueError(f"unknown format type {kind[:40]!a}")
        if unknown := sorted(part.keys() - _KEYS[kind] - {"type"}):
            raise ValueError(f"{kind} has unknown keys {unknown[:5]}")
        written: str = getattr(self, f"_{kind}")(part, end)
        return written

    def _const_string(self, part: _Part, end: str) -> str:
        return self._literal(_text(part, "value") + end)

    def _json_schema(self, part: _Part, end: str) -> str:
        schema = part.get("json_schema")
        if not isinstance(schema, dict | bool):
            raise ValueError("json_schema must be a schema")
        style = {"x-guidance": _JSON_STYLE}
        whole = held(schema).schema | style if isinstance(schema, dict) else style
        return f"%json {json.dumps(whole)} {self._literal(end)}"

    def _grammar(self, part: _Part, end: str) -> str:
        text = _text(part, "grammar")
        name = f"side{len(self._sides)}"
        lark = to_lark(text) if is_gbnf(text) else text
        self._sides.append({"name": name, "lark_grammar": lark})
        return f"@{name} {self._literal(end)}"

    def _regex(self, part: _Part, end: str) -> str:
        # The end text is part of the expression: a terminal alone matches as much as it can, and would include the end
        # text.
        quoted = _SLASH.sub(lambda m: m[1] or r"\/", _text(part, "pattern")).replace("\n", "\\n")
        alone = self._rule("R", f"/{quoted}/")
        if not end:
            return alone
        ended = self._rule("R", f"{alone} {_quoted(end)}")
        return f"({ended} | {alone} {self._literal(end)})"

    def _any_text(self, part: _Part, end: str) -> str:
        del part  # has no further keys
        return self._free([], end, then=None)

    def _or(self, part: _Part, end: str) -> str:
        return _either(self._expression(one, end) for one in _list(part, "elements"))

    def _sequence(self, part: _Part, end: str) -> str:
        parts: list[str] = []
        rest = list(_list(part, "elements"))
        while rest:
            one = rest.pop(0)
            kind = _text(one, "type")
            follows = ""
            if rest and kind in _FREE:
                if _text(rest[0], "type") != "const_string":
                    raise ValueError(
                        f"{kind} in a sequence must be last or stand before a const_string"
                    )
                follows = _text(rest.pop(0), "value")
            parts.append(self._expression(one, follows if rest else follows + end))
        return f"({' '.join(parts)})"

    def _tag(self, part: _Part, end: str) -> str:
        return f"{self._literal(_text(part, 'begin'))} {self._tag_rest(part, end)}"

    def _tag_rest(self, tag: object, end: str) -> str:
        """Returns the expression of a tag after its begin text."""
        ends = tag.get("end", "") if isinstance(tag, dict) else ""
        ends = ends if isinstance(ends, list) else [ends]
        if not ends or not all(isinstance(one, str) for one in ends):
            raise ValueError("end of a tag must be text, or a list of texts")
        content = _get(tag, "content", dict)
        after = self._literal(end)
        return self._rule("c", _either(f"{self._expression(content, one)} {after}" for one in ends))

    def _tags_with_separator(self, part: _Part, end: str) -> str:
        one = self._rule("t", _either(self._expression(tag, "") for tag in _list(part, "tags")))
        after = self._literal(end)
        separator = self._literal(_text(part, "separator"))
        more = "" if part.get("stop_after_first") else f" ({separator} {one})*"
        body = f"{one}{more}"
        return f"({body} {after})" if part.get("at_least_one") else f"(({body})? {after})"

    def _triggered_tags(self, part: _Part, end: str) -> str:
        triggers = _list(part, "triggers")
        if not all(isinstance(one, str) and one for one in triggers):
            raise ValueError("triggers must hold texts, and none of them empty")
        leads = []
        for tag in _list(part, "tags"):
            begin = _text(tag, "begin")
            trigger = next((one for one in triggers if begin.startswith(one)), None)
            if trigger is None:
                raise ValueError(f"the tag {begin[:40]!a} begins with none of the triggers")
            leads.append(_Lead(trigger, begin, self._tag_rest(tag, "")))
        then = self._literal(end) if part.get("stop_after_first") else None
        free = self._free(leads, end, then=then)
        if not part.get("at_least_one"):
            return free
        first = _either(f"{self._literal(lead.begin)} {lead.rest}" for lead in leads)
        return f"{first} {then or free}"

    def _literal(self, text: str) -> str:
        """Returns the expression of a text; each special token in it may be generated as that token or as its
        spelled name.
        """
        parts: list[str] = []
        rest = text
        while rest:
            found = [(rest.find(name), name) for name in self._names if name in rest]
            position, name = min(found, key=lambda one: one[0], default=(len(rest), ""))
            if position:
                parts.append(_quoted(rest[:position]))
            if name:
                parts.append(f"({_quoted(name)} | <[{self._special_ids[name]}]>)")
            rest = rest[position + len(name) :]
        return " ".join(parts) or '""'

    # -- free text ----------------------------------------------------------------------------

    def _free(self, tags: list[_Lead], end: str, *, then: str | None) -> str:
        """Adds the rule of free text that may contain tags, up to the text `end` (or the answer's end); returns its
        name.

        `then` is the rule that follows a tag; with None, more free text follows.
        """
        name = f"f{len(self._rules)}"
        self._rules.append("")  # reserves the index, because the rule refers to itself
        leads = [
            _Lead(tag.trigger, tag.begin, f"{tag.rest} {name if then is None else then}")
            for tag in tags
        ]
        leads += [_Lead(end, end, "")] if end else []
        # A special token that begins a trigger: the text after this token must not complete the trigger.
        begun = {
            special: [
                lead.trigger.removeprefix(special) for lead in leads if _begins(special, lead)
            ]
            for special in self._names
        }
        after = {special: f"{name}_{i}" for i, special in enumerate(self._names) if begun[special]}
        body = self._free_body(leads, (), name, after, is_last=not end)
        self._rules[int(name[1:])] = f"{name}: {body}"
        for special, rule in after.items():
            body = self._free_body(leads, begun[special], name, after, is_last=not end)
            self._rules.append(f"{rule}: {body}")
        return name

    def _free_body(
        self,
        leads: list[_Lead],
        barred: Iterable[str],
        name: str,
        after: dict[str, str],
        *,
        is_last: bool,
    ) -> str:
        """Returns the expression of one stretch of free text that begins with none of the `barred` texts, and of its
        ends.
        """
        bar = " | ".join(f"({_quoted(text)} T)" for text in dict.fromkeys(barred))
        text = self._rule("X", f"T & ~({bar})") if bar else "T"
        ways = [text] if is_last else []
        for trigger in dict.fromkeys(lead.trigger for lead in leads):
            whole = f"T {_quoted(trigger)}"
            terminal = self._rule("X", f"({whole}) & ~({bar})" if bar else whole)
            met = self._rule("m", terminal, "[lazy]")
            ways += [
                f"{met} {self._literal(lead.begin.removeprefix(trigger))} {lead.rest}"
                for lead in leads
                if lead.trigger == trigger
            ]
        plain: list[int] = []
        for special in self._names:
            token = f"{text} <[{self._special_ids[special]}]>"
            ways += [
                f"{token} {self._literal(lead.begin.removeprefix(special))} {lead.rest}"
                for lead in leads
                if lead.begin.startswith(special)
                and (special.startswith(lead.trigger) or lead.trigger.startswith(special))
            ]
            if special in after:
                ways.append(f"{token} {after[special]}")
            elif not any(lead.trigger in special for lead in leads):
                plain.append(self._special_ids[special])
        if plain:
            ways.append(f"{text} <[{_ranges(plain)}]> {name}")
        return " | ".join(ways)


def _begins(special: str, lead: _Lead) -> bool:
    return lead.trigger.startswith(special) and lead.trigger != special


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in runs)


def _either(expressions: Iterable[str]) -> str:
    return "(" + " | ".join(expressions) + ")"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _text(part: object, name: str) -> str:
    value: str = _get(part, name, str)
    return value


def _list(part: object, name: str) -> list[Any]:
    value: list[Any] = _get(part, name, list)
    if not value:
        raise ValueError(f"{name} must not be empty")
    return value


def _get(part: object, name: str, kind: type[str | list[Any] | dict[str, Any]]) -> Any:
    if not isinstance(part, dict):
        raise ValueError(f"expected an object with {name}, not {json.dumps(part)[:40]}")
    value = part.get(name)
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {_WORDS[kind]} in {json.dumps(part)[:80]}")
    return value
