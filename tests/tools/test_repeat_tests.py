"""tools.repeat_tests"""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tools.repeat_tests import (
    ROOT,
    Round,
    changed_modules,
    imported_files,
    loaded,
    run_round,
    summary,
)

TEXTS = {
    "tests/busy.py": "",
    "tests/core/test_a.py": "from tests.busy import until\n",
    "tests/core/test_b.py": "from tests import busy\n",
    "tests/core/test_c.py": "import os\n",
}


def test_a_changed_helper_repeats_the_tests_that_import_it():
    """A helper has no tests of its own, and may make those of others fail by chance."""
    changed = changed_modules({"tests/busy.py", "src/weft/core/errors.py"}, TEXTS)
    assert changed == ["tests/core/test_a.py", "tests/core/test_b.py"]


def test_a_changed_test_is_repeated():
    """Only tests are run: other files are left out."""
    assert changed_modules({"tests/core/test_c.py", "README.md"}, TEXTS) == ["tests/core/test_c.py"]


def test_imports_are_found_as_files():
    """Of a package, the names that are imported may be modules."""
    found = imported_files("from tests.core import one, two\nimport tests.busy\n")
    assert {"tests/core/one.py", "tests/core/two.py", "tests/busy.py"} <= found


def test_the_summary_names_tests_seeds_and_a_command():
    """Tests that failed most often come first."""
    rounds = [Round(3, frozenset({"a", "b"})), Round(4, frozenset({"b"})), Round(5, frozenset())]
    first, second, again = summary(rounds, ["tests/x.py"]).splitlines()
    assert first == "2 of 3: b (seeds 3, 4)"
    assert second == "1 of 3: a (seeds 3)"
    assert again.endswith("-p tools.shuffled --shuffle-seed 3 -n 0 tests/x.py")


def test_a_crash_of_pytest_is_listed():
    """A round whose tests never ran has not passed."""
    assert "(pytest itself)" in summary([Round(1, frozenset(), has_crashed=True)], [])
    assert summary([Round(1, frozenset())], []) == "no test failed in 1 rounds"


def test_busy_processes_end_with_the_block():
    """Nothing computes on after the rounds."""
    with loaded(os.getloadavg()[0] + 2, 60):
        busy = [child for child in psutil.Process().children() if "ends_at" in str(child.cmdline())]
    assert len(busy) >= 1
    assert psutil.wait_procs(busy, 0)[1] == []


def test_busy_processes_end_with_their_parent():
    """Whoever kills the tool leaves no load behind."""
    script = (
        "import os; from tools.repeat_tests import loaded\n"
        "with loaded(os.getloadavg()[0] + 1, 60):\n"
        "    import psutil; print(psutil.Process().children()[0].pid, flush=True); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    pid = int(done.stdout)
    ends_at = time.monotonic() + 50
    while psutil.pid_exists(pid):
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def test_the_seed_makes_the_order(tmp_path: Path):
    """A round that failed can be run again, and other rounds try other orders."""
    module = tmp_path / "test_order.py"
    only_the_first_passes = "def test_{}():\n    seen.append(1)\n    assert len(seen) == 1\n"
    module.write_text("seen = []\n" + "".join(map(only_the_first_passes.format, range(20))))
    once, again, other = (run_round([str(module)], seed, "0") for seed in (1, 1, 2))
    assert len(once.failed) == 19
    assert once == again
    assert once.failed != other.failed
