"""Whatever comes from outside is read, or refused with a sentence: no parser fails in another way."""

from collections.abc import Mapping

import pytest

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.parsers import Parser, parsers

# A few seconds; `python -m tests.fuzz --seconds 3600` goes on.
NUM_INPUTS = 300
NAMES = (
    "gguf", "safetensors", "tokenizer", "tokenizer_config", "picker body", "picker frame", "ext_proc", "usage",
    "kv events", "metrics page", "transfer hello", "transfer wanted", "transfer introduction", "node join",
    "node commands", "images", "videos", "recordings", "grpc generate", "grpc inference", "form", "prompt embeds",
    "mcp tools", "mcp result",
)  # fmt: skip


@pytest.fixture(scope="module")
def known(tmp_path_factory) -> Mapping[str, Parser]:
    """All parsers."""
    return parsers(tmp_path_factory.mktemp("fuzz"))


def test_every_parser_is_fuzzed(known):
    """The names here are those that there are."""
    assert set(known) == set(NAMES)


# Changes to the first of a parser's sound inputs that it once failed at in another way.
FOUND = {
    "transfer introduction": lambda data: data.replace(b"\xa1m", b"\xa1\xdf"),
    "node join": lambda data: data[:-1] + b"\xdf",
    "prompt embeds": lambda data: data[:4] + data[7:],
}


@pytest.mark.parametrize("name", FOUND)
def test_what_a_parser_failed_at_is_refused(known, name):
    """Texts that are not UTF-8, and places before the beginning of a file."""
    parser = known[name]
    with pytest.raises(parser.refusals):
        parser.read(FOUND[name](parser.seeds[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_damaged_input_is_read_or_refused(known, name):
    """Inputs near to sound ones, the same each time."""
    failure = fuzz(known[name], 0, NUM_INPUTS)
    assert failure is None, f"{failure.data!r}\n{failure.reason}"
