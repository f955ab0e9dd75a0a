"""A parameter of a request is declared once; checks, bodies, the wire and the command line follow from that."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import weft
from weft.cli.options import SampleOptions
from weft.core.declare import Carried
from weft.core.params import NUMBERS, PARAMETERS
from weft.core.types import SamplingParams
from weft.pb import vllm_engine_pb2 as pb
from weft.schema.sampling import SamplingFields

MAX_ARITHMETIC_FILES = 6
# OpenAI's and Anthropic's APIs have these in answers and in bodies of their own, and echo models read one.
OF_OTHER_APIS = {"temperature", "top_p"}


@pytest.mark.parametrize("name", sorted({number.name for number in NUMBERS} - OF_OTHER_APIS))
def test_a_number_stands_in_its_declaration_and_the_arithmetic_of_sampling(name: str):
    """Nothing between them repeats it: no table, no body, no wire, no command."""
    package = Path(weft.__file__).parent
    sources = [path for path in package.rglob("*.py*") if path.suffix in {".py", ".pyi"}]
    found = {
        str(path.relative_to(package))
        for path in sources
        if "pb" not in path.parts and re.search(rf"\b{name}\b", path.read_text(encoding="utf-8"))
    }
    arithmetic = {path for path in found if path.startswith(("engine/sampling/", "compute/"))}
    assert found - arithmetic == {"core/types.py"}
    assert len(arithmetic) <= MAX_ARITHMETIC_FILES, sorted(arithmetic)


def test_every_parameter_is_in_the_table():
    """In order, with its default: what is said beside a field changes nothing of the field."""
    assert tuple(PARAMETERS) == SamplingParams.__struct_fields__
    assert {p.name: p.default for p in PARAMETERS.values()} == {
        name: getattr(SamplingParams(), name) for name in PARAMETERS
    }


@pytest.mark.parametrize("parameter", PARAMETERS.values(), ids=PARAMETERS)
def test_it_is_carried_where_its_declaration_says(parameter):
    """A body, or the wire, has a field with its name where the declaration says so, and nowhere else."""
    in_bodies = parameter.name in SamplingFields.__struct_fields__
    on_wire = parameter.name in pb.SamplingParams.DESCRIPTOR.fields_by_name
    if parameter.param.body is not Carried.OWN:
        assert in_bodies == (parameter.param.body is Carried.SAME)
    if parameter.param.wire is not Carried.OWN:
        assert on_wire == (parameter.param.wire is Carried.SAME)


def test_a_parameter_with_a_help_text_has_a_flag():
    """None says that it was not given, whatever its default is elsewhere."""
    with_help = {p.name for p in PARAMETERS.values() if p.param.help is not None}
    assert {field.name for field in fields(SampleOptions)} == with_help
    assert all(getattr(SampleOptions(), name) is None for name in with_help)
