"""Models that hear compute what Hugging Face transformers computes, and no bit depends on the rest of a step."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForMultimodalLM

from tests.compute.families import SIZES, draw, save
from tests.compute.pictures import PicturePrompt, PictureSequence
from tests.compute.runners import load_runner
from weft.compute.protocols.tower import TowerInputs
from weft.core.errors import ConfigError
from weft.model.open import open_model
from weft.model.towers.positions import PlacedGrid

MELS, ROWS, ANCHOR = 8, 40, 300
_AUDIO = {"num_mel_bins": MELS, "max_source_positions": ROWS}
_QWEN = {"d_model": 48, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 40}
_VOXTRAL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
CASES = {
    "qwen2_audio": (
        "qwen2_audio",
        {
            "audio_token_index": ANCHOR,
            "text_config": {**SIZES, "model_type": "qwen2"},
            "audio_config": {**_AUDIO, **_QWEN, "model_type": "qwen2_audio_encoder"},
        },
    ),
    "voxtral": (
        "voxtral",
        {
            "audio_token_id": ANCHOR,
            "text_config": {**SIZES, "model_type": "llama"},
            "audio_config": {
                **_AUDIO,
                **_VOXTRAL,
                "intermediate_size": 96,
                "model_type": "voxtral_encoder",
            },
        },
    ),
    "voxtral, two rows a token, other activations": (
        "voxtral",
        {
            "audio_token_id": ANCHOR,
            "projector_hidden_act": "relu",
            "text_config": {**SIZES, "model_type": "llama"},
            "audio_config": {
                **_AUDIO,
                **_VOXTRAL,
                "intermediate_size": 48,
                "activation_function": "relu",
                "model_type": "voxtral_encoder",
            },
        },
    ),
}
CASES["qwen3_asr"] = (
    "qwen3_asr",
    {
        "audio_token_id": ANCHOR,
        "eos_token_id": [256],
        "pad_token_id": 256,
        "tie_word_embeddings": False,
        "text_config": {**SIZES, "head_dim": 16, "model_type": "qwen3"},
        "audio_config": {
            **_QWEN,
            "num_mel_bins": 10,
            "downsample_hidden_size": 6,
            "n_window_infer": 200,
            "output_dim": SIZES["hidden_size"],
            "model_type": "qwen3_asr_encoder",
        },
    },
)
_BACKENDS = ("reference", "native")
_NUM_TEXT = 290


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Returns the model of a case and its directory, made once for all tests."""

    @cache
    def made(name):
        model_type, settings = CASES[name]
        config = AutoConfig.for_model(model_type, **settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            model = AutoModelForMultimodalLM.from_config(config, attn_implementation="eager")
        model = draw(model.float().eval())
        return model, save(model, tmp_path_factory.mktemp("checkpoint"))

    return made


# Columns of sounds: the fewest, odd numbers of rows, and a full window; full windows alone; parts of chunks, and more
# chunks than a window of attention.
LENGTHS = {"qwen2_audio": (3, 26, 27, 2 * ROWS), "qwen3_asr": (1, 100, 137, 345)}
_FULL = (2 * ROWS, 2 * ROWS)


class Heard:
    """Random texts around random sounds, each in a window of silence, for a runner and for transformers."""

    def __init__(self, name: str, spec, seed: int) -> None:
        self.name, rng, tower = name, np.random.default_rng(seed), spec.tower
        self.lengths = LENGTHS.get(name, _FULL)
        size = -(-max(self.lengths) // 100) * 100 if tower.stem_channels else 2 * ROWS
        shape = (len(self.lengths), size, tower.num_channels)
        self.windows = rng.standard_normal(shape).astype(np.float32)
        ids, placed, columns = rng.integers(0, _NUM_TEXT, 5).tolist(), [], []
        for window, length in zip(self.windows, self.lengths, strict=True):
            if tower.stem_channels:
                window[length:] = 0
                columns.append(window[:length])
            else:
                columns.append(window[: 2 * ((length + 1) // 2) + 1])
            placed.append(PlacedGrid(len(ids), (1, len(columns[-1]), 1)))
            ids += [ANCHOR] * tower.num_tokens([placed[-1].grid])
            ids += rng.integers(0, _NUM_TEXT, 3).tolist()
        inputs = TowerInputs(np.concatenate(columns), [one.grid for one in placed])
        self.prompt = PicturePrompt(ids, tuple(placed), inputs)

    def logits(self, model, token_ids) -> np.ndarray:
        """transformers' logits of all tokens."""
        inputs = {"input_features": torch.tensor(self.windows.transpose(0, 2, 1))}
        is_heard = np.arange(self.windows.shape[1]) < np.array(self.lengths)[:, None]
        masks = {"qwen2_audio": "feature_attention_mask", "qwen3_asr": "input_features_mask"}
        if self.name in masks:
            inputs[masks[self.name]] = torch.tensor(is_heard.astype(np.int64))
        ids = torch.tensor([token_ids])
        with torch.no_grad():
            output = model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs)
        return output.logits[0].numpy()


def load(checkpoints, name, compute, **flags):
    return load_runner(
        open_model(checkpoints(name)[1], **flags), max_model_len=512, compute=compute
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", _BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_agree_with_transformers(name, compute, checkpoints):
    """Every logit is within 1e-3 and every greedy token is the same, after several sounds with text around them."""
    runner = load(checkpoints, name, compute)
    heard = Heard(name, runner.spec, 3)
    sequence = PictureSequence(runner, heard.prompt)
    logits = [sequence.run(())]
    for _ in range(6):
        logits.append(sequence.follow(int(logits[-1][-1, :_NUM_TEXT].argmax()))[None])

    expected = heard.logits(checkpoints(name)[0], sequence.token_ids)
    assert np.abs(np.concatenate(logits) - expected).max() <= 1e-3
    assert expected.std() > 0.5  # flat logits would agree about nothing
    length = len(heard.prompt.token_ids)
    greedy = expected[length - 1 : -1, :_NUM_TEXT].argmax(axis=1)
    assert greedy.tolist() == sequence.token_ids[length:]


@pytest.mark.parametrize("compute", _BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_no_bit_of_a_sound_depends_on_others_or_on_chunks(name, compute, checkpoints):
    """Rows of a sound have the same bits alone and among others, and so have logits of a prompt in chunks."""
    runner = load(checkpoints, name, compute)
    prompt = Heard(name, runner.spec, 4).prompt
    rows, begin, column = runner.encode(prompt.inputs), 0, 0
    for grid in prompt.inputs.grids:
        patches = prompt.inputs.patches[column : column + grid[1]]
        alone = runner.encode(TowerInputs(patches, [grid]))
        assert alone.tobytes() == rows[begin : begin + len(alone)].tobytes()
        begin, column = begin + len(alone), column + grid[1]
    assert begin == len(rows)
    whole = PictureSequence(runner, prompt, rows).run(())
    cut = PictureSequence(runner, prompt, rows).run((2, 9, 17), block_size=8, first_block=3)
    assert whole.tobytes() == cut.tobytes()


@pytest.mark.parametrize("compute", _BACKENDS)
@pytest.mark.parametrize(
    ("name", "columns", "allowed"),
    [("qwen2_audio", 3, "4 to 80"), ("qwen2_audio", 81, "4 to 80"), ("voxtral", 78, "80")],
)
def test_spectrograms_of_other_lengths_are_refused(name, columns, allowed, compute, checkpoints):
    """Too few columns make no token, and more than a window have no positions."""
    runner = load(checkpoints, name, compute)
    inputs = TowerInputs(np.zeros((columns, MELS), np.float32), [(1, columns, 1)])
    with pytest.raises(ValueError, match=f"grids must have {allowed} columns; one is"):
        runner.encode(inputs)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("voxtral", {"intermediate_size": 50}, "intermediate_size .* hidden_size .24. times"),
        ("qwen2_audio", {"encoder_attention_heads": 5}, "encoder_attention_heads .* a divisor"),
        ("qwen2_audio", {"activation_function": "mish"}, "activation_function"),
        ("qwen3_asr", {"n_window": 40}, "n_window .* 50"),
        ("qwen3_asr", {"n_window_infer": 250}, "n_window_infer .* a multiple of 100"),
        ("qwen3_asr", {"output_dim": 40}, "output_dim .* hidden_size of the text model .48."),
    ],
)
def test_encoders_that_contradict_themselves_are_refused(
    name, changes, says, checkpoints, tmp_path
):
    """Numbers that do not fit each other are an error that names the key."""
    model, _ = checkpoints(name)
    save(model, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["audio_config"] |= changes
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=says):
        open_model(str(tmp_path))
