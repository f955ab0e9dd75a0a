"""Translates the arguments of `vllm serve` to those of `weft serve` before they are parsed. vLLM's flags are recognized
by full names and short forms only, not by prefixes.

With `--engine vllm`, flags of vLLM's engine are passed to vLLM's own parser.
"""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from weft.cli.arguments.flags import SHORT
from weft.cli.arguments.settings import NOTES, VLLM_WORDS
from weft.cli.options import ServeOptions
from weft.compat.vllm import Kind, Part, Setting, VllmFlag, json_value, translate, vllm_flags
from weft.core.errors import ConfigError
from weft.core.values.declare import nearest_flag
from weft.vllm.convert.settings import READ_HERE

_HELP = ("--help", "-h", "--version")
_LEVEL = "-O"  # flag of the optimization level: vLLM has -O3, -O 3 and -O.mode=3
_SHORT = {f"--{name.replace('_', '-')}": short for name, short in SHORT.items()}


def to_own_arguments(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with vLLM's flags translated to Weft's. Raises a `ConfigError` that names a flag that is
    unknown or not supported.
    """
    return _Line(arguments).read()


class _Line:
    """A command line that is read once, from left to right."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._words = deque(arguments)
        self._out: list[str] = []
        # Values of dotted flags (--flag.key), by flag name.
        self._objects: dict[str, dict[str, Any]] = {}
        # A list flag takes all words up to the next flag if the model is named elsewhere: as the first argument, or
        # with --model.
        has_model = any(word.partition("=")[0] == "--model" for word in arguments)
        self._is_model_named = has_model or not arguments[:1] or not arguments[0].startswith("-")
        pairs = pairwise(arguments)
        self._is_vllm = "--engine=vllm" in arguments or ("--engine", "vllm") in pairs

    def read(self) -> list[str]:
        while self._words:
            word = self._words.popleft()
            if word == "--":
                self._out += [word, *self._words]
                break
            if word.startswith("-") and word != "-":
                self._read_flag(word)
            else:
                self._out.append(word)
        for name, value in self._objects.items():
            flag = vllm_flags()[name]
            text = json.dumps(value)
            self._take(flag, text if flag.is_json else value, f"{name} {text}")
        return self._out

    def _read_flag(self, word: str) -> None:
        text, has_value, value = word.partition("=")
        head, dot, path = text.partition(".")
        name = head.replace("_", "-")
        flag = vllm_flags().get(name)
        if flag is not None and self._is_vllms_own(flag):
            self._pass_on(flag, word, has_value=bool(has_value) or word.startswith("--no-"))
        elif flag is not None and dot:
            self._read_dotted(flag, path, value if has_value else self._next(text))
        elif flag is not None:
            self._read_known(flag, name, value if has_value else None)
        elif word.startswith(_LEVEL):
            if word == _LEVEL:
                self._next(word)
        else:
            self._read_own(name, word, has_value=bool(has_value))

    def _is_vllms_own(self, flag: VllmFlag) -> bool:
        return self._is_vllm and flag.part is Part.ENGINE and flag.name not in READ_HERE

    def _pass_on(self, flag: VllmFlag, word: str, *, has_value: bool) -> None:
        """Passes a flag of vLLM's engine and its values to vLLM's parser, unchanged."""
        words = [word]
        is_dotted = "." in word.partition("=")[0]
        if not has_value and (is_dotted or flag.kind is not Kind.SWITCH):
            words.append(self._next(word))
            while flag.kind is Kind.LIST and self._is_model_named and self._has_more():
                words.append(self._words.popleft())
        self._out += [f"{VLLM_WORDS}={one}" for one in words]

    def _read_known(self, flag: VllmFlag, name: str, value: str | None) -> None:
        if flag.kind is Kind.SWITCH:
            is_on = not name.startswith("--no-") and (value or "true").lower() != "false"
            self._take(flag, is_on, name)
            return
        values = [self._next(name) if value is None else value]
        while flag.kind is Kind.LIST and self._is_model_named and self._has_more():
            values.append(self._words.popleft())
        for one in values:
            self._take(flag, one, f"{name} {one}")

    def _read_dotted(self, flag: VllmFlag, path: str, value: str) -> None:
        """Reads a flag with a dotted name: `--flag.a.b 1` means `--flag '{"a": {"b": 1}}'`, and `--flag.a+ 1` appends
        to a list.
        """
        where = self._objects.setdefault(flag.spellings[0], {})
        *above, last = path.split(".")
        for key in above:
            where = where.setdefault(key, {})
            if not isinstance(where, dict):
                raise ConfigError(
                    f"{flag.spellings[0]}.{path}: {key} has a plain value, so it has no keys below it"
                )
        if last.endswith("+"):
            where.setdefault(last[:-1], []).append(json_value(value))
        else:
            where[last] = json_value(value)

    def _read_own(self, name: str, word: str, *, has_value: bool) -> None:
        takes_value = _own_flags().get(name)
        if takes_value is None and name not in _HELP:
            raise ConfigError(_unknown(name))
        self._out.append(word)
        if takes_value and not has_value and self._words:
            self._out.append(self._words.popleft())

    def _take(self, flag: VllmFlag, value: Any, shown: str) -> None:
        setting = translate(flag, value, shown)
        if setting is None:
            return
        values = setting.value if isinstance(setting.value, list) else [setting.value]
        for one in values:
            if isinstance(one, bool):
                self._out.append(f"--{'' if one else 'no-'}{_dashed(setting)}")
            else:
                self._out.append(f"--{_dashed(setting)}={one}")
        if setting.note:
            self._out.append(f"{NOTES}={setting.note}")

    def _next(self, name: str) -> str:
        if not self._words:
            raise ConfigError(f"{name} needs a value")
        return self._words.popleft()

    def _has_more(self) -> bool:
        return bool(self._words) and not self._words[0].startswith("-")


def _dashed(setting: Setting) -> str:
    return setting.name.replace("_", "-")


def _own_flags() -> dict[str, bool]:
    """Returns the flags of `weft serve`, and for each whether a value follows it."""
    hints = get_type_hints(ServeOptions)
    flags = {"--model": True}
    for field in fields(ServeOptions):
        name = field.name.replace("_", "-")
        hint = hints[field.name]
        is_switch = hint is bool or bool in get_args(hint)
        flags[f"--{name}"] = not is_switch
        if is_switch:
            flags[f"--no-{name}"] = False
    return flags | {short: flags[long] for long, short in _SHORT.items() if long in flags}


def _unknown(name: str) -> str:
    known = [*_own_flags(), *vllm_flags()]
    near = nearest_flag(name, known)
    hint = f" Did you mean {near}?" if near else " weft serve --help lists all flags."
    return f"{name} is unknown.{hint}"
