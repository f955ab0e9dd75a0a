import importlib
from pathlib import Path

import pytest

from weft.epp.config.parameters import Kind
from weft.epp.plugins.registry import REFUSED_TYPES, ROWS, find_rows

NEW_SCORER = """
from weft.epp.config.parameters import Kind
from weft.epp.decision.plugin import Plugin, plugin


@plugin("fair-scorer", Kind.SCORER)
class Fair(Plugin):
    def score(self, cycle, candidates):
        return [0.5] * len(candidates)
"""


def test_a_scorer_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever adds one names it nowhere else: its row beside the class is found."""
    scorers = tmp_path / "third_party_plugins" / "scorers"
    scorers.mkdir(parents=True)
    (scorers.parent / "__init__.py").touch()
    (scorers / "__init__.py").touch()
    (scorers / "fair.py").write_text(NEW_SCORER)
    monkeypatch.syspath_prepend(tmp_path)
    (row,) = find_rows(importlib.import_module("third_party_plugins"))
    assert (row.type_name, row.kinds) == ("fair-scorer", {Kind.SCORER})


def test_every_name_means_one_type():
    """Names, deprecated names and refused names do not meet."""
    names = [name for row in ROWS for name in (row.type_name, *row.aliases)] + [*REFUSED_TYPES]
    assert sorted(names) == sorted(set(names))


def test_every_kind_has_a_type():
    """No module of plugins was missed: each place of a configuration can be filled."""
    assert {kind for row in ROWS for kind in row.kinds} == set(Kind)
