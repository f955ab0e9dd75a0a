"""Table of request parameters, made from the metadata of `SamplingParams`'s fields."""

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
    """A request parameter. `kind` is the type of its values; with `is_optional` the parameter also accepts None."""

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
# Integer parameters with a range; other integer parameters are checked by their own code.
INTEGERS = tuple(p for p in PARAMETERS.values() if p.kind is int and p.param.high is not None)
# Parameters that restrict the tokens that may be sampled, each with the value that has no effect.
WIDE = MappingProxyType({p.name: p.default for p in PARAMETERS.values() if p.param.narrows})
# Numbers that may be negative: those that are subtracted from the logits of tokens that were there before.
PENALTIES = tuple(p for p in NUMBERS if p.param.low is not None and p.param.low < 0)
# Parameters of the random choice of a token, without those that exclude single tokens.
OF_DRAWS = (*NUMBERS, PARAMETERS["top_k"], PARAMETERS["seed"])
IN_BODIES = tuple(p for p in PARAMETERS.values() if p.param.body is Carried.SAME)
# Parameters that generation_config.json may set, by name.
OF_MODELS = MappingProxyType({p.name: p for p in PARAMETERS.values() if p.param.of_model})
