"""The flags of vLLM and what Weft does with each value: it sets an option of Weft, has no effect, or is refused.

`vllm_flags.tsv` has one row per flag. `weft serve`, its configuration file and `weft.LLM` use this table.
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
    """How Weft treats a flag of vLLM."""

    SAME = "same"  # a flag of ours has the name
    TWIN = "twin"  # a flag of ours has another name: the first word of `detail`
    NEUTRAL = "neutral"  # the values in `detail`, and vLLM's default, change nothing here
    REFUSED = "refused"  # there is no value that could be followed


class Kind(StrEnum):
    """The kind of value that a flag has."""

    SWITCH = "switch"
    VALUE = "value"
    LIST = "list"


class Part(StrEnum):
    """Part of vLLM that a flag belongs to."""

    ENGINE = "engine"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class VllmFlag:
    """A row of the table of vLLM's flags.

    `detail` has values, or pairs of values, separated by spaces; `*` means any value. In a pair `THEIRS=OURS`, the
    value of vLLM comes before the "=", and Weft's value, or Weft's flag with its value, after it.
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
        """The flag's name as a field of the options: without "--", and with underscores."""
        return self.spellings[0].removeprefix("--").replace("-", "_")

    @property
    def is_json(self) -> bool:
        """True if Weft's flag of the same name takes a JSON object."""
        return self.use is Use.SAME and self.detail == ("json",)

    @property
    def pairs(self) -> dict[str, str]:
        """The pairs in `detail`: vLLM's value to Weft's."""
        return dict(pair.split("=", 1) for pair in self.detail if "=" in pair)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of Weft. `note` is a remark for the log, if vLLM's flag has another name than Weft's."""

    name: str
    value: Any
    note: str | None = None


@cache
def vllm_flags() -> Mapping[str, VllmFlag]:
    """Returns all rows of the table, by each spelling of their flags."""
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
    """Returns the flag with the name of a field, or of a key in a configuration file; None if vLLM has no such flag."""
    return vllm_flags().get("--" + name.replace("_", "-"))


def translate(flag: VllmFlag, value: Any, shown: str) -> Setting | None:
    """Returns the setting of Weft for a value of a vLLM flag; None if the value has no effect.

    Raises a `ConfigError` with the reason if Weft refuses the value; `shown` is the flag as the user wrote it.
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
            note = f"{shown} is translated to --{ours} {_text(value)}: {_lower(flag.why)}"
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
    """Parses JSON; returns the text itself if it is not valid JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    """Returns a value in the spelling that the table uses."""
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
