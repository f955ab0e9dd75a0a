"""The core's own tests as on ARM, under emulation: each CPU has instructions that the one before has not.

Emulation takes five minutes, and gives for the same sources what it gave before: sources that passed are not run again.
`WEFT_RECORD=1 make test-slow ARGS=tests/compute/native/test_aarch64.py` runs them, and writes down that they passed.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.compute.native import usable_paths

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
HERE = "tests/compute/native"
# Of these the run is the only test on ARM; what else it runs is tested on every machine.
SOURCES = ("CMakeLists.txt", "cpp", "src/weft/compute/native", "tools/build_aarch64.py")
KINDS = (".cpp", ".h", ".py", ".txt")
PASSED = Path(__file__).with_name("aarch64_passed.txt")
# Bit for bit those of numpy, whatever instructions add them up.
TWINS = (
    f"{HERE}/test_int8.py::test_a_product_is_the_twin_s",
    f"{HERE}/test_int8.py::test_the_largest_sums_do_not_overflow",
    f"{HERE}/test_int8.py::test_what_is_no_number_stays_in_its_row",
    f"{HERE}/test_grouped.py::test_a_product_is_the_twin_s",
    f"{HERE}/test_grouped.py::test_the_largest_sums_do_not_overflow",
    *(f"{HERE}/test_{kind}.py::test_rows_and_states_are_the_twin_s" for kind in ("mamba", "delta")),
    f"{HERE}/test_mamba.py::test_rows_and_states_of_the_first_mamba_are_the_twin_s",
)
# What instructions for one row and for two could make of the same sum.
BFLOAT16 = (
    f"{HERE}/test_bfloat16.py",
    f"{HERE}/test_invariance.py::test_sums_too_small_to_be_normal_are_the_same_bits",
    *(
        f"{HERE}/test_invariance.py::test_a_long_prompt_in_one_step_gives_the_same_bits"
        f"[{shape}-bfloat16-neon_bf16]"
        for shape in ("plain", "odd sizes")
    ),
    f"{HERE}/test_invariance.py::test_a_nan_stays_in_its_sequence",
)
CPUS = {
    "cortex-a53": "aarch64 with asimd: neon portable",
    "neoverse-n1": "aarch64 with asimd, asimddp: neon portable",
    "max": "aarch64 with asimd, asimddp, sve, bf16, i8mm: neon_bf16 neon portable",
}


def digest() -> str:
    """Of the sources that only this run tests."""
    found = hashlib.sha256()
    for name in SOURCES:
        paths = sorted((ROOT / name).rglob("*")) if (ROOT / name).is_dir() else [ROOT / name]
        for path in (path for path in paths if path.suffix in KINDS):
            found.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A Python of that architecture, with the tree as it is."""
    from tools.build_aarch64 import UnavailableError, build

    is_recorded = "WEFT_RECORD" in os.environ
    if not is_recorded and PASSED.read_text(encoding="ascii").strip() == digest():
        pytest.skip("these sources of the core have passed under emulation")
    num_failed = request.session.testsfailed
    try:
        yield build()
    except UnavailableError as error:
        pytest.skip(str(error))
    if is_recorded and request.session.testsfailed == num_failed:
        PASSED.write_text(f"{digest()}\n", encoding="ascii")


def run(python: Path, cpu: str, *words: str) -> str:
    """What a command says that must succeed on that CPU."""
    environment = {**os.environ, "QEMU_CPU": cpu}
    command = [python, *words]
    result = subprocess.run(
        command,
        cwd=python.parent / "tree",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{cpu}: {(result.stdout + result.stderr)[-4000:]}"
    return result.stdout


def run_tests(python: Path, cpu: str, path: str, *tests: str) -> None:
    """Those of them that are of a path; some must be."""
    options = ("-q", "-p", "no:cacheprovider", "--timeout", "1200")
    words = ("-m", "pytest", *options, "-k", path, *tests)
    assert " passed" in run(python, cpu, *words)


@pytest.mark.parametrize("cpu", CPUS)
def test_paths_are_chosen_by_what_the_system_says(python, cpu):
    """Best first, and none that would end the process."""
    words = "from weft.compute.native import cpu, usable_paths; print(cpu().describe(), end=': ')"
    assert run(python, cpu, "-c", f"{words}; print(*usable_paths())").strip() == CPUS[cpu]


@pytest.mark.parametrize("cpu", CPUS)
def test_products_and_recurrences_are_the_twins(python, cpu):
    """Added up by what each CPU has for it."""
    run_tests(python, cpu, "neon and not neon_bf16", *TWINS)


@pytest.fixture(scope="module")
def digests(python):
    """What AVX2 computes here."""
    if "avx2" not in usable_paths():
        pytest.skip("this CPU has no AVX2, whose bits these are")
    command = [sys.executable, "-m", "tests.compute.native.digests", "avx2"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("cpu", CPUS)
def test_models_have_the_bits_of_avx2(python, cpu, digests):
    """Every shape and type: sums run in the same order, and are fused alike."""
    assert run(python, cpu, "-m", "tests.compute.native.digests", "neon") == digests


def test_bfloat16_by_instructions_of_its_own(python):
    """Near the reference, and for each row the same bits alone and in company."""
    run_tests(python, "max", "neon_bf16", *BFLOAT16)
