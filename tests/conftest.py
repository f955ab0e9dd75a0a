"""What every test runs under; read before numpy is."""

import gc
import os
import random
import secrets
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

# Tests run side by side on few cores, and BLAS threads that wait for each other spin: on two busy
# cores a step of embedded:tiny takes 6 ms with one thread and 175 ms with two. Servers that tests
# start inherit this.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Each server that a test starts, and each worker, would else compile hundreds of modules, and rewrite tests, anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A case's time says how busy the machine is. What must be fast has a test that counts something else. Everybody's run
# draws other examples; that of CI the same ones each time, since it judges a change.
hypothesis.settings.register_profile("weft", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("weft")

# Servers keep packed weights for their next start: not with the user, and not from one run to the next. What tools
# and pip have downloaded stays where it is.
_CACHE_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not _IS_WORKER:
    os.environ.setdefault("TOOLS_CACHE_HOME", str(_CACHE_HOME))
    os.environ.setdefault("PIP_CACHE_DIR", str(_CACHE_HOME / "pip"))
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="weft-tests-cache-")


# Slow tests of a file run in one process. What takes minutes begins first: at the end the others would be idle.
_LONGEST = (
    *(
        "tests/compute/gpu/",
        "tests/soak/",
        "tests/faults/test_stopped",
        "tests/e2e/test_first_minute",
    ),
    *("tests/test_distributions", "tests/tools/test_set_up", "tests/cli/test_start_show"),
    *("tests/compute/native/", "tests/attacks/test_attacks", "tests/engine/test_transfer_kills"),
    *("tests/faults/test_start_up", "tests/cli/test_epp_up", "tests/web/test_description"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest modules first, where slow tests are asked for."""
    if config.option.markexpr == "slow":
        items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from the modules and the tests, which stay: it took half the time of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what was kept, once all workers have ended."""
    if not _IS_WORKER:
        shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let requests without a seed draw the same ones in each run of a test in CI, as hypothesis draws its examples."""
    if "CI" in os.environ:
        secrets.randbits = random.Random(item.nodeid).getrandbits
