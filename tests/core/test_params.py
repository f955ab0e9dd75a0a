"""A parameter of a request is declared once; checks, bodies, the wire and the command line follow from that."""

import re
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from weft.cli.options import SampleOptions
from weft.core.values.declare import Carried
from weft.core.values.params import IN_BODIES, NUMBERS, PARAMETERS
from weft.core.values.types import SamplingParams
from weft.pb import vllm_engine_pb2 as pb
from weft.schema.sampling import SamplingFields

# The declaration, the choice, its arithmetic in C++ and on a GPU, arrays between them, names of GGUF and Ollama, and
# objects of responses.
MAX_FILES = 13
# OpenAI's and Anthropic's APIs have these in answers and in bodies of their own, and echo models read one.
OF_OTHER_APIS = {"temperature", "top_p"}
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("name", sorted({number.name for number in NUMBERS} - OF_OTHER_APIS))
def test_a_number_stands_in_its_declaration_and_the_arithmetic_of_sampling(name: str):
    """Nothing between them repeats it: no table, no body, no wire, no command, no binding.

    `weft bench` is a client of any server: its flags are those of vLLM's, whatever an engine of ours learns.
    """
    sources = [path for path in ROOT.glob("src/weft/**/*.py*") if path.suffix in {".py", ".pyi"}]
    sources += [path for path in ROOT.glob("cpp/**/*") if path.suffix in {".cpp", ".h"}]
    found = {
        str(path.relative_to(ROOT))
        for path in sources
        if not {"pb", "tests", "bench"} & set(path.relative_to(ROOT).parts)
        and re.search(rf"\b{name}\b", path.read_text(encoding="utf-8"))
    }
    declared = {
        "src/weft/core/values/types.py",
        "src/weft/compute/protocols/sampler.py",
        "cpp/sample/choose.h",
    }
    assert declared <= found
    arithmetic = found - declared
    # Other files may name it too: the arrays of a step, the names of GGUF, of Ollama's options, Cohere's API
    # and spans, and the objects of responses, which repeat what their request asked for.
    others = (
        "cpp/python/sampling.cpp",
        "src/weft/core/observe/genai_names.py",
        "src/weft/model/gguf/sampling.py",
        "src/weft/schema/ollama.py",
        "src/weft/schema/response_object.py",
        "src/weft/web/cohere/cohere_chat.py",
        "src/weft/web/ollama/options.py",
        "src/weft/web/responses/request.py",
    )
    assert all(
        path.startswith(("src/weft/compute/", "cpp/sample/", *others)) for path in arithmetic
    )
    assert len(found) <= MAX_FILES, sorted(found)


@pytest.mark.parametrize(
    "number", [p for p in IN_BODIES if p.param.high is not None], ids=lambda p: p.name
)
def test_openapi_has_the_range_that_is_checked(number):
    """Clients that are generated from it refuse what the server would; nobody writes the range again."""
    fields = msgspec.json.schema(SamplingFields)["$defs"]["SamplingFields"]["properties"]
    shape = next(kind for kind in fields[number.name]["anyOf"] if kind["type"] != "null")
    low = "exclusiveMinimum" if number.param.above else "minimum"
    assert (shape[low], shape["maximum"]) == (number.param.low, number.param.high)


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
