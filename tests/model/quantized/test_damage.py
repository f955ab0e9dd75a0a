"""Damage to files of every form of rounded weights ends in a `ConfigError` of one line or in a model that computes.

Under the sanitizers too: `make sanitize-files`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.compute.runners import READERS, load_on
from tests.model.checkpoints import CONFIG, write_checkpoint, write_json, write_raw
from tests.model.quantized import test_fp8, test_int8, test_mxfp4
from tests.model.quantized.packers import gptq, logits_from, packed_tensors, words
from tests.model.quantized.test_groups import CASES, GPTQ, pack_compressed, packing
from tests.model.quantized.test_refused import changed
from tests.model.test_damage import DAMAGES, ODD, check_damage, complaint
from tests.slow import slow_but
from weft.compute.native import usable_paths
from weft.core.errors import ConfigError
from weft.model.open import open_model

Q = "model.layers.1.self_attn.q_proj."


@dataclass(frozen=True)
class Form:
    """A scheme, what packs a matrix so, and how the parts of one are called; the last are its scales."""

    scheme: dict
    pack: Callable
    parts: tuple[str, ...]
    lead: str = Q


def float8(form):
    scheme, scales, block = test_fp8.FORMS[form]

    def pack(values):
        parts, meant = test_fp8.pack(torch.from_numpy(values), scales, block)
        return parts, meant.numpy()

    return Form(scheme, pack, ("weight", scales))


def packed(case, *parts):
    scheme, pack, _ = CASES[case]
    return Form(scheme, pack, parts)


def with_zeros(matrix):
    zeros = np.ascontiguousarray(words(matrix.zeros.T, 4).T)
    return {**pack_compressed(matrix), "weight_zero_point": zeros}


IN_ORDER = {**GPTQ, "desc_act": True}
EIGHT = {**GPTQ, "bits": 8}
GPTQ_PARTS = ("qweight", "qzeros", "g_idx", "scales")
COMPRESSED = ("weight_packed", "weight_shape", "weight_scale")
FORMS = {
    "gptq": packed("gptq", *GPTQ_PARTS),
    "gptq, 8 bits": Form(EIGHT, packing(lambda m: gptq(m, 8), bits=8), GPTQ_PARTS),
    "gptq, in an order": Form(IN_ORDER, packing(gptq, shuffled=True), GPTQ_PARTS),
    "awq": packed("awq", "qweight", "qzeros", "scales"),
    "groups": packed("groups", *COMPRESSED),
    "groups with zeros": Form(
        changed(CASES["groups"][0], {"config_groups.group_0.weights.symmetric": False}),
        packing(with_zeros),
        ("weight_zero_point", *COMPRESSED),
    ),
    "rows": packed("rows", *COMPRESSED),
    "int8": Form(test_int8.SCHEME, test_int8.pack, ("weight", "weight_scale")),
    "fp8, blocks": float8("blocks"),
    "fp8, rows": float8("compressed, rows"),
    "fp8, matrix": float8("compressed, matrix"),
    "mxfp4": Form(
        test_mxfp4.MXFP4["quantization_config"],
        None,
        ("blocks", "scales"),
        test_mxfp4.GATE_UP + "_",
    ),
}
FAST = ("gptq", "mxfp4")
PATHS = usable_paths()
OTHER_TYPES = {
    torch.int32: torch.float32,
    torch.int64: torch.uint8,
    torch.uint8: torch.int8,
    torch.int8: torch.uint8,
    torch.float8_e4m3fn: torch.int8,
    torch.float16: torch.int32,
    torch.float32: torch.int32,
}
CHANGES = {
    "a row less": lambda t: t[:-1],
    "a row more": lambda t: torch.cat((t, t[-1:])),
    "no rows": lambda t: t[:0],
    "a dimension more": lambda t: t[None],
    "another type": lambda t: t.to(torch.float32).to(OTHER_TYPES[t.dtype]),
    "none": lambda _: None,
}
# What the header says of a tensor, instead.
ABSURD = [
    {"shape": [2**62, 16]},
    {"shape": [2**32, 2**32]},
    {"shape": [2**64, 0]},
    {"shape": [-1, 16]},
    {"shape": [1] * 1000},
    {"data_offsets": [0, 2**63 - 1]},
    {"data_offsets": [2**63, 2**63 + 1]},
    {"data_offsets": [8, 0]},
    {"dtype": "F8_E8M0"},
    {"dtype": "F64"},
]
COUNTS = (*ODD, False, -1, 1, 2, 3, 7, 8, 2**16 + 1, 2**31, 2**63, 10**30, float("nan"))


def tensors_of(form):
    """Of a small checkpoint, as torch has them."""
    if form == "mxfp4":
        tensors, _ = test_mxfp4.packed_tensors()
    else:
        tensors, _ = packed_tensors(FORMS[form].pack)
    return {name: torch.as_tensor(values) for name, values in tensors.items()}


def write_form(directory, form, tensors):
    """The checkpoint that has these."""
    config = test_mxfp4.GPT_OSS if form == "mxfp4" else CONFIG
    write_checkpoint(directory, {**config, "quantization_config": FORMS[form].scheme})
    save_file({n: t.contiguous() for n, t in tensors.items()}, directory / "model.safetensors")
    return str(directory)


def compute(name, path, **flags):
    """A few tokens."""
    return logits_from(load_on(path, open_model(name), **flags))


def part_changes():
    """All but of a part that is optional that it is missing."""
    cases = product(FORMS, CHANGES)
    return [
        pytest.param(form, part, change, marks=() if form in FAST else pytest.mark.slow)
        for form, change in cases
        for part in FORMS[form].parts
        if (part, change) != ("g_idx", "none") or "order" in form
    ]


@pytest.fixture(scope="module", params=slow_but(FAST, FORMS))
def sound(request, tmp_path_factory) -> tuple[str, Path]:
    """A form, and a directory that its tests spoil and mend."""
    form = request.param
    directory = tmp_path_factory.mktemp("m") / "m"
    compute(write_form(directory, form, tensors_of(form)), PATHS[0])
    return form, directory


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None)
@given(damage=DAMAGES)
def test_damaged_bytes_never_crash(sound, path, damage):
    """In the header, or anywhere: sizes, types, numbers and scales. What is read is computed, on every path."""
    file = sound[1] / "model.safetensors"
    num_header_bytes = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    check_damage(file, num_header_bytes, damage, lambda: compute(str(sound[1]), path))


@settings(max_examples=20, deadline=None)
@given(length=st.integers(0, 2**31))
def test_a_file_that_is_cut_off_is_refused(sound, length):
    """Wherever."""
    file = sound[1] / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: length % len(data)])
    message = complaint(lambda: open_model(str(sound[1])))
    file.write_bytes(data)
    assert message
    assert "\n" not in message


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_settings_are_read_or_refused(sound, data):
    """Also absurd counts, of the model and of how its weights are rounded. What is read is computed."""
    form, directory = sound
    file = directory / "config.json"
    text = file.read_text()
    config = json.loads(text)
    keys = st.sampled_from(
        [*leaves(FORMS[form].scheme), *(k for k in config if "_config" not in k)]
    )
    changes = data.draw(st.dictionaries(keys, st.sampled_from(COUNTS), min_size=1, max_size=2))
    write_json(file, changed(config, changes))
    message = complaint(lambda: compute(str(directory), PATHS[0]))
    file.write_text(text)
    assert "\n" not in message


def leaves(values, lead="quantization_config"):
    """Paths to all that is no object."""
    for key, value in values.items():
        is_object = isinstance(value, dict)
        yield from leaves(value, f"{lead}.{key}") if is_object else (f"{lead}.{key}",)


@pytest.mark.parametrize(("form", "part", "change"), part_changes())
def test_parts_of_another_size_or_type_are_named(tmp_path, form, part, change):
    """Or the matrix, where the part that decides is missing; before anything is computed."""
    tensors = tensors_of(form)
    name = FORMS[form].lead + part
    tensors[name] = CHANGES[change](tensors[name])
    left = {n: t for n, t in tensors.items() if t is not None}
    with pytest.raises(
        ConfigError, match=rf"{FORMS[form].lead[:-1]}\S* .* config.json "
    ) as refused:
        open_model(write_form(tmp_path / "m", form, left))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("said", ABSURD, ids=str)
def test_headers_that_say_what_cannot_be_are_refused(sound, said):
    """Of any part. Nothing is allocated by them, and nothing read."""
    form, directory = sound
    file = directory / "model.safetensors"
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    for part in FORMS[form].parts:
        header = json.loads(data[8:end])
        header[FORMS[form].lead + part] |= said
        write_raw(file, header, data[end:])
        message = complaint(lambda: open_model(str(directory)))
        assert message
        assert "\n" not in message
    file.write_bytes(data)


def spoil(directory, form, value):
    """The checkpoint with the last scale of a matrix, or where it is None all of them, changed."""
    tensors = tensors_of(form)
    scales = tensors[FORMS[form].lead + FORMS[form].parts[-1]]
    scales.view(-1)[-1 if value is not None else slice(None)] = value or 0
    return write_form(directory, form, tensors)


@pytest.mark.parametrize(("path", "flags"), READERS)
@pytest.mark.parametrize("form", slow_but(FAST, FORMS))
def test_scales_of_zero_are_weights_of_zero(tmp_path, form, path, flags):
    """Or of 2 to the power of -127, which MXFP4 has in its place. Nothing is divided by them."""
    assert np.isfinite(compute(spoil(tmp_path / "m", form, None), path, **flags)).all()


@pytest.mark.parametrize(("path", "flags"), READERS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", slow_but(("gptq",), [form for form in FORMS if form != "mxfp4"]))
def test_a_scale_that_is_no_number_is_named(tmp_path, form, value, path, flags):
    """By every reader, though it is the last."""
    with pytest.raises(ConfigError, match=f"{Q}.*{FORMS[form].parts[-1]}.* holds NaN or infinity"):
        compute(spoil(tmp_path / "m", form, value), path, **flags)


@pytest.mark.parametrize(("path", "flags"), READERS)
def test_a_scale_of_mxfp4_that_is_no_number_is_named(tmp_path, path, flags):
    """Of whose bytes one is none."""
    with pytest.raises(ConfigError, match=f"{test_mxfp4.GATE_UP}_scales holds NaN or infinity"):
        compute(spoil(tmp_path / "m", "mxfp4", 255), path, **flags)
