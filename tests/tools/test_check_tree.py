"""tools.check_tree"""

import subprocess
from pathlib import Path

import pytest

from tools.check_tree import (
    ROOT,
    check_module,
    check_sentences,
    check_text,
    check_tree,
    check_words,
    not_in_names,
    package_sizes,
    refused_texts,
)


@pytest.mark.parametrize(
    "line",
    [
        "eval(text)",
        "exec(text)",
        "socket.recv_pyobj()",
        "builtins.eval(text)",
        "numpy.load(path, allow_pickle=True)",
        "load(name, trust_remote_code=flag)",
    ],
)
def test_a_call_that_may_execute_what_it_reads_is_found(line: str):
    """The path and the line are named."""
    (finding,) = check_module("src/weft/a.py", f"x = 1\n{line}\n")
    assert finding.startswith("src/weft/a.py:2: ")


@pytest.mark.parametrize(
    "line", ["numpy.load(path, allow_pickle=False)", "evaluate(text)", "network.eval()"]
)
def test_what_only_looks_like_it_is_left_alone(line: str):
    """A check that cries wolf is switched off."""
    assert list(check_module("src/weft/a.py", f"{line}\n")) == []


def test_a_module_past_the_limit_is_found():
    """500 lines; the message says how many there are."""
    assert list(check_module("src/weft/a.py", "x = 1\n" * 500)) == []
    assert "501 lines" in next(check_module("src/weft/a.py", "x = 1\n" * 501))


def test_a_function_past_the_limit_is_found():
    """60 lines, wherever it is; the message says how many there are."""
    text = "class A:\n    async def f(self):\n" + "        x = 1\n" * 59
    assert list(check_module("tools/a.py", text)) == []
    (finding,) = check_module("tools/a.py", text + "        x = 1\n")
    assert finding == "tools/a.py:2: f has 61 lines (limit 60)"


def test_a_name_that_says_nothing_is_found():
    """utils.py and its kin become the place for everything."""
    assert "does not say" in next(check_module("src/weft/utils.py", ""))


def test_a_test_without_a_rule_is_found():
    """Helpers and fixtures need none."""
    text = "def helper(): pass\ndef test_a():\n    '''Rule.'''\nasync def test_b(): pass\n"
    (finding,) = check_module("tests/test_a.py", text)
    assert "test_b has no docstring" in finding


def test_a_path_of_somebodys_machine_is_found():
    """Documents and scripts must work elsewhere too."""
    home = "/home"  # apart from the rest: this file is checked too
    (finding,) = check_text("README.md", f"cd there\ncd {home}/me/weft\n")
    assert finding.startswith("README.md:2: ")
    assert list(check_text("README.md", "see https://example.org/home/page\n")) == []


def test_a_tree_is_checked_with_what_is_not_committed_yet(tmp_path: Path):
    """A new file is seen before it is added, an ignored one never."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    (tmp_path / "ignored.py").write_text("eval(x)\n")
    (tmp_path / "new.py").write_text("eval(x)\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert list(check_tree(tmp_path)) == ["new.py:1: eval() executes what it is given"]


def test_packages_are_told_by_size(tmp_path):
    """The largest first; what is generated does not count."""
    for name, num_lines in (("a", 1), ("b/deep", 3), ("pb", 9)):
        directory = tmp_path / "src" / "weft" / name
        directory.mkdir(parents=True)
        (directory / "module.py").write_text("x = 1\n" * num_lines)
    assert package_sizes(tmp_path) == [("b", 3), ("a", 1)]


@pytest.mark.parametrize(
    "line",
    [
        "def tell_load(): pass",
        "class ThoughtWatch: pass",
        "self.num_told = 1",
        "for news in (): pass",
        "def f(asked): pass",
    ],
)
def test_a_word_of_our_own_in_a_name_is_found(line: str):
    """Whoever knows vLLM or llm-d is not to learn a dialect; the glossary lists what it was."""
    refused = not_in_names((ROOT / "docs" / "glossary.md").read_text("utf-8"))
    (finding,) = check_words("src/weft/core/a.py", f"x = 1\n{line}\n", refused)
    assert finding.startswith("src/weft/core/a.py:2: ")


def test_a_word_inside_another_is_left_alone():
    """Names are compared word by word; what others named is theirs."""
    refused = frozenset({"told", "ask", "tape"})
    text = "task = mask = 1\nother.asked\ndef tapestry(): pass\n"
    assert list(check_words("src/weft/core/a.py", text, refused)) == []


STYLE = """
| not | but |
| --- | --- |
| Times a sequence gave way. | Number of preemptions. |
| What computes | Compute backend |
| Yes. / See `X`. | (no docstring) |
"""


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("src/a.py", "# times a sequence gave way, so far\n", 1),
        ("src/a.py", 'X = 1\nHELP = "What computes."\n', 2),
        ("docs/a.md", "| flag | help |\n| --- | --- |\n| `--a` | What computes |\n", 3),
        ("docs/decisions/0001-a.md", "# 1. What computes\n", 1),
        ("src/a.py", 'def f():\n    """See `Runner.run`."""\n    return 1\n', 2),
    ],
)
def test_a_text_that_the_style_guide_replaces_is_found(path: str, text: str, line: int):
    """A long one is found inside of another text, a short one only as a whole string, cell, title or docstring."""
    (finding,) = check_sentences(path, text, refused_texts(STYLE))
    assert finding.startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/style.md", STYLE),
        ("src/a.py", '"""Say what computes a step."""\nX = "Yes."\n'),
        ("docs/a.md", "What computes a step is the backend.\n"),
        ("src/a.py", 'def f():\n    """See `Runner`: a token for each row."""\n'),
    ],
)
def test_a_text_that_only_contains_a_short_one_is_left_alone(path: str, text: str):
    """So the check gives no false alarms; the guide itself quotes all of them."""
    assert list(check_sentences(path, text, refused_texts(STYLE))) == []


def test_the_style_guide_lists_texts_of_every_kind():
    """Its table is read, row by row."""
    refused = refused_texts((ROOT / "docs" / "style.md").read_text("utf-8"))
    assert len(refused.sentences) >= 18
    assert {"What computes", "Models of old"} <= refused.wholes
    assert refused.docstrings.fullmatch("It is over.")
