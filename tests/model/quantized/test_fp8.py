"""FP8 checkpoints, as DeepSeek V3 is published: what torch makes of the same bytes, in every part of a model."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.compute.families import CASES, make_model, save
from tests.compute.runners import load_runner
from tests.compute.steps import check_any_schedule
from tests.model.quantized.packers import assert_same, logits_of
from tests.model.test_damage import DAMAGES, JSON, check_damage, complaint
from weft.core.errors import ConfigError
from weft.model.open import open_model

KV_B = "model.layers.1.self_attn.kv_b_proj"
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}


def blocks(*sizes):
    """The scheme of such blocks, the name of their scales and their shape."""
    return {**BLOCKS, "weight_block_size": list(sizes)}, "weight_scale_inv", sizes


def compressed(strategy, block, structure=None):
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    weights |= {"block_structure": structure, "dynamic": False}
    activations = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": True}
    group = {"weights": weights, "input_activations": {**activations, "strategy": "token"}}
    scheme = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    return {**scheme, "config_groups": {"group_0": group}, "ignore": []}, "weight_scale", block


FORMS = {
    "blocks": blocks(16, 8),
    "blocks larger than most": blocks(128, 128),
    "compressed, blocks": compressed("block", (7, 24), [7, 24]),
    "compressed, rows": compressed("channel", (1, None)),
    "compressed, matrix": compressed("tensor", (None, None)),
}
STATIC = {
    **BLOCKS,
    "activation_scheme": "static",
    "kv_cache_scheme": {"num_bits": 8, "type": "float"},
}
DEEPSEEK = [case for case in CASES if case.startswith("deepseek")]
FAMILIES = ["llama with biases, tied, wide heads", "qwen3", "qwen3_moe", "glm4_moe", *DEEPSEEK]


def pack(values, scales, block):
    """A matrix in float8, what it is stored beside, and what both mean."""
    height, width = (size or whole for size, whole in zip(block, values.shape, strict=True))
    rows, columns = (-(-n // size) for n, size in zip(values.shape, (height, width), strict=True))
    each = torch.empty(rows, columns)
    for i in range(rows):
        for j in range(columns):
            one = values[i * height : (i + 1) * height, j * width : (j + 1) * width]
            each[i, j] = one.abs().max() / 448
    wide = each.repeat_interleave(height, 0)[: len(values)]
    wide = wide.repeat_interleave(width, 1)[:, : values.shape[1]]
    codes = (values / wide).to(torch.float8_e4m3fn)
    stored = each.reshape(1) if block == (None, None) else each
    return {"weight": codes, scales: stored}, codes.float() * wide


def write(directory, form, checkpoint, change=None):
    """The checkpoint with its linear layers in that form; the name of it, and of one that has what it means."""
    scheme, scales, block = form
    stored, meant = {}, {}
    for name, values in load_file(checkpoint / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if re.search(r"_proj(_with_mqa)?\.weight$", name) is None:
            stored[name] = meant[name] = values
            continue
        parts, meant[name] = pack(values, scales, block)
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    if change is not None:
        change(stored)
    for name, tensors in (("packed", stored), ("meant", meant)):
        shutil.copytree(checkpoint, directory / name)
        save_file(tensors, directory / name / "model.safetensors")
    config = json.loads((checkpoint / "config.json").read_text())
    packed = directory / "packed" / "config.json"
    packed.write_text(json.dumps({**config, "quantization_config": scheme}))
    return str(directory / "packed"), str(directory / "meant")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Of a family, made once."""
    made = {}

    def checkpoint(case):
        if case not in made:
            made[case] = tmp_path_factory.mktemp("checkpoint") / "m"
            family, settings = CASES[case]
            save(make_model(family, settings), made[case])
        return made[case]

    return checkpoint


@pytest.mark.parametrize("compute", ["native", "reference"])
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if c == "deepseek_v3" else pytest.mark.slow) for c in FAMILIES],
)
def test_every_family_computes_what_the_weights_mean(tmp_path, checkpoints, case, compute):
    """Bit for bit; what is made of latent vectors too, in whichever form."""
    packed, meant = write(tmp_path, FORMS["blocks"], checkpoints(case))
    assert "8 bits (FP8)" in open_model(packed).card.notice
    assert_same(packed, meant, compute=compute)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_means_what_torch_says(tmp_path, checkpoints, form):
    """Each matrix, the last of its blocks cut off."""
    packed, meant = write(tmp_path, FORMS[form], checkpoints("deepseek_v3"))
    got, expected = open_model(packed).load(), open_model(meant).load()
    assert got.tensors.keys() == expected.tensors.keys()
    for name in expected.tensors:
        np.testing.assert_array_equal(got[name].float32(), expected[name].float32())


@pytest.mark.parametrize("flags", [{"dtype": "bfloat16"}, {"quantization": "int8"}])
def test_they_are_served_as_floats_of_that_value_would_be(tmp_path, checkpoints, flags):
    """Rounded to bfloat16, or to int8 by row, once."""
    packed, meant = write(tmp_path, FORMS["blocks"], checkpoints("deepseek_v3"))
    assert_same(packed, meant, **flags)


def test_any_schedule_gives_the_same_bits(tmp_path, checkpoints):
    """Random mixes and chunks equal one token at a time."""
    packed, _ = write(tmp_path, FORMS["blocks"], checkpoints("deepseek_v3"))
    runner = load_runner(open_model(packed), compute="native", num_threads=2)
    check_any_schedule(runner, 5, (90, 7, 66, 1), (5, 40))


def test_a_scale_of_zero_means_zeros(tmp_path, checkpoints):
    """As a block that was pruned has it."""

    def prune(stored):
        stored[f"{KV_B}.weight_scale_inv"][0, 0] = 0

    packed, _ = write(tmp_path, FORMS["blocks"], checkpoints("deepseek_v3"), prune)
    values = open_model(packed).load()["layers.1.kv_b"].float32()
    assert not values[:16, :8].any()
    assert np.isfinite(values).all()
    assert np.isfinite(logits_of(packed)).all()


@pytest.mark.parametrize("compute", ["native", "reference"])
@pytest.mark.parametrize(
    ("part", "value"),
    [("weight", np.nan), ("weight_scale_inv", np.nan), ("weight_scale_inv", np.inf)],
)
def test_what_is_no_number_is_named(tmp_path, checkpoints, part, value, compute):
    """A code or a scale; of codes none is infinite."""

    def spoil(stored):
        stored[f"{KV_B}.{part}"][3, 1] = value

    packed, _ = write(tmp_path, FORMS["blocks"], checkpoints("deepseek_v3"), spoil)
    with pytest.raises(ConfigError, match=rf"{KV_B}\.weight, times weight_scale_inv, holds NaN"):
        logits_of(packed, compute=compute)


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("weight_scale_inv", None, "weight_scale_inv is missing"),
        ("weight", None, "weight is missing"),
        ("weight_scale_inv", lambda t: t[:-1].clone(), "weight_scale_inv has shape [7, 4]"),
        ("weight_scale_inv", lambda t: t.reshape(-1), "weight_scale_inv has shape [32]"),
        ("weight_scale_inv", lambda t: t.to(torch.int32), "weight_scale_inv is int32"),
        ("weight", lambda t: t[:, :-1].clone(), "weight has shape [128, 31]"),
        ("weight", lambda t: t.float().to(torch.int8), "weight is int8"),
    ],
)
def test_damaged_matrices_are_named(tmp_path, checkpoints, part, change, words):
    """Before anything is loaded."""

    def spoil(stored):
        found = stored.pop(f"{KV_B}.{part}")
        if change is not None:
            stored[f"{KV_B}.{part}"] = change(found)

    packed, _ = write(tmp_path, FORMS["blocks"], checkpoints("deepseek_v3"), spoil)
    with pytest.raises(ConfigError) as refused:
        open_model(packed)
    assert f"{KV_B}.{words}" in str(refused.value)


def test_float8_that_no_config_speaks_of_is_refused(tmp_path, checkpoints):
    """Its scales would be unknown."""
    packed, meant = write(tmp_path, FORMS["blocks"], checkpoints("deepseek_v3"))
    shutil.copy(f"{meant}/config.json", f"{packed}/config.json")
    with pytest.raises(ConfigError, match=r"is float8_e4m3fn; config\.json does not say how"):
        open_model(packed)


@pytest.mark.parametrize("scheme", [STATIC, compressed("tensor", ())[0]], ids=["fp8", "compressed"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_scales_of_what_is_not_rounded_here_are_passed_over(tmp_path, checkpoints, scheme, shape):
    """Inputs, keys and values keep all of their bits; a scale of a whole matrix may have no dimension."""

    def as_published(stored):
        for name in [name for name in stored if name.endswith("weight_scale")]:
            stored[name] = stored[name].reshape(shape)
            stored[name.replace("weight_scale", "input_scale")] = torch.ones(shape)
        stored["model.layers.0.self_attn.k_scale"] = torch.ones(shape)
        stored["model.layers.0.self_attn.v_proj.output_scale"] = torch.ones(shape)

    scheme = {**scheme, "kv_cache_scheme": STATIC["kv_cache_scheme"]}
    form = (scheme, "weight_scale", (None, None))
    packed, meant = write(tmp_path, form, checkpoints("deepseek_v3"), as_published)
    assert_same(packed, meant, compute="native")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_block_size": None}, "weight_scale is missing"),
        ({"weight_block_size": [128]}, "weight_block_size is [128]; it must be a list of two"),
        (
            {"weight_block_size": [0, 128]},
            "weight_block_size is [0, 128]; it must be a list of two",
        ),
        ({"weight_block_size": [True, 1]}, "it must be a list of two whole numbers from 1"),
        ({"weight_block_size": [10**30, 1]}, "it must be a list of two whole numbers from 1"),
        ({"fmt": "e5m2"}, "fmt is 'e5m2'; this runner reads nothing or 'e4m3'"),
        ({"scale_fmt": "x"}, "scale_fmt is 'x'"),
        ({"activation_scheme": "block"}, "activation_scheme is 'block'"),
        ({"kv_cache_scheme": 8}, "kv_cache_scheme is"),
        ({"ignored_layers": [1]}, "ignored_layers is [1]"),
    ],
)
def test_other_forms_are_refused_by_name(tmp_path, checkpoints, changes, words):
    """With what is read."""
    form = ({**BLOCKS, "weight_block_size": [16, 8], **changes}, "weight_scale_inv", (16, 8))
    packed, _ = write(tmp_path, form, checkpoints("deepseek_v3"))
    with pytest.raises(ConfigError) as refused:
        open_model(packed)
    assert words in str(refused.value)


def test_blocks_of_many_matrices_in_one_tensor_are_refused(tmp_path, checkpoints):
    """A block may lie in two of them."""

    def round_one(stored):
        name = "model.layers.0.block_sparse_moe.input_linear"
        codes = stored[f"{name}.weight"].to(torch.float8_e4m3fn)
        stored[f"{name}.weight"], stored[f"{name}.weight_scale_inv"] = codes, torch.ones(1, 1)

    packed, _ = write(tmp_path, FORMS["blocks"], checkpoints("granitemoe"), round_one)
    with pytest.raises(ConfigError, match=r"input_linear\.weight is float8_e4m3fn; config\.json"):
        open_model(packed)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory, checkpoints):
    """A directory that its tests spoil and mend."""
    packed, _ = write(tmp_path_factory.mktemp("fp8"), FORMS["blocks"], checkpoints("deepseek_v3"))
    return Path(packed)


@settings(max_examples=200, deadline=None)
@given(damage=DAMAGES)
def test_damaged_bytes_never_crash(damaged, damage):
    """In the header, or anywhere."""
    path = damaged / "model.safetensors"
    num_header_bytes = 8 + int.from_bytes(path.read_bytes()[:8], "little")

    def load():
        weights = open_model(str(damaged)).load()
        for name in weights.tensors:
            weights[name].float32()

    check_damage(path, num_header_bytes, damage, load)


@settings(max_examples=200, deadline=None)
@given(
    changes=st.dictionaries(
        st.sampled_from(
            "quant_method fmt scale_fmt activation_scheme weight_block_size kv_cache_scheme "
            "modules_to_not_convert ignored_layers".split()
        ),
        JSON,
        max_size=3,
    )
)
def test_any_settings_are_read_or_refused(damaged, changes):
    """Also blocks of absurd sizes."""
    path = damaged / "config.json"
    sound = path.read_text()
    config = json.loads(sound)
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config))
    message = complaint(lambda: open_model(str(damaged)))
    path.write_text(sound)
    assert "\n" not in message


def test_every_code_means_what_torch_says(tmp_path, checkpoints):
    """All but the two that are no numbers."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    is_number = ~codes.float().isnan()
    numbers = torch.where(is_number, codes.float(), 0.0).to(torch.float8_e4m3fn)

    def all_codes(stored):
        stored[f"{KV_B}.weight"] = numbers.repeat(16).reshape(128, 32)
        stored[f"{KV_B}.weight_scale_inv"][:] = 1

    packed, _ = write(tmp_path, FORMS["blocks"], checkpoints("deepseek_v3"), all_codes)
    got = open_model(packed).load()["layers.1.kv_b"].float32().reshape(16, 256)
    np.testing.assert_array_equal(got, np.tile(numbers.float().numpy(), (16, 1)))
