"""The page on the engine's interface names everything there is, and its proofs exist."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from tools.make_reference import INTERFACE
from weft.core.client import EngineClient
from weft.core.operator_calls import CALLS
from weft.core.values.types import PoolingParams, SamplingParams
from weft.engine.clients.data_parallel import DataParallelClient
from weft.engine.clients.local_client import LocalClient
from weft.engine.front.controls import EngineControls

TESTS = Path(__file__).resolve().parent.parent
ROWS = tomllib.loads(INTERFACE.read_text(encoding="utf-8"))
METHODS = ROWS["EngineClient"]
PROOFS = sorted({row["test"] for rows in ROWS.values() for row in rows.values() if "test" in row})


def members(protocol):
    """Public methods and properties."""
    return {
        name
        for name, member in vars(protocol).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }


def test_every_method_has_a_row():
    """A new one fails here until someone says what proves it."""
    assert set(METHODS) == members(EngineClient) | CALLS.keys()


@pytest.mark.parametrize("struct", [SamplingParams, PoolingParams])
def test_every_parameter_has_a_row(struct):
    """The same for what a request can ask."""
    assert set(ROWS[struct.__name__]) == set(struct.__struct_fields__)


def test_a_row_is_a_test_or_a_refusal():
    """And nothing else."""
    assert all(len(row) == 1 and row.keys() <= {"test", "refused"} for row in METHODS.values())


@pytest.mark.parametrize("proof", PROOFS)
def test_every_proof_is_a_test(proof):
    """One that was renamed or removed proves nothing."""
    file, _, name = proof.partition("::")
    assert re.search(rf"def {name}\(", (TESTS / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_refused_where_the_page_says_so(name):
    """And only there: what one of our clients does is no refusal."""
    kinds = (EngineControls,) if name in CALLS else (LocalClient, DataParallelClient)
    members = [inspect.getattr_static(kind, name) for kind in kinds]
    functions = [member.fget if isinstance(member, property) else member for member in members]
    is_refused = all(" unsupported(" in inspect.getsource(each) for each in functions)
    assert is_refused == ("refused" in METHODS[name])
