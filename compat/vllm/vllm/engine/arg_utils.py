"""vLLM's `EngineArgs` and `AsyncEngineArgs`: the options of an engine as one object."""

import argparse
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Self

from weft.compat.vllm import Kind, Part, find_flag, vllm_flags
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import BadRequest
from weft.engine.llm.llm_options import fit_options
from weft.engine.start.fit import Fitted

_DEFAULT = "embedded:tiny"


class EngineArgs:
    """The options of `LLM`, by name; each is an attribute. An unknown name is refused at once, a value when it is read.

    Options that were not given are None.
    """

    def __init__(self, model: str = _DEFAULT, **options: Any) -> None:
        for name in options:
            _check_name(name)
        self.model = model
        self.options = options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "options":
            raise AttributeError(name)
        _check_name(name)
        return self.options.get(name)

    def __repr__(self) -> str:
        given = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}(model={self.model!r}{given})"

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Adds vLLM's flags of an engine to a parser; a flag that is not given is None."""
        parser.add_argument("--model", default=_DEFAULT)
        seen = {"--model"}
        for flag in vllm_flags().values():
            if flag.part is not Part.ENGINE or seen & set(flag.spellings):
                continue
            seen.update(flag.spellings)
            kind: Mapping[str, Any] = {}
            if flag.kind is Kind.SWITCH:
                kind = {"action": argparse.BooleanOptionalAction}
            elif flag.kind is Kind.LIST:
                kind = {"nargs": "+"}
            names = [one for one in flag.spellings if not one.startswith("--no-")]
            parser.add_argument(*names, dest=flag.name, default=None, **kind)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Returns the options among the arguments of a command line. Numbers are read from texts."""
        given = {name: value for name, value in vars(args).items() if value is not None}
        known = {name: _number(value) for name, value in given.items() if _is_known(name)}
        return cls(**known)

    def create_engine_config(self, *_: Any, **__: Any) -> SimpleNamespace:
        """Returns the configuration that an engine would have, in the parts that vLLM's has: `model_config`,
        `cache_config`, `scheduler_config`. Raises an error for options that cannot be served.
        """
        config = self.fit().config
        return SimpleNamespace(
            model_config=config.model_config,
            cache_config=config.cache_config,
            scheduler_config=config.scheduler_config,
            engine_config=config,
        )

    def fit(self) -> Fitted:
        """Returns the checked model and configuration."""
        return fit_options(self.model, self.options)


class AsyncEngineArgs(EngineArgs):
    """The same, for `AsyncLLMEngine`."""


def _is_known(name: str) -> bool:
    return name in EngineOptions.__struct_fields__ or find_flag(name) is not None


def _check_name(name: str) -> None:
    if not _is_known(name):
        raise BadRequest(name, f"there is no option {name!r}: neither vLLM nor Weft has it")


def _number(value: Any) -> Any:
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            continue
    return value
