"""The parameters of a request as a table, made of what `SamplingParams` says beside its fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from weft.core.values.declare import Carried, Param, declared
from weft.core.values.types import SamplingParams

_PLAIN = Param()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of them. `kind` is its type, without the None that it takes if it `is_optional`."""

    name: str
    type: Any
    kind: Any
    is_optional: bool
    default: Any
    param: Param


def _read() -> Mapping[str, Parameter]:
    defaults = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}
    table = {}
    for field in declared(SamplingParams):
        name = field.name
        param = next((note for note in field.notes if isinstance(note, Param)), _PLAIN)
        table[name] = Parameter(
            name, field.type, field.only_type, field.is_optional, defaults[name], param
        )
    return MappingProxyType(table)


PARAMETERS: Mapping[str, Parameter] = _read()
BOOLEANS = tuple(p.name for p in PARAMETERS.values() if p.kind is bool)
NUMBERS = tuple(p for p in PARAMETERS.values() if p.kind is float)
# Without a range here, their own code checks them.
INTEGERS = tuple(p for p in PARAMETERS.values() if p.kind is int and p.param.high is not None)
# What narrows the draw, at the value that does nothing.
WIDE = MappingProxyType({p.name: p.default for p in PARAMETERS.values() if p.param.narrows})
# How a token is drawn, but for what rules some out.
OF_DRAWS = (*NUMBERS, PARAMETERS["top_k"], PARAMETERS["seed"])
IN_BODIES = tuple(p for p in PARAMETERS.values() if p.param.body is Carried.SAME)
# By name: what generation_config.json may say.
OF_MODELS = MappingProxyType({p.name: p for p in PARAMETERS.values() if p.param.of_model})
