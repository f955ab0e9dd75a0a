"""Whisper computes what Hugging Face transformers computes, and no bit depends on the rest of a step."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import WhisperForConditionalGeneration

from tests.compute.runners import load_on, load_runner
from tests.compute.steps import Part, step
from tests.doubles.whisper import write_whisper
from weft.compute.native import usable_paths
from weft.core.errors import ConfigError
from weft.model.open import open_model

COLUMNS, MELS = 200, 16
CASES = {
    "two layers each": {"init_std": 0.2},
    "heads of eight, more layers in the decoder": {
        "d_model": 40,
        "init_std": 0.25,
        "encoder_attention_heads": 5,
        "decoder_attention_heads": 5,
        "encoder_layers": 1,
        "decoder_layers": 3,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 104,
    },
    "other heads and activation, rows that fill no tile": {
        "encoder_attention_heads": 1,
        "decoder_attention_heads": 4,
        "activation_function": "relu",
        "max_source_positions": 150,
        "init_std": 0.2,
    },
}
_BACKENDS = ("reference", "native")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Returns the directory of a case, made once for all tests."""
    return cache(lambda name: write_whisper(tmp_path_factory.mktemp("whisper"), **CASES[name]))


def sound(seed, rows):
    """Columns of a spectrogram, in the range of Whisper's."""
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1.5, (2 * rows, MELS)).astype(np.float32)


class Deck:
    """A runner, and sequences in blocks of their own, each with its sound."""

    def __init__(self, runner, memories, block_size=16):
        self.runner, self.memories, self.block_size = runner, memories, block_size
        self.num_blocks = -(-64 // block_size)
        runner.allocate_kv(num_blocks=self.num_blocks * len(memories), block_size=block_size)

    def run(self, *spans):
        """Logits of tokens `start` to `end` of sequences: (number, token ids, start, end)."""
        parts = [
            Part(ids, len(ids), self._blocks(number), start, end)
            for number, ids, start, end in spans
        ]
        batch = step(parts, self.block_size)
        batch = replace(batch, state_reads=None, state_writes=None)
        memories = [self.memories[number] for number, *_ in spans]
        return self.runner.forward(replace(batch, memories=memories))

    def _blocks(self, number):
        return [number * self.num_blocks + block for block in range(self.num_blocks)][::-1]


def load(directory, compute="native", **flags):
    return load_runner(open_model(str(directory)), max_model_len=64, compute=compute, **flags)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", _BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_logits_and_greedy_tokens_agree_with_transformers(name, compute, checkpoints):
    """Every logit is within 1e-3 of float32's, and every greedy token is the same."""
    directory = checkpoints(name)
    runner = load(directory, compute)
    columns = sound(1, runner.spec.num_cross_keys)
    deck = Deck(runner, [runner.remember(columns)])
    ids = [257, 300, 5, 70, 80]
    rows = [deck.run((0, ids, 0, len(ids)))]
    for _ in range(12):
        ids = [*ids, int(rows[-1][-1].argmax())]
        rows.append(deck.run((0, ids, len(ids) - 1, len(ids))))
    model = WhisperForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        wanted = model(
            input_features=torch.tensor(columns.T[None]), decoder_input_ids=torch.tensor([ids])
        ).logits[0].numpy()  # fmt: skip
    assert np.abs(np.concatenate(rows) - wanted).max() <= 1e-3
    assert wanted.std() > 0.5  # flat logits would agree about nothing
    assert wanted[4:-1].argmax(axis=1).tolist() == ids[5:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", [*usable_paths(), "reference"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_bit_depends_on_chunks_blocks_or_other_sequences(path, dtype, checkpoints):
    """A sequence gives the same bits alone, in chunks, and in steps with others, on every instruction path."""
    directory = checkpoints("heads of eight, more layers in the decoder")
    runner = load_on(path, open_model(str(directory), dtype=dtype))
    rng = np.random.default_rng(2)
    sequences = [rng.integers(0, 1800, length).tolist() for length in (40, 1, 23)]
    memories = [runner.remember(sound(seed, runner.spec.num_cross_keys)) for seed in range(3)]
    deck = Deck(runner, memories)
    alone = [deck.run((n, ids, 0, len(ids))) for n, ids in enumerate(sequences)]
    deck = Deck(runner, memories, block_size=3)
    first = deck.run((2, sequences[2], 0, 7), (0, sequences[0], 0, 33))
    then = deck.run((0, sequences[0], 33, 40), (1, sequences[1], 0, 1), (2, sequences[2], 7, 23))
    assert np.concatenate([first[7:], then[:7]]).tobytes() == alone[0].tobytes()
    assert then[7:8].tobytes() == alone[1].tobytes()
    assert np.concatenate([first[:7], then[8:]]).tobytes() == alone[2].tobytes()


@pytest.mark.filterwarnings("ignore")
def test_the_sound_changes_every_row(checkpoints):
    """The same tokens after another sound have other logits; after the same sound, the same bits."""
    runner = load(checkpoints("two layers each"))
    rows = runner.spec.num_cross_keys
    memories = [runner.remember(sound(seed, rows)) for seed in (1, 2, 1)]
    deck, ids = Deck(runner, memories), [257, 5, 6]
    made = np.split(deck.run(*((number, ids, 0, 3) for number in range(3))), 3)
    assert made[0].tobytes() == made[2].tobytes()
    assert (np.abs(made[0] - made[1]).max(axis=1) > 1e-2).all()


@pytest.mark.filterwarnings("ignore")
def test_bfloat16_is_near_float32(checkpoints):
    """What its type rounds, and no more."""
    directory = checkpoints("two layers each")
    ids, logits = [257, 300, 5, 70, 80], []
    for dtype in ("float32", "bfloat16"):
        runner = load_runner(open_model(str(directory), dtype=dtype), max_model_len=64)
        columns = sound(1, runner.spec.num_cross_keys)
        deck = Deck(runner, [runner.remember(columns)])
        logits.append(deck.run((0, ids, 0, len(ids))))
    assert np.abs(logits[0] - logits[1]).max() <= 0.08 * np.abs(logits[0]).max()


@pytest.mark.filterwarnings("ignore")
def test_other_spectrograms_and_batches_are_refused(checkpoints):
    """The core reads no memory beyond what it is given."""
    runner = load(checkpoints("two layers each"))
    rows = runner.spec.num_cross_keys
    with pytest.raises(ValueError, match="grids must have 200 columns; one is"):
        runner.remember(sound(1, rows + 1))
    with pytest.raises(ValueError, match=r"patches must be float32 \[patches, 16\]"):
        runner.remember(sound(1, rows)[:, 1:])
    memory = runner.remember(sound(1, rows))
    for memories in ([memory[:-1]], [memory, memory], []):
        deck = Deck(runner, [memory])
        batch = replace(step([Part([1], 1, [0], 0, 1)], 16), memories=memories)
        with pytest.raises(ValueError, match="memories must have"):
            runner.forward(batch)
        del deck


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_without_a_part_are_refused(tmp_path):
    """A decoder alone, or a tokenizer without the tokens of speech, cannot transcribe."""
    directory = write_whisper(tmp_path / "whole")
    path = directory / "model.safetensors"
    tensors = load_file(path)
    save_file({k: v for k, v in tensors.items() if ".encoder." not in k}, path, {"format": "pt"})
    with pytest.raises(
        ConfigError,
        match="can be served only for speech, and the tensors of its encoder are missing",
    ):
        open_model(str(directory))
    save_file(tensors, path, {"format": "pt"})
    file = directory / "tokenizer.json"
    file.write_text(file.read_text().replace("<|startofprev|>", "<|other|>"))
    with pytest.raises(
        ConfigError, match=r"speech needs the token <\|startofprev\|>, which is missing"
    ):
        open_model(str(directory))
