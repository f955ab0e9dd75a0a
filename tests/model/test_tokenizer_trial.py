"""Somebody else's tokenizer.json: what aborts, hangs or makes gigabytes is refused before it is used."""

import base64
import json
import os

import psutil
import pytest
import tokenizers

from tests.model.checkpoints import write_checkpoint
from tests.text import vocabularies
from weft.core.aio.worker import Worker
from weft.core.errors import ConfigError
from weft.model.embedded.byte_tokenizer import tokenizer_files
from weft.model.open import open_model
from weft.model.tokenizers import tokenizer_trial
from weft.model.tokenizers.tokenizer_trial import try_out

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


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """Each call is a process that has tried out nothing; how often a worker was started."""
    started = []

    def worker(*arguments):
        started.append(arguments)
        return Worker(*arguments)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tokenizer_trial, "Worker", worker)

    def call(data: bytes) -> int:
        tokenizer_trial._sound.clear()
        try_out(data, "x")
        return len(started)

    return call


def large(seed: str = " ") -> bytes:
    """A sound file of a size that is worth a mark."""
    return json.dumps(SOUND).encode() + seed.encode() * (1 << 20)


def test_what_was_sound_once_is_not_tried_out_again(anew, tmp_path):
    """By the next process too, and to the byte; a small one is no matter."""
    assert anew(large()) == 1
    assert anew(large()) == 1
    assert anew(large("\n")) == 2
    assert len(list((tmp_path / "weft" / "tokenizers").iterdir())) == 2
    assert anew(json.dumps(SOUND).encode()) == 3
    assert anew(json.dumps(SOUND).encode()) == 4


def test_a_refused_tokenizer_leaves_no_mark(anew, tmp_path):
    """It is tried out, and refused, each time."""
    hostile = with_model(continuing_subword_prefix="b" * 10_000) + b" " * (1 << 20)
    for _ in range(2):
        with pytest.raises(ConfigError):
            anew(hostile)
    assert not (tmp_path / "weft").exists()


@pytest.mark.parametrize("change", ["library", "mode", "link"])
def test_a_mark_that_says_nothing_is_none(anew, tmp_path, monkeypatch, change):
    """Of another library, or one that somebody else may have made."""
    anew(large())
    [mark] = (tmp_path / "weft" / "tokenizers").iterdir()
    if change == "library":
        monkeypatch.setattr(tokenizers, "__version__", "0")
    elif change == "mode":
        mark.chmod(0o666)
    else:
        mark.rename(tmp_path / "elsewhere")
        mark.symlink_to(tmp_path / "elsewhere")
    assert anew(large()) == 2


def test_marks_are_bounded(anew, tmp_path, monkeypatch):
    """The oldest goes."""
    monkeypatch.setattr(tokenizer_trial, "_MAX_MARKS", 1)
    anew(large())
    [first] = (tmp_path / "weft" / "tokenizers").iterdir()
    os.utime(first, ns=(1, 1))
    anew(large("\n"))
    [second] = (tmp_path / "weft" / "tokenizers").iterdir()
    assert second != first


def test_a_home_that_cannot_be_written_stops_nothing(anew, tmp_path, monkeypatch):
    """Each process tries it out then."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert anew(large()) == 1
    assert anew(large()) == 2


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
