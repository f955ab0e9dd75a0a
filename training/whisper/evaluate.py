"""Shares of right answers on recordings that training never heard: `python -m training.whisper.evaluate`."""

import argparse
import random
from collections import Counter

import torch
from transformers import WhisperForConditionalGeneration

from training.whisper.tones import Said, say_anything, text_of
from training.whisper.train import (
    END,
    MOST_WORDS,
    NUM_COLUMNS,
    NUM_MELS,
    START,
    TARGET,
    TASKS,
    Tokens,
    make_tokens,
)
from weft.media.sounds.log_mel import log_mel

_SEED = 1_000_003  # training has others
_MOST_TOKENS = 16


def answer(
    model: WhisperForConditionalGeneration, tokens: Tokens, said: Said, task: str
) -> tuple[str, list[int]]:
    """Returns the language that the model finds, and the tokens of its answer for the task."""
    columns = torch.from_numpy(log_mel(said.samples, NUM_MELS, NUM_COLUMNS).T[None])
    names = {number: name for name, number in tokens.special.items()}
    ids = [tokens.special[START]]
    with torch.no_grad():
        for place in range(_MOST_TOKENS):
            logits = model(input_features=columns, decoder_input_ids=torch.tensor([ids])).logits
            ids.append(int(logits[0, -1].argmax()))
            if place == 0:
                ids.append(tokens.special[task])
            if ids[-1] == tokens.special[END]:
                break
    return names.get(ids[1], "").strip("<|>"), ids[3:]


def main() -> None:
    """Prints a line for each task."""
    parser = argparse.ArgumentParser(description="Evaluate embedded:tiny-whisper.")
    parser.add_argument("--count", type=int, default=100)
    count = parser.parse_args().count
    torch.set_num_threads(1)
    model = WhisperForConditionalGeneration.from_pretrained(TARGET, dtype=torch.float32)
    tokens, right = make_tokens(), Counter[str]()
    for number in range(count):
        said = say_anything(random.Random(_SEED + number), MOST_WORDS)
        for task in TASKS:
            language, ids = answer(model, tokens, said, task)
            expected = text_of(said.sounds, said.language if task == "<|transcribe|>" else "en")
            words = [token for token in ids if token < tokens.special[END]]
            right[f"{task} whole"] += words == tokens.words(expected)
            right[f"{task} language"] += language == said.language
            right[f"{task} times"] += (
                tokens.time(said.begin) in ids and tokens.time(said.end) in ids
            )
    for name, number in right.items():
        print(f"{name}: {number} of {count}")


if __name__ == "__main__":
    main()
