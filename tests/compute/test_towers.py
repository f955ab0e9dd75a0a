"""Models with pictures compute what Hugging Face transformers computes, family by family."""

import json
import re
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.compute.pictures import PictureSequence, picture_prompt
from tests.compute.runners import load_runner
from tests.compute.steps import run_at_random
from tests.compute.vision_families import CASES, logits_of, save_vision_model
from weft.core.errors import ConfigError
from weft.model.open import open_model
from weft.model.towers.spec import Resampling

TOWER = re.compile(
    r"(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|connector)\."
)
BAD_CONFIGS = [
    ({"out_hidden_size": 40}, r"out_hidden_size .* hidden_size of the text model \(48\)"),
    ({"num_heads": 5}, "num_heads .* a divisor of hidden_size"),
    ({"num_position_embeddings": 24}, "num_position_embeddings .* a square number"),
    ({"deepstack_visual_indexes": [0, 4]}, "deepstack_visual_indexes .* from 0 to 3"),
    ({"deepstack_visual_indexes": [1, 1]}, "deepstack_visual_indexes .* different"),
    ({"deepstack_visual_indexes": [0, 1, 2]}, "deepstack_visual_indexes .* fewer than"),
    ({"hidden_act": "mish"}, "hidden_act"),
    ({"patch_size": 5}, "patch_embed.proj.weight has shape"),
]
BAD_LLAVAS = [
    (
        {"vision_feature_layer": [-2, -1]},
        "vision_feature_layer .* a number from -4 to 4, and not 0",
    ),
    ({"vision_feature_layer": -6}, "vision_feature_layer"),
    ({"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy .* default"),
]
_NUM_TEXT = 300  # tokens before those of pictures, which no text continues with
_BACKENDS = ("reference", "native")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Returns the model of a case and its directory, made once for all tests."""
    return cache(lambda name: save_vision_model(name, tmp_path_factory.mktemp("checkpoint")))


def _grids(tower):
    """Grids of several pictures: one token, a long row, odd numbers of tokens, and a window that is cut off.

    Where all pictures have one size, there are three of it.
    """
    if tower.num_positions and tower.resampling is Resampling.EXACT:
        return ((1, tower.num_positions, tower.num_positions),) * 3
    if tower.resampling is Resampling.BUCKETS:  # transformers' merger takes squares of one size
        return ((1, 2 * tower.merge, 2 * tower.merge),) * 3
    return tuple((1, h * tower.merge, w * tower.merge) for h, w in ((1, 1), (1, 7), (3, 5)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", _BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_with_pictures_agree_with_transformers(name, compute, checkpoints):
    """Every logit is within 1e-3 and every greedy token is the same, after several pictures with text around them.

    Errors grow with the states of delta nets, with pictures as without: 4e-3 for such models.
    """
    model, directory = checkpoints(name)
    runner = load_runner(open_model(directory), max_model_len=512, compute=compute)
    rng = np.random.default_rng(3)
    grids = _grids(runner.spec.tower)
    prompt = picture_prompt(runner.spec, (5, 3, 1, 9), grids, rng)

    sequence = PictureSequence(runner, prompt)
    logits = [sequence.run(())]
    for _ in range(6):
        logits.append(sequence.follow(int(logits[-1][-1, :_NUM_TEXT].argmax()))[None])

    expected = logits_of(model, prompt, sequence.token_ids)
    got = np.concatenate(logits)
    assert np.abs(got - expected).max() <= (4e-3 if runner.spec.slot_size else 1e-3)
    assert expected.std() > 0.5  # flat logits would agree about nothing
    length = len(prompt.token_ids)
    assert (
        expected[length - 1 : -1, :_NUM_TEXT].argmax(axis=1).tolist() == sequence.token_ids[length:]
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", _BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_rows_of_a_picture_do_not_depend_on_others(name, compute, checkpoints):
    """The rows of a grid have the same bits alone, first, and last among others."""
    _, directory = checkpoints(name)
    runner = load_runner(open_model(directory), max_model_len=512, compute=compute)
    tower = runner.spec.tower
    rng = np.random.default_rng(4)
    grids = _grids(tower)
    inputs = picture_prompt(runner.spec, (0,) * (len(grids) + 1), grids, rng).inputs
    together = runner.encode(inputs)
    begin = patch = 0
    for grid in grids:
        count, tokens = grid[0] * grid[1] * grid[2], tower.num_tokens([grid])
        alone = runner.encode(type(inputs)(inputs.patches[patch : patch + count], [grid]))
        assert alone.tobytes() == together[begin : begin + tokens].tobytes()
        begin, patch = begin + tokens, patch + count


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", _BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_chunks_of_a_prompt_with_pictures_change_no_bit(name, compute, checkpoints):
    """A prompt that is cut inside its pictures gives the bits of the whole prompt, wherever its blocks are."""
    _, directory = checkpoints(name)
    runner = load_runner(open_model(directory), max_model_len=512, compute=compute)
    rng = np.random.default_rng(5)
    prompt = picture_prompt(runner.spec, (4, 2, 3, 6), _grids(runner.spec.tower), rng)
    rows = runner.encode(prompt.inputs)
    whole = PictureSequence(runner, prompt, rows).run(())
    middle = prompt.placed[2].offset + (0 if runner.spec.sees_items_whole else 4)
    cut = PictureSequence(runner, prompt, rows).run((2, middle), block_size=8, first_block=3)
    assert whole.tobytes() == cut.tobytes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_rows_in_bfloat16_are_near_those_in_float32(name, checkpoints):
    """A tower in bfloat16 differs from float32 by what its type rounds, beside a text model in int8."""
    _, directory = checkpoints(name)
    whole = load_runner(open_model(directory), max_model_len=512, compute="reference")
    rounded = load_runner(
        open_model(directory, dtype="bfloat16"), max_model_len=512, quantization="int8"
    )
    rng = np.random.default_rng(7)
    inputs = picture_prompt(whole.spec, (0, 0), _grids(whole.spec.tower)[-1:], rng).inputs
    expected, got = whole.encode(inputs), rounded.encode(inputs)
    assert np.abs(got - expected).max() <= 0.08 * np.abs(expected).max()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", _BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_text_alone_agrees_with_transformers(name, compute, checkpoints):
    """A checkpoint with a tower serves text, through plain steps without positions in three rows."""
    model, directory = checkpoints(name)
    runner = load_runner(open_model(directory), max_model_len=512, compute=compute)
    ids = np.random.default_rng(8).integers(0, 290, 60).tolist()
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()
    [got] = run_at_random(runner, [ids], np.random.default_rng(9), max_chunk=25)
    assert np.abs(got - expected).max() <= (4e-3 if runner.spec.slot_size else 1e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_without_its_tower_serves_text(name, tmp_path):
    """Text models that were taken out of a checkpoint keep its config, and have no tower."""
    save_vision_model(name, tmp_path / "whole")
    tensors = load_file(tmp_path / "whole/model.safetensors")
    kept = {k: v for k, v in tensors.items() if not TOWER.match(k)}
    assert len(kept) < len(tensors)
    save_file(kept, tmp_path / "whole/model.safetensors", {"format": "pt"})
    assert open_model(str(tmp_path / "whole")).spec.tower is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("settings", "says"), BAD_CONFIGS)
def test_configs_that_contradict_themselves_are_refused(settings, says, tmp_path):
    """A tower whose numbers do not fit each other or the text model is an error that names the key."""
    save_vision_model("qwen3_vl", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["vision_config"] |= settings
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=says):
        open_model(str(tmp_path))


@pytest.mark.filterwarnings("ignore")
def test_rows_that_llavas_projector_does_not_take_are_refused(tmp_path):
    """Other choices of layers and rows than those that are implemented are errors that name the key."""
    save_vision_model("llava", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for settings, says in BAD_LLAVAS:
        path.write_text(json.dumps(config | settings))
        with pytest.raises(ConfigError, match=says):
            open_model(str(tmp_path))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", _BACKENDS)
def test_inputs_that_contradict_each_other_are_refused(compute, checkpoints):
    """Wrong widths, types, counts and grids are errors that say what is allowed."""
    _, directory = checkpoints("qwen3_vl")
    runner = load_runner(open_model(directory), max_model_len=512, compute=compute)
    inputs = picture_prompt(runner.spec, (0, 0), ((1, 4, 4),), np.random.default_rng(6)).inputs
    make = type(inputs)
    with pytest.raises(ValueError, match=r"patches must be float32 \[patches, 96\]"):
        runner.encode(make(inputs.patches[:, 1:], inputs.grids))
    with pytest.raises(ValueError, match="patches must be float32"):
        runner.encode(make(inputs.patches.astype(np.float64), inputs.grids))
    with pytest.raises(ValueError, match="there are 16 rows, and the grids have 8"):
        runner.encode(make(inputs.patches, [(1, 2, 4)]))
    with pytest.raises(ValueError, match="multiples of 2; one is"):
        runner.encode(make(inputs.patches, [(1, 1, 16)]))
    with pytest.raises(ValueError, match="the grids have 0"):
        runner.encode(make(inputs.patches[:0], []))
