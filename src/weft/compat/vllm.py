"""The flags of vLLM, and the meaning of each value here: a setting of Weft, no effect, or a refusal.

`vllm_flags.tsv` has one row per flag. `weft serve`, its settings file and `weft.LLM` use this table.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any

from weft.core.errors import ConfigError

_ANY = "*"


class Use(StrEnum):
    """How Weft treats a flag."""

    SAME = "same"  # a flag of ours has the name
    TWIN = "twin"  # a flag of ours has another name: the first word of `detail`
    NEUTRAL = "neutral"  # the values in `detail`, and vLLM's default, change nothing here
    REFUSED = "refused"  # there is no value that could be followed


class Kind(StrEnum):
    """Kind of value that follows a flag."""

    SWITCH = "switch"
    VALUE = "value"
    LIST = "list"


class Part(StrEnum):
    """Part of vLLM that a flag belongs to."""

    ENGINE = "engine"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """A row of the table.

    `detail` has values, or pairs of values, separated by spaces; `*` means any value. After the "=" of a pair comes
    the value here, or a flag of Weft with that value.
    """

    spellings: tuple[str, ...]
    release: str  # of vLLM that has it; "older": none any more
    kind: Kind
    part: Part
    default: str
    use: Use
    detail: tuple[str, ...]
    why: str

    @property
    def name(self) -> str:
        """As a field is written."""
        return self.spellings[0].removeprefix("--").replace("-", "_")

    @property
    def is_json(self) -> bool:
        """True if our flag takes a JSON object."""
        return self.use is Use.SAME and self.detail == ("json",)

    @property
    def pairs(self) -> dict[str, str]:
        """The pairs in `detail`: the text before each "=" to the text after it."""
        return dict(pair.split("=", 1) for pair in self.detail if "=" in pair)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of Weft. A `note` means that it was given under another name."""

    name: str
    value: Any
    note: str | None = None


@cache
def vllm_flags() -> Mapping[str, VllmFlag]:
    """All rows, by each of their spellings."""
    text = (files("weft.compat") / "vllm_flags.tsv").read_text(encoding="utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    flags = [
        VllmFlag(
            spellings=tuple(row["spellings"].split()),
            release=row["release"],
            kind=Kind(row["kind"]),
            part=Part(row["part"]),
            default=row["default"],
            use=Use(row["use"]),
            detail=tuple(row["detail"].split()),
            why=row["why"],
        )
        for row in rows
    ]
    return {spelling: flag for flag in flags for spelling in flag.spellings}


def find_flag(name: str) -> VllmFlag | None:
    """By the name of a field or of a key in a file."""
    return vllm_flags().get("--" + name.replace("_", "-"))


def translate(flag: VllmFlag, value: Any, shown: str) -> Setting | None:
    """The setting that `value` means; None if it has no effect.

    `shown` is the caller's spelling, for a `ConfigError` with the reason of a refusal.
    """
    other = flag.pairs.get(_text(value), "")
    if other.startswith("--"):  # the value has a flag of its own
        name, _, text = other.removeprefix("--").partition("=")
        return Setting(name.replace("-", "_"), text)
    match flag.use:
        case Use.SAME:
            return _same(flag, value)
        case Use.TWIN:
            ours = flag.detail[0]
            value = flag.pairs.get(_text(value), value)
            note = f"{shown} is --{ours} {_text(value)} here: {_lower(flag.why)}"
            return Setting(ours.replace("-", "_"), value, note)
        case Use.NEUTRAL:
            _check_neutral(flag, value, shown)
            return None
        case Use.REFUSED:
            if _is_same(_text(value), flag.default):  # written out, and switched off
                return None
            raise _refusal(flag, shown)


def _same(flag: VllmFlag, value: Any) -> Setting | None:
    if flag.detail == ("json-list",) and isinstance(value, str) and value.startswith("["):
        value = json_value(value)
    changed = flag.pairs.get(_text(value))
    if changed == "":
        return None
    return Setting(flag.name, value if changed is None else changed)


def _check_neutral(flag: VllmFlag, value: Any, shown: str) -> None:
    if _ANY in flag.detail:
        return
    given = json_value(value) if isinstance(value, str) and value.startswith("{") else value
    if isinstance(given, dict):
        allowed = flag.pairs
        for key, one in given.items():
            if allowed.get(key) not in (_ANY, _text(one)):
                raise _refusal(flag, f"{shown}: {key}")
    elif not any(_is_same(_text(value), text) for text in (flag.default, *flag.detail)):
        raise _refusal(flag, shown)


def _refusal(flag: VllmFlag, shown: str) -> ConfigError:
    return ConfigError(f"{shown} is not supported: {_lower(flag.why)}")


def json_value(text: str) -> Any:
    """Parses JSON; returns the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    """A value in the spelling of the table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value)
    return "" if value is None else str(value).strip()


def _is_same(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one.lower() == other.lower()


def _lower(sentence: str) -> str:
    if sentence[1:2].isupper():  # an abbreviation
        return sentence.removesuffix(".")
    return sentence[:1].lower() + sentence[1:].removesuffix(".")
