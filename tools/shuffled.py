"""A pytest plugin (`-p tools.shuffled`): runs the tests in an order drawn from `--shuffle-seed`.

Tests of one module stay together, because fixtures of a module may start servers. pytest-randomly is not used: once
it is installed it acts on every run, and `make test` is to keep its order.
"""

import random
from itertools import groupby
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the options of this plugin."""
    parser.addoption("--shuffle-seed", type=int, help="the same seed gives the same order")
    parser.addoption("--failures-to", type=Path, help="file for the ids of failed tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the modules, and the tests within each."""
    seed = config.getoption("shuffle_seed")
    if seed is None:
        return
    draw = random.Random(seed)
    modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    draw.shuffle(modules)
    for module in modules:
        draw.shuffle(module)
    items[:] = [item for module in modules for item in module]


class _Failures:
    """Appends the id of each failed test to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test counts once, whichever of its phases failed."""
        if report.failed:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Note failures where all of them are reported: with xdist, in the first process."""
    path = config.getoption("failures_to")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(path))
