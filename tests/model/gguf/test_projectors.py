"""Vision towers in projector files compute what the same towers in safetensors do."""

from functools import cache

import gguf
import numpy as np
import pytest

from tests.compute.families import CASES as TEXTS
from tests.compute.families import make_model, save
from tests.compute.pictures import PictureSequence, picture_prompt
from tests.compute.runners import load_runner
from tests.compute.vision_families import CASES as VISION
from tests.compute.vision_families import make_vision_model
from tests.model.checkpoints import write_checkpoint
from tests.model.gguf.files import write_gguf
from tests.model.gguf.projector_files import write_pair, write_projector
from tests.slow import slow_but
from weft.core.config.file_overrides import FileOverrides
from weft.core.errors import ConfigError
from weft.model.directory_scan import checkpoints_in
from weft.model.open import find_model, open_model
from weft.model.towers.spec import Resampling

pytestmark = pytest.mark.filterwarnings("ignore")
QWEN, GEMMA = "qwen3_vl", "gemma3"
SMALL_WINDOWS = "gemma3, windows shorter than a picture, its number of tokens that of its patches"
PIXTRAL = "llava with Pixtral's tower"
PLAIN_PIXTRAL = "llava with Pixtral's tower, no biases, SiLU"
PLAIN_LFM2 = "lfm2_vl, no norm and no biases, wide merge, a fine grid of positions"
CASES = (
    *("qwen2_vl", "qwen2_vl, a tower of another size, wide merge, GELU"),
    *("qwen2_5_vl", QWEN, GEMMA, SMALL_WINDOWS, PIXTRAL, PLAIN_PIXTRAL),
    *("lfm2_vl", PLAIN_LFM2, "smolvlm"),
)
# What the files do not say, and must be what llama.cpp takes it for.
FIXED = {
    "text_config": {
        **{name: {"query_pre_attn_scalar": 16} for name in (GEMMA, SMALL_WINDOWS)},
        PLAIN_PIXTRAL: {"sliding_window": None},
    },
    "vision_config": {
        PLAIN_PIXTRAL: {"rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0}},
        "smolvlm": {"hidden_act": "gelu_pytorch_tanh"},
    },
}
FIXED_TOP = {
    PLAIN_LFM2: {"downsample_factor": 2},
    PLAIN_PIXTRAL: {"projector_hidden_act": "gelu"},
}
# Rows of whole blocks, for types with few bits.
WIDE = {"hidden_size": 64, "intermediate_size": 64, "num_heads": 4}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Returns a checkpoint, its text model and its projector by the name of a case, made once for all tests."""
    return cache(lambda name: make_pair(name, tmp_path_factory.mktemp("pair")))


def make_pair(name, directory, **how):
    """The model of a case with the settings that GGUF files do not have as llama.cpp takes them."""
    family, settings = VISION[name]
    text, vision = ({**settings[part], **FIXED[part].get(name, {})} for part in FIXED)
    if how:
        vision |= WIDE
    settings = {**settings, **FIXED_TOP.get(name, {}), "text_config": text, "vision_config": vision}
    checkpoint = directory / "checkpoint"
    save(make_vision_model(family, settings), checkpoint)
    return checkpoint, *write_pair(checkpoint, directory, **how)


def rows_and_logits(checkpoint, compute):
    """The tower's rows of pictures, and logits of a prompt with them."""
    runner = load_runner(checkpoint, max_model_len=512, compute=compute)
    tower = runner.spec.tower
    grid = (1, 2 * tower.merge, 2 * tower.merge)
    if tower.num_positions and tower.resampling is Resampling.EXACT:
        grid = (1, tower.num_positions, tower.num_positions)
    prompt = picture_prompt(runner.spec, (5, 3, 4), (grid, grid), np.random.default_rng(3))
    rows = runner.encode(prompt.inputs)
    return rows, PictureSequence(runner, prompt, rows).run(())


@pytest.mark.parametrize("name", slow_but((QWEN, GEMMA, PIXTRAL), CASES))
@pytest.mark.parametrize("compute", slow_but(("native",), ("native", "reference")))
def test_a_pair_of_files_computes_what_the_checkpoint_does(name, compute, pairs):
    """Bit for bit, rows of pictures and logits: the projector is found beside the text model by its name."""
    checkpoint, model, _ = pairs(name)
    expected = rows_and_logits(open_model(str(checkpoint)), compute)
    got = rows_and_logits(open_model(str(model)), compute)
    assert expected[0].std() > 0.1
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1], expected[1])


@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
def test_towers_in_few_bits_compute_what_they_mean(kind, tmp_path):
    """Blocks and halves are widened: the rows are those of a file with the same values as F32."""
    number = gguf.GGMLQuantizationType[kind]

    def meant(name, values):
        if values.ndim != 2 or name.startswith("v.position"):
            return values
        return gguf.quants.dequantize(gguf.quants.quantize(values, number), number)

    checkpoint, model, projector = make_pair(QWEN, tmp_path, kinds=kind)
    wide = write_projector(tmp_path / "wide.gguf", checkpoint, change=meant)
    expected, got = (
        rows_and_logits(
            open_model(str(model), dtype="float32", overrides=FileOverrides(mmproj=str(path))),
            "native",
        )[0]
        for path in (wide, projector)
    )
    np.testing.assert_array_equal(got, expected)


def test_old_names_of_two_matrices_are_read(pairs, tmp_path):
    """The first projectors of llama.cpp have `up` and `down` of MLPs the other way round."""
    checkpoint, model, _ = pairs(GEMMA)
    old = write_projector(tmp_path / "old.gguf", checkpoint, is_old=True)
    named = open_model(str(model), overrides=FileOverrides(mmproj=str(old)))
    got = rows_and_logits(named, "native")[0]
    np.testing.assert_array_equal(got, rows_and_logits(open_model(str(model)), "native")[0])


def find(model, projector=None):
    """The model of a file, with this projector."""
    overrides = FileOverrides(mmproj=None if projector is None else str(projector))
    return find_model(str(model), overrides=overrides)


def drop(ending):
    return lambda name, values: None if name.endswith(ending) else values


def spoil(name, values):
    return values * np.nan if name == "mm.2.weight" else values


VISION_KEY = "clip.vision."
BAD_PROJECTORS = {
    "size": (
        {"metadata": {VISION_KEY + "projection_dim": 64}},
        "projection_dim is 64, but the hidden size of .* is 48",
    ),
    "family": (
        {"metadata": {"clip.projector_type": "gemma3"}},
        "its projector gemma3 is for text models of architecture gemma3, but .* has qwen3vl",
    ),
    "type": (
        {"metadata": {"clip.projector_type": "resampler"}},
        "clip.projector_type is 'resampler'; implemented are qwen2vl_merger, qwen2.5vl_merger, qwen3vl_merger",
    ),
    "sound": (
        {"metadata": {"clip.has_audio_encoder": True}},
        "clip.has_audio_encoder is True, which is not implemented",
    ),
    "no pictures": (
        {"metadata": {"clip.has_vision_encoder": False}},
        "clip.has_vision_encoder is False; it must be true",
    ),
    "number": (
        {"metadata": {VISION_KEY + "attention.head_count": 5}},
        "num_heads is 5; it must be a divisor of hidden_size",
    ),
    "missing key": (
        {"metadata": {VISION_KEY + "patch_size": None}},
        "tensor v.patch_embd.weight has shape",
    ),
    "layers": (
        {"metadata": {VISION_KEY + "is_deepstack_layers": [1, 0]}},
        "is_deepstack_layers is .* a list of booleans",
    ),
    "missing tensor": ({"change": drop("mm.2.bias")}, "tensor mm.2.bias is missing"),
    "more layers": (
        {"metadata": {VISION_KEY + "block_count": 3}},
        "tensor 'v.blk.3.* has no place in the tower",
    ),
}


@pytest.mark.parametrize("case", BAD_PROJECTORS)
def test_a_projector_that_does_not_fit_is_refused_by_the_flag(case, pairs, tmp_path):
    """Other sizes, families, types and settings, and missing or further tensors: the error says which file is wrong."""
    how, says = BAD_PROJECTORS[case]
    checkpoint, model, _ = pairs(QWEN)
    bad = write_projector(tmp_path / "bad.gguf", checkpoint, **how)
    with pytest.raises(ConfigError, match=rf"^--mmproj:? .*bad\.gguf.*{says}"):
        find(model, bad)


def test_files_that_are_no_projectors_are_refused_by_the_flag(pairs, tmp_path):
    """Text models, damaged files, files that do not exist; and a projector in the place of the model."""
    _, model, projector = pairs(QWEN)
    (tmp_path / "cut.gguf").write_bytes(projector.read_bytes()[:5000])
    for wrong, says in (
        (model, "general.architecture is 'qwen3vl', and clip in a projector file"),
        (tmp_path / "cut.gguf", "is it cut off"),
        (tmp_path / "nowhere.gguf", "the file does not exist"),
        ("no/such/place.gguf", "the file does not exist"),
    ):
        with pytest.raises(ConfigError, match=f"^--mmproj.*{says}"):
            find(model, wrong)
    with pytest.raises(ConfigError, match=r"is a projector file, .* with --mmproj"):
        find(projector)


def test_models_that_take_no_projector_are_named(pairs, tmp_path):
    """Text models of another architecture, text models without the tokens, checkpoints of safetensors, and toys."""
    checkpoint, model, projector = pairs(QWEN)
    llama = write_gguf(tmp_path / "llama.gguf", write_checkpoint(tmp_path / "llama"))
    save(make_model(*TEXTS["qwen2"]), tmp_path / "qwen2")
    qwen2 = write_gguf(tmp_path / "qwen2.gguf", tmp_path / "qwen2")
    bare = write_gguf(tmp_path / "bare.gguf", model.parent / "text")
    for named, says in (
        (llama, "is for text models of architecture qwen3vl, but .*llama.gguf has llama"),
        (qwen2, "qwen2.gguf takes no pictures: its general.architecture is qwen2"),
        (bare, r"bare.gguf has no token <\|image_pad\|>"),
        (checkpoint, "is for models in GGUF files"),
        ("embedded:echo", "is only for models with files"),
    ):
        with pytest.raises(ConfigError, match=f"^--mmproj.*{says}"):
            find(named, projector)


def test_numbers_that_are_none_are_named_in_projectors(pairs, tmp_path):
    """Weights of the tower are checked where those of the text model are."""
    checkpoint, model, _ = pairs(QWEN)
    bad = write_projector(tmp_path / "bad.gguf", checkpoint, change=spoil)
    with pytest.raises(ConfigError, match=r"mm\.2\.weight holds NaN"):
        load_runner(find(model, bad).with_tokenizer(), max_model_len=64)


def test_a_projector_beside_the_model_is_used_if_it_fits(pairs, tmp_path):
    """Files of other models are left alone, `none` leaves out any; in a directory of models it is none of them."""
    checkpoint, model, _ = pairs(QWEN)
    alone = tmp_path / "model.gguf"
    alone.symlink_to(model)
    assert find(alone).card.media is None
    size = {VISION_KEY + "projection_dim": 64}
    write_projector(tmp_path / "mmproj-other-BF16.gguf", checkpoint, metadata=size)
    assert find(alone).card.media is None
    projector = write_projector(tmp_path / "mmproj-mine-F32.gguf", checkpoint)
    found = find(alone)
    assert found.card.media is not None
    assert set(found.weight_files) == {alone, projector}
    assert find(alone, "none").spec.tower is None
    assert list(checkpoints_in(tmp_path)) == [alone]
    bare = write_gguf(tmp_path / "without-tokens.gguf", model.parent / "text")
    assert find(bare).card.media is None
