"""Names in tests that the code does not have: tools/check_names.py."""

import pytest

from tools.check_names import OPEN_TYPES, findings, own_names

OWN = {"Picker", "until", "weft", "tests"}


@pytest.mark.parametrize(
    "line",
    [
        "a.py:1:1: error[missing-attribute] Object of type `Picker` has no attribute `is_leader`",
        "a.py:1:1: error[missing-attribute] Unresolved attribute `is_leader` on type `Picker`",
        "a.py:1:1: error[missing-module-member] Module `tests.busy` has no member `soon`",
        "a.py:1:1: error[import-not-found] Cannot resolve imported module `weft.nowhere`",
        "a.py:1:1: error[unknown-argument] Argument `x` does not match any known parameter of function `until`",
        "a.py:1:1: error[unknown-argument] Argument `x` does not match any known parameter of `Picker.__init__`",
        "a.py:1:1: error[missing-argument] No argument provided for required parameter of bound method `Picker.close`",
        "a.py:1:1: error[too-many-positional-arguments] Too many positional arguments to function `until`: expected 1",
    ],
)
def test_a_name_of_ours_that_is_not_there_is_found(line: str):
    """Whichever way a test comes to it."""
    assert list(findings([line], OWN)) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "a.py:1:1: error[missing-attribute] Object of type `Popen[bytes]` has no attribute `until`",
        "a.py:1:1: error[import-not-found] Cannot resolve imported module `vllm.config`",
        "a.py:1:1: error[unknown-argument] Argument `until` does not match any known parameter",
        "Found 3 diagnostics",
    ],
)
def test_what_others_have_is_not_our_affair(line: str):
    """Their packages may be missing, and their types may say too little."""
    assert list(findings([line], OWN)) == []


def test_the_types_that_are_not_checked_are_ours():
    """Nobody else's are checked."""
    assert own_names() >= OPEN_TYPES
