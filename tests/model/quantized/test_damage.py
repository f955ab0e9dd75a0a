"""Damage to files of every form of rounded weights ends in a `ConfigError` or in a model that computes."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.model.checkpoints import write_checkpoint
from tests.model.quantized import test_int8, test_mxfp4
from tests.model.quantized.packers import logits_of, packed_tensors, write
from tests.model.quantized.test_groups import CASES
from tests.model.test_damage import DAMAGES, check_damage


def write_case(case: str, directory: Path) -> str:
    """A small checkpoint of that form."""
    if case == "mxfp4":
        tensors, _ = test_mxfp4.packed_tensors()
        return str(write_checkpoint(directory, test_mxfp4.MXFP4, tensors))
    scheme, pack, *_ = (test_int8.SCHEME, test_int8.pack) if case == "int8" else CASES[case]
    tensors, _ = packed_tensors(pack)
    return write(directory, scheme, tensors)


def slow_but(fast, cases):
    return [pytest.param(c, marks=() if c in fast else pytest.mark.slow) for c in cases]


@pytest.fixture(scope="module", params=slow_but(("gptq", "mxfp4"), [*CASES, "int8", "mxfp4"]))
def sound(request, tmp_path_factory) -> Path:
    """A directory that its test spoils and mends."""
    directory = Path(write_case(request.param, tmp_path_factory.mktemp("m") / "m"))
    logits_of(str(directory), compute="native")
    return directory


@settings(max_examples=100, deadline=None)
@given(damage=DAMAGES)
def test_damaged_bytes_never_crash(sound, damage):
    """In the header, or anywhere: sizes, types, numbers and scales. What is read is computed natively."""
    path = sound / "model.safetensors"
    num_header_bytes = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    check_damage(
        path,
        num_header_bytes,
        damage,
        lambda: logits_of(str(sound), compute="native", num_threads=1),
    )
