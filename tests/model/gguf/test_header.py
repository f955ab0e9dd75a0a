"""Damaged GGUF files: one sentence, whatever is wrong, and nothing is read that is not there."""

import os
import random
import struct

import gguf
import pytest

from tests.model.checkpoints import write_checkpoint
from tests.model.gguf.files import write_gguf
from weft.core.errors import ConfigError
from weft.model.open import open_model

HUGE = 2**63 - 1


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def header(*, version=3, tensors=0, keys=(), described=b"", behind=b""):
    """A file from its parts; a key is its name, type and bytes."""
    written = b"".join(text(name) + struct.pack("<I", kind) + data for name, kind, data in keys)
    counts = struct.pack("<IQQ", version, tensors, len(keys))
    return b"GGUF" + counts + written + described + behind


def tensor(name, shape, kind=0, offset=0):
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


NUMBER = struct.pack("<I", 7)
BAD = {
    "empty": (b"", "has 0 bytes"),
    "something else": (b"PK\3\4" + b"\0" * 40, "does not begin with GGUF"),
    "version": (
        header(version=1),
        r"GGUF version 1; supported are little-endian files of version 2 and 3",
    ),
    "big-endian": (header(version=3 << 24), "GGUF version 50331648"),
    "tensors": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), f"names {HUGE} tensors; at most 50000"),
    "keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), f"names {HUGE} keys"),
    "cut off": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "is it cut off"),
    "name": (header(keys=[("", 4, NUMBER)]), "a key has 0 bytes; 1 to 65535"),
    "long text": (header(keys=[("a", 8, struct.pack("<Q", HUGE))]), "extends to byte 9223"),
    "no UTF-8": (header(keys=[("a", 8, struct.pack("<Q", 1) + b"\xff")]), "'a' is not UTF-8"),
    "type": (header(keys=[("a", 77, NUMBER)]), "'a' has values of type 77"),
    "list of lists": (
        header(keys=[("a", 9, struct.pack("<IQ", 9, 1))]),
        "'a' has values of type 9",
    ),
    "no UTF-8 in a list": (
        header(keys=[("a", 9, struct.pack("<IQQ", 8, 1, 1) + b"\xff")]),
        "'a' is not UTF-8",
    ),
    "long text in a list": (
        header(keys=[("a", 9, struct.pack("<IQQ", 8, 2, HUGE))], behind=b"\0" * 64),
        "extends to byte 9223",
    ),
    "list of texts beyond": (
        header(keys=[("a", 9, struct.pack("<IQQ", 8, 2, 0) + b"\0" * 7)]),
        "extends to byte 65; the file has 64",
    ),
    "long list": (header(keys=[("a", 9, struct.pack("<IQ", 4, HUGE))]), "at most 8388608 are read"),
    "list beyond": (header(keys=[("a", 9, struct.pack("<IQ", 10, 2**22))]), "is it cut off"),
    "twice": (header(keys=[("a", 4, NUMBER)] * 2), "key 'a' appears twice"),
    "alignment": (
        header(keys=[("general.alignment", 4, NUMBER)]),
        "general.alignment is 7; it must be a power of two",
    ),
    "dimensions": (header(tensors=1, described=tensor("t", [1] * 5)), "has 5 dimensions; 1 to 4"),
    "no dimensions": (header(tensors=1, described=tensor("t", [])), "has 0 dimensions"),
    "no rows": (header(tensors=1, described=tensor("t", [4, 0])), r"has the shape \[0, 4\]"),
    "half a block": (header(tensors=1, described=tensor("t", [48], 2)), "whole blocks of 32"),
    "type of tensor": (
        header(tensors=1, described=tensor("t", [32], 99)),
        "is of type number 99; supported",
    ),
    "unread type": (
        header(tensors=1, described=tensor("t", [256], 16)),
        "is of type IQ2_XXS; supported are F32",
    ),
    "beyond": (header(tensors=1, described=tensor("t", [32], 0, 0)), "the file has"),
    "far beyond": (header(tensors=1, described=tensor("t", [2**62, 2**62])), "is it cut off"),
    "offset": (header(tensors=1, described=tensor("t", [32], 0, 2**64 - 32)), "is it cut off"),
    "odd offset": (header(tensors=1, described=tensor("t", [32], 0, 4)), "not a multiple of 32"),
    "overlap": (
        header(
            tensors=2,
            described=tensor("a", [32]) + tensor("b", [32], 0, 64),
            behind=b"\0" * 512,
        ),
        "'b' begins within 'a'",
    ),
    "same name": (
        header(tensors=2, described=tensor("a", [8]) + tensor("a", [8], 0, 32), behind=b"\0" * 128),
        "tensor 'a' appears twice",
    ),
    "no architecture": (
        header(),
        "general.architecture is None; of GGUF files these are read: llama,",
    ),
    "architecture": (
        header(keys=[("general.architecture", 8, text("rwkv7"))]),
        "general.architecture is 'rwkv7'",
    ),
    "no settings": (
        header(keys=[("general.architecture", 8, text("llama"))]),
        "llama.context_length is missing",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said(tmp_path, case):
    """By name, and with what is allowed."""
    data, words = BAD[case]
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        open_model(str(tmp_path / "m.gguf"))


def test_only_regular_files_are_read(tmp_path):
    """A pipe would block its reader; a device never ends."""
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match="is not a regular file"):
        open_model(str(tmp_path / "m.gguf"))
    with pytest.raises(ConfigError, match="the file does not exist"):
        open_model(str(tmp_path / "other.gguf"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A checkpoint to be written and spoilt."""
    return write_checkpoint(tmp_path_factory.mktemp("sound") / "checkpoint")


def spoilt(name, how):
    return lambda tensor, values: how(values) if tensor == name else values


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            spoilt("blk.1.ffn_up.weight", lambda _: None),
            r"tensor blk\.1\.ffn_up\.weight is missing",
        ),
        (spoilt("blk.0.attn_q.weight", lambda v: v[:8]), r"attn_q\.weight has shape \[8, 16\]"),
        (
            spoilt("output_norm.weight", lambda v: v * float("nan")),
            r"output_norm\.weight holds NaN",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, sound, change, words):
    """And so are values that are no numbers, once they are read."""
    path = write_gguf(tmp_path / "m.gguf", sound, change=change)
    with pytest.raises(ConfigError, match=words):
        open_model(str(path)).load()


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (("add_expert_group_count", 2), "llama.expert_group_count is 2, which is not implemented"),
        (("add_uint32", "llama.of\ntwo lines", 2), r"llama\.of\\ntwo lines is 2, which is not"),
        (("add_value_length", 4), "llama.attention.value_length is 4; 8 is implemented"),
        (("add_rope_dimension_count", 4), "llama.rope.dimension_count is 4; 8 is implemented"),
        (
            ("add_rope_scaling_type", gguf.RopeScalingType.LONGROPE),
            "llama.rope.scaling.type is 'longrope'; none, linear and yarn",
        ),
    ],
)
def test_settings_that_are_not_computed_are_refused_by_name(tmp_path, sound, metadata, words):
    """Rather than served wrong."""
    path = write_gguf(tmp_path / "m.gguf", sound, metadata=[metadata])
    with pytest.raises(ConfigError, match=words):
        open_model(str(path))


def test_it_is_served_for_text_alone(tmp_path, sound):
    """Pooling has no tensors there, and a local file no revisions."""
    path = str(write_gguf(tmp_path / "m.gguf", sound))
    with pytest.raises(ConfigError, match="not for --runner pooling"):
        open_model(path, runner="pooling")
    with pytest.raises(ConfigError, match="only a Hub id has revisions"):
        open_model(path, revision="main")


def refusal(path):
    """Why it cannot be loaded; None if it can."""
    try:
        open_model(str(path)).load()
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.slow
def test_damaged_files_are_refused_or_read(tmp_path, sound):
    """A few hundred: bytes changed in the header, ends cut off, numbers made huge; never anything but one sentence."""
    path = write_gguf(tmp_path / "m.gguf", sound, "F16")
    data = path.read_bytes()
    end = data.index(b"output_norm.weight") + 64
    rng = random.Random(0)
    said = []
    for _ in range(400):
        bad = bytearray(data)
        match rng.randrange(3):
            case 0:
                for _ in range(rng.randrange(1, 5)):
                    bad[rng.randrange(end)] = rng.randrange(256)
            case 1:
                del bad[rng.randrange(len(bad)) :]
            case _:
                at = rng.randrange(end)
                bad[at : at + 8] = struct.pack(
                    "<Q", rng.choice((0, 2**31, 2**32 - 1, HUGE, 2**64 - 1))
                )
        path.write_bytes(bad)
        said.append(refusal(path))
    assert sum(one is not None for one in said) > 100
    assert all("\n" not in one for one in said if one is not None)
