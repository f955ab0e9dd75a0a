"""Errors that name the fields of requests."""

from weft.core.errors import BadRequest, ContextLengthExceeded, Key


def test_only_what_is_a_key_gets_another_name():
    """What a caller wrote may read like a field, and stays as it was written."""
    error = BadRequest("stop", (Key("stop"), " must not be stop"), 7)
    renamed = error.renamed({"stop": "stop_sequences"})
    assert (str(error), str(renamed)) == (
        "stop must not be stop",
        "stop_sequences must not be stop",
    )
    assert (renamed.parameter, renamed.value) == ("stop_sequences", 7)


def test_what_has_no_other_name_stays_what_it_is():
    """The class too, by which wires know it."""
    renamed = ContextLengthExceeded(None, "too long").renamed({"stop": "x"})
    assert type(renamed) is ContextLengthExceeded
    assert (renamed.parameter, str(renamed)) == (None, "too long")
