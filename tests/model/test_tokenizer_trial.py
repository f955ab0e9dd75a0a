"""Somebody else's tokenizer.json: what aborts, hangs or makes gigabytes is refused before it is used."""

import base64
import json

import psutil
import pytest

from tests.model.checkpoints import write_checkpoint
from tests.text import vocabularies
from weft.core.errors import ConfigError
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.model.open import open_model
from weft.model.tokenizer_trial import try_out

SOUND = json.loads(tokenizer_files(300, "<|endoftext|>")["tokenizer.json"])
TENFOLD = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}


def with_part(name: str, value: object) -> bytes:
    """A sound file with another part."""
    return json.dumps({**SOUND, name: value}).encode()


def with_model(**changes: object) -> bytes:
    """A sound file with another model."""
    return json.dumps({**SOUND, "model": {**SOUND["model"], **changes}}).encode()


def steps(kind: str, *parts: object) -> dict[str, object]:
    """Several steps in one."""
    return {"type": "Sequence", kind: list(parts)}


def charsmap(text: bytes) -> dict[str, str]:
    """A normalizer that may make this of a character."""
    data = (4).to_bytes(4, "little") + bytes(4) + text + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def around(count: int) -> dict[str, object]:
    """So many tokens before each text."""
    pieces = [{"SpecialToken": {"id": "x", "type_id": 0}}] * count
    pieces.append({"Sequence": {"id": "A", "type_id": 0}})
    special = {"x": {"id": "x", "ids": [0], "tokens": ["a"]}}
    return {
        "type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": special,
    }  # fmt: skip


def split_by(pattern: str) -> dict[str, object]:
    """A pre-tokenizer with a regular expression."""
    return {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip


HOSTILE = {
    "normalizer that grows in steps": with_part(
        "normalizer", steps("normalizers", *[TENFOLD] * 12)
    ),
    "normalizer that grows at once": with_part(
        "normalizer", {**TENFOLD, "content": "b" * 100_000_000}
    ),
    "normalizer that grows from nothing": with_part(
        "normalizer", {"type": "Replace", "pattern": {"Regex": ""}, "content": "b" * 1000}
    ),
    "normalizer that prepends": with_part(
        "normalizer", {"type": "Prepend", "prepend": "b" * 10_000}
    ),
    "normalizer with a long text in its map": with_part("normalizer", charsmap(b"b" * 10_000)),
    "normalizer with many steps": with_part(
        "normalizer", steps("normalizers", *[{"type": "Lowercase"}] * 1000)
    ),
    "decoder that grows in steps": with_part("decoder", steps("decoders", *[TENFOLD] * 12)),
    "decoder that grows from nothing": with_part(
        "decoder", {"type": "Replace", "pattern": {"String": ""}, "content": "b" * 1000}
    ),
    "token that is a book": with_model(vocab={**SOUND["model"]["vocab"], "b" * 10_000: 256}),
    "prefix that is a book": with_model(continuing_subword_prefix="b" * 10_000),
    "many tokens around a text": with_part("post_processor", around(1000)),
    "regular expression without an end": with_part("pre_tokenizer", split_by("(a+)+(b+)+$")),
    "normalizer without an end": with_part(
        "normalizer", {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}
    ),
    "not JSON": b"{",
    "not text": b"\xff",
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tokenizer_is_refused(name: str):
    """In one line, and with no process left behind; this process never loads it."""
    before = len(psutil.Process().children())
    with pytest.raises(ConfigError, match=r"DIR/tokenizer\.json: not ") as error:
        try_out(HOSTILE[name], "DIR/tokenizer.json")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
    assert len(psutil.Process().children()) <= before


@pytest.mark.parametrize(
    "library",
    [
        vocabularies.byte_level_library,
        vocabularies.llama_like_library,
        vocabularies.metaspace_library,
        vocabularies.word_library,
    ],
)
def test_a_sound_tokenizer_is_taken(library):
    """Of every kind."""
    try_out(library().to_str().encode(), "x")


def test_a_tokenizer_that_takes_for_ever_is_refused():
    """Its process is ended by its own clock, and to have been tried out once does not make it sound."""
    file = json.dumps(SOUND).encode() + b"\n "  # which nobody has tried out before
    with pytest.raises(ConfigError, match="takes more than 1e-05 s or 4 GiB"):
        try_out(file, "x", time_limit_s=1e-5)
    try_out(file, "x")


def test_a_checkpoint_is_opened_without_its_hostile_tokenizer(tmp_path):
    """The way in of every directory, and of what comes from the Hub."""
    write_checkpoint(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_bytes(HOSTILE["decoder that grows in steps"])
    with pytest.raises(ConfigError, match="more than 64 times as long"):
        open_model(str(tmp_path / "m"))


def test_the_model_of_the_package_is_not_tried_out():
    """Its files are as trusted as the code; a start is not made to wait for a process."""
    before = set(psutil.Process().children())
    open_model("embedded:tiny")
    assert set(psutil.Process().children()) <= before  # one of an earlier test may end meanwhile
