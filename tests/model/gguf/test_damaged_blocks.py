"""Damage to GGUF files of every type of block ends in a `ConfigError` of one line or in a model that computes.

Under the sanitizers too: `make sanitize-files`.
"""

import struct

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compute.runners import READERS, load_on
from tests.model.checkpoints import CONFIG, write_checkpoint
from tests.model.gguf.files import write_gguf
from tests.model.gguf.test_blocks import HALVES
from tests.model.quantized.packers import logits_from
from tests.model.test_damage import DAMAGES, check_damage, complaint
from tests.slow import slow_but
from weft.compute.native import usable_paths
from weft.core.errors import ConfigError
from weft.model.gguf.blocks import TYPES, UNREAD_TYPES
from weft.model.open import open_model

Q = "blk.0.attn_q.weight"
KINDS = {kind.name: kind for kind in TYPES.values()}
PATHS = usable_paths()
BYTES = {"NaN": b"\0\x7e", "infinity": b"\0\x7c", "minus infinity": b"\0\xfc"}
ABSURD = (0, 1, 255, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)


def write(directory, kind):
    """A model of one layer, as small as blocks of that type allow."""
    width = max(KINDS[kind].num_weights, 32)
    sizes = {"hidden_size": width, "intermediate_size": width, "num_hidden_layers": 1}
    checkpoint = write_checkpoint(directory / "m", {**CONFIG, **sizes, "head_dim": width // 2})
    return write_gguf(directory / "m.gguf", checkpoint, lambda n: kind if "blk" in n else "F32")


def compute(path, file, **flags):
    """A few tokens."""
    return logits_from(load_on(path, open_model(str(file)), **flags))


@pytest.fixture(scope="module", params=slow_but(("Q4_0",), KINDS))
def sound(request, tmp_path_factory):
    """A file that its tests spoil and mend."""
    file = write(tmp_path_factory.mktemp("gguf"), request.param)
    compute(PATHS[0], file)
    return file


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40, deadline=None)
@given(damage=DAMAGES)
def test_damaged_bytes_never_crash(sound, path, damage):
    """In the header, or anywhere. What is read is computed, on every path."""
    num_header_bytes = gguf.GGUFReader(sound).data_offset
    check_damage(sound, num_header_bytes, damage, lambda: compute(path, sound))


@settings(max_examples=20, deadline=None)
@given(length=st.integers(0, 2**31))
def test_a_file_that_is_cut_off_is_refused(sound, length):
    """Wherever."""
    data = sound.read_bytes()
    sound.write_bytes(data[: length % (len(data) - gguf.GGUF_DEFAULT_ALIGNMENT)])
    message = complaint(lambda: open_model(str(sound)))
    sound.write_bytes(data)
    assert message
    assert "\n" not in message


def described(data):
    """Where the header says of a matrix what it is: dimensions, sizes, type and place."""
    at = data.index(struct.pack("<Q", len(Q)) + Q.encode()) + 8 + len(Q)
    return {"dimensions": (at, "<I"), "depth": (at + 4, "<Q"), "rows": (at + 12, "<Q"),
            "type": (at + 20, "<I"), "place": (at + 24, "<Q")}  # fmt: skip


@pytest.mark.parametrize("field", ["dimensions", "depth", "rows", "place"])
def test_absurd_numbers_in_the_header_are_refused(sound, field):
    """Nothing is allocated by them, and nothing read."""
    data = sound.read_bytes()
    at, form = described(data)[field]
    size = struct.calcsize(form)
    for value in ABSURD:
        packed = struct.pack("<Q", value)[:size]
        sound.write_bytes(data[:at] + packed + data[at + size :])
        message = complaint(lambda: compute(PATHS[0], sound))
        assert packed == data[at : at + size] or message
        assert "\n" not in message
    sound.write_bytes(data)


def test_a_matrix_of_another_type_is_read_or_refused(sound):
    """Its bytes may be enough for that type too; they are never read beyond their end."""
    data = sound.read_bytes()
    at, form = described(data)["type"]
    for kind in (*TYPES, *UNREAD_TYPES, 4, 255, 2**31, 2**32 - 1):
        sound.write_bytes(data[:at] + struct.pack(form, kind) + data[at + 4 :])
        message = complaint(lambda: compute(PATHS[0], sound))
        assert kind in TYPES or message
        assert "\n" not in message
    sound.write_bytes(data)


def spoil(directory, kind, scale):
    """A file whose last block of a matrix, or where there is no scale each of them, is changed."""
    file = write(directory, kind)
    (tensor,) = (t for t in gguf.GGUFReader(file).tensors if t.name == Q)
    place, size = int(tensor.data_offset), KINDS[kind].num_bytes
    data = bytearray(file.read_bytes())
    end = place + int(tensor.n_bytes)
    if scale is None:
        data[place:end] = bytes(end - place)
    else:
        at = end - size + HALVES[kind][-1]
        data[at : at + 2] = scale
    file.write_bytes(data)
    return file


@pytest.mark.parametrize(("path", "flags"), READERS)
@pytest.mark.parametrize("kind", slow_but(("Q4_0",), KINDS))
def test_scales_of_zero_are_weights_of_zero(tmp_path, kind, path, flags):
    """Nothing is divided by them."""
    assert np.isfinite(compute(path, spoil(tmp_path, kind, None), **flags)).all()


@pytest.mark.parametrize(("path", "flags"), READERS)
@pytest.mark.parametrize("value", BYTES)
@pytest.mark.parametrize("kind", slow_but(("Q4_0",), HALVES))
def test_a_scale_that_is_no_number_is_named(tmp_path, kind, value, path, flags):
    """By every reader, though it is the last; minimums too."""
    with pytest.raises(ConfigError, match=f"tensor {Q} holds NaN or infinity"):
        compute(path, spoil(tmp_path, kind, BYTES[value]), **flags)
