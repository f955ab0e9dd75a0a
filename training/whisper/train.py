"""Trains `embedded:tiny-whisper` from nothing: `python -m training.whisper.train`, some minutes of one core.

The same seed and --steps on the same machine and torch give the same weights.
"""

import argparse
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import WhisperConfig, WhisperForConditionalGeneration

from training.whisper.tones import LANGUAGES, RATE, WORDS, Said, say_anything, text_of
from weft.media.sounds.log_mel import log_mel
from weft.model.embedded.byte_tokenizer import tokenizer_files

TARGET = Path(__file__).resolve().parents[2] / "src/weft/model/embedded/tiny-whisper"
WINDOW_S = 3
NUM_MELS, NUM_COLUMNS = 32, 100 * WINDOW_S
MOST_WORDS = 5
END, START = "<|endoftext|>", "<|startoftranscript|>"
TASKS = ("<|translate|>", "<|transcribe|>")
OTHERS = ("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>")
_IGNORED = -100


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids of the vocabulary: bytes, pieces of words that end in whole words, special tokens, times."""

    pieces: Mapping[str, int]
    merges: tuple[tuple[str, str], ...]
    special: Mapping[str, int]

    @property
    def first_time(self) -> int:
        """The token of second 0."""
        return max(self.special.values()) + 1

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.first_time + 50 * WINDOW_S + 1

    def time(self, seconds: float) -> int:
        """The token of a time, to a tenth of a second."""
        return self.first_time + 5 * round(10 * min(seconds, WINDOW_S))

    def words(self, text: str) -> list[int]:
        """The tokens of words, each after a space."""
        return [self.pieces[f"Ġ{word}"] for word in text.split()]


def make_tokens() -> Tokens:
    """Returns a vocabulary in which each word is a token."""
    pieces: dict[str, int] = {}
    merges = []
    for word in sorted({word for names in WORDS.values() for word in names.values()}):
        known = "Ġ"
        for letter in word:
            if known + letter not in pieces:
                pieces[known + letter] = 256 + len(pieces)
                merges.append((known, letter))
            known += letter
    first = 256 + len(pieces)
    names = (END, START, *(f"<|{code}|>" for code in LANGUAGES), *TASKS, *OTHERS)
    return Tokens(pieces, tuple(merges), {name: first + i for i, name in enumerate(names)})


def make_model(tokens: Tokens) -> WhisperForConditionalGeneration:
    """Returns a network of random weights."""
    end = tokens.special[END]
    config = WhisperConfig(
        vocab_size=tokens.size, num_mel_bins=NUM_MELS, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=192, decoder_ffn_dim=192,
        max_source_positions=NUM_COLUMNS // 2, max_target_positions=64, init_std=0.05,
        decoder_start_token_id=tokens.special[START], bos_token_id=end, eos_token_id=end, pad_token_id=end,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return WhisperForConditionalGeneration(config)


@dataclass(frozen=True, slots=True)
class Heard:
    """A recording that may be heard several times, and its spectrogram, [mels, columns]."""

    said: Said
    columns: np.ndarray


def hear(rng: random.Random, count: int) -> list[Heard]:
    """Returns recordings, some of them silent."""
    heard = []
    for _ in range(count):
        said = say_anything(rng, MOST_WORDS)
        if rng.random() < 0.06:
            said = Said(said.samples[: int(0.05 * RATE)] * 0, (), said.language, 0.0, 0.0)
        heard.append(Heard(said, log_mel(said.samples, NUM_MELS, NUM_COLUMNS).T))
    return heard


def lesson(rng: random.Random, said: Said, tokens: Tokens) -> tuple[list[int], int]:
    """Returns the tokens of a transcript or translation, and how many of these are given."""
    special, ids = tokens.special, []
    if rng.random() < 0.2:
        before, language = rng.choices(list(WORDS), k=3), rng.choice(LANGUAGES)
        ids = [special["<|startofprev|>"], *tokens.words(text_of(before, language))]
    ids.append(special[START])
    given = len(ids)
    if not said.sounds:
        return [*ids, special["<|nospeech|>"]], given
    task = rng.choice(TASKS)
    target = said.language if task == "<|transcribe|>" else "en"
    ids += [special[f"<|{said.language}|>"], special[task], tokens.time(said.begin)]
    ids += [*tokens.words(text_of(said.sounds, target)), tokens.time(said.end), special[END]]
    return ids, given


def batch(rng: random.Random, heard: list[Heard], tokens: Tokens) -> tuple[torch.Tensor, ...]:
    """Returns spectrograms, tokens, and targets: the task is given, too."""
    lessons = [lesson(rng, one.said, tokens) for one in heard]
    longest = max(len(ids) for ids, _ in lessons)
    inputs = torch.full((len(heard), longest - 1), tokens.special[END])
    targets = torch.full((len(heard), longest - 1), _IGNORED)
    for row, (ids, given) in enumerate(lessons):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        targets[row, given - 1 : len(ids) - 1] = torch.tensor(ids[given:])
        if len(ids) > given + 1:
            targets[row, given] = _IGNORED  # the task
    return torch.from_numpy(np.stack([one.columns for one in heard])), inputs, targets


def train(model: WhisperForConditionalGeneration, tokens: Tokens, run: argparse.Namespace) -> None:
    """Trains the network; the rate rises and falls over --steps, or over --minutes."""
    rng = random.Random(run.seed)
    heard = hear(rng, run.recordings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01)
    began, step, share = time.monotonic(), 0, 0.0
    while share < 1:
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, step / 100) * (1 - share)
        columns, inputs, targets = batch(rng, rng.sample(heard, run.size), tokens)
        logits = model(input_features=columns, decoder_input_ids=inputs).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 50 == 0:
            seconds = time.monotonic() - began
            print(f"step {step}, {seconds:.0f} s, loss {loss.item():.3f}", flush=True)
            write(model, tokens, run.target)
        minutes = (time.monotonic() - began) / 60
        share = step / run.steps if run.minutes is None else minutes / run.minutes


def share_unused_rows(model: WhisperForConditionalGeneration, tokens: Tokens) -> None:
    """Gives the tokens that training never shows their mean: equal rows take no room in a wheel."""
    shown = {*tokens.special.values(), *tokens.pieces.values()}
    shown |= {tokens.time(tenth / 10) for tenth in range(10 * WINDOW_S + 1)}
    unused = [number for number in range(tokens.size) if number not in shown]
    with torch.no_grad():
        rows = model.model.decoder.embed_tokens.weight
        rows[unused] = rows[unused].mean(dim=0)


def write(model: WhisperForConditionalGeneration, tokens: Tokens, target: Path) -> None:
    """Writes all files of the folder."""
    target.mkdir(parents=True, exist_ok=True)
    state = {name: values.clone() for name, values in model.state_dict().items()}
    share_unused_rows(model, tokens)
    model.to(torch.bfloat16).save_pretrained(target)
    model.float().load_state_dict(state)
    processor = {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": NUM_MELS, "sampling_rate": RATE,
        "hop_length": 160, "n_fft": 400, "chunk_length": WINDOW_S, "n_samples": WINDOW_S * RATE,
        "nb_max_frames": NUM_COLUMNS, "padding_value": 0.0, "return_attention_mask": False,
    }  # fmt: skip
    end = tokens.special[END]
    generation = {
        "eos_token_id": end,
        "pad_token_id": end,
        "bos_token_id": end,
        "is_multilingual": True,
    }
    for name, document in (
        ("preprocessor_config.json", processor),
        ("generation_config.json", generation),
        *_tokenizer(tokens).items(),
    ):
        text = json.dumps(document, ensure_ascii=False, indent=1)
        (target / name).write_text(f"{text}\n", encoding="utf-8")


def _tokenizer(tokens: Tokens) -> dict[str, object]:
    files = {name: json.loads(data) for name, data in tokenizer_files(259, END).items()}
    tokenizer, settings = files["tokenizer.json"], files["tokenizer_config.json"]
    mark = tokenizer["added_tokens"][0]
    times = {f"<|{n * 0.02:.2f}|>": tokens.first_time + n for n in range(50 * WINDOW_S + 1)}
    added = {**tokens.special, **times}
    tokenizer["added_tokens"] = [
        {**mark, "id": number, "content": text, "special": text not in times}
        for text, number in added.items()
    ]
    vocab = {text: number for text, number in tokenizer["model"]["vocab"].items() if number < 256}
    tokenizer["model"] |= {
        "vocab": vocab | dict(tokens.pieces) | added,
        "merges": [list(pair) for pair in tokens.merges],
    }
    del settings["chat_template"]
    settings |= {"tokenizer_class": "WhisperTokenizer", "bos_token": END}
    settings |= {"processor_class": "WhisperProcessor"}
    return files


def main() -> None:
    """Makes everything in the folder."""
    parser = argparse.ArgumentParser(description="Train embedded:tiny-whisper.")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--steps", type=int, default=2000, help="updates, unless --minutes is given"
    )
    parser.add_argument("--minutes", type=float, help="fit the whole schedule into this wall time")
    parser.add_argument("--size", type=int, default=16, help="recordings of a batch")
    parser.add_argument("--recordings", type=int, default=1500, help="number of recordings")
    parser.add_argument("--target", type=Path, default=TARGET)
    run = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    tokens = make_tokens()
    train(make_model(tokens), tokens, run)


if __name__ == "__main__":
    main()
