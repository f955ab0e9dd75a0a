"""Batches: pictures as the processor of the model makes them, and the tokens of questions as its template writes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from training.tiny.document import IM_END, IM_START
from training.tiny.network import causal_mask
from training.vision.drawings import Drawing, draw
from training.vision.questions import Exchange, ask, ask_nothing, ask_of_two
from training.vision.tower import NUM_ROWS, SIDE

IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
ITEM = AROUND + WHOLE + IMAGE * NUM_ROWS + AROUND
SYSTEM = "You are a helpful assistant."
NUM_QUESTIONS = 3  # of a row


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one layout; `rows` and `columns` say which tokens predict `targets`."""

    ids: Tensor  # [rows, length]
    pictures: Tensor | None  # [rows * pictures of a row, 3, side, side]
    places: Tensor  # tokens of a row that stand for pictures
    positions: Tensor  # [length]
    mask: Tensor  # [length, length]
    rows: Tensor
    columns: Tensor
    targets: Tensor


class Encoder:
    """Text to token ids; each distinct text is encoded once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found


def batches(encode: Encoder, *, seed: int, size: int) -> Iterator[Batch]:
    """Endless batches, the same for the same seed. In most of them the questions of a row do not see each other."""
    rng = random.Random(seed)
    while True:
        kind = rng.choices(("apart", "dialogue", "two", "nothing"), (9, 3, 4, 1))[0]
        opening = _opening(rng)
        if kind == "nothing":
            yield _text_batch(rng, encode, opening, size)
            continue
        num_pictures = 2 if kind == "two" else 1
        num_rows = size if kind == "apart" else size // 2
        drawings = [[draw(rng) for _ in range(num_pictures)] for _ in range(num_rows)]
        prefix = encode(opening + ITEM * num_pictures)
        if kind == "dialogue":
            rows = [[ask(rng, d) for _ in range(NUM_QUESTIONS)] for (d,) in drawings]
            yield _dialogue(encode, prefix, rows, drawings)
        elif kind == "apart":
            rows = [[ask(rng, d) for _ in range(NUM_QUESTIONS)] for (d,) in drawings]
            yield _apart(encode, prefix, rows, drawings)
        else:
            rows = [[ask_of_two(rng, a, b) for _ in range(NUM_QUESTIONS)] for a, b in drawings]
            yield _apart(encode, prefix, rows, drawings)


def to_pixels(picture: Image.Image) -> np.ndarray:
    """Returns the picture as the model's processor makes it: float32 [3, side, side] from -1 to 1."""
    if picture.size != (SIDE, SIDE):
        picture = picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    pixels = np.asarray(picture, np.float32).transpose(2, 0, 1)
    return pixels / np.float32(127.5) - 1


def _opening(rng: random.Random) -> str:
    system = f"{IM_START}system\n{SYSTEM}{IM_END}\n" if rng.random() < 0.1 else ""
    return f"{system}{IM_START}user\n"


def _turn(encode: Encoder, exchange: Exchange) -> tuple[list[int], int]:
    """Returns the tokens of a question and its answer, and how many precede the answer."""
    question, answer = exchange
    before = encode(f"{question}{IM_END}\n{IM_START}assistant\n")
    return before + encode(f"{answer}{IM_END}"), len(before)


def _apart(
    encode: Encoder, prefix: list[int], rows: list[list[Exchange]], drawings: list[list[Drawing]]
) -> Batch:
    """Each question of a row sees the pictures and itself, and has the positions of a first question."""
    turns = [[_turn(encode, exchange) for exchange in row] for row in rows]
    slot = max(len(ids) for row in turns for ids, _ in row)
    num_slots, start = len(rows[0]), len(prefix)
    length = start + num_slots * slot
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    ids[:, :start] = torch.tensor(prefix)
    asked = []
    for number, row in enumerate(turns):
        for place, (tokens, num_before) in enumerate(row):
            begin = start + place * slot
            ids[number, begin : begin + len(tokens)] = torch.tensor(tokens)
            asked += [(number, begin + at - 1, tokens[at]) for at in range(num_before, len(tokens))]
    mask = causal_mask(length)
    for place in range(1, num_slots):
        begin = start + place * slot
        mask[begin : begin + slot, start:begin] = float("-inf")
    positions = torch.cat([torch.arange(start), *[torch.arange(start, start + slot)] * num_slots])
    return _batch(encode, ids, drawings, positions, mask, asked)


def _dialogue(
    encode: Encoder, prefix: list[int], rows: list[list[Exchange]], drawings: list[list[Drawing]]
) -> Batch:
    """The questions of a row follow each other in one conversation."""
    between = encode(f"\n{IM_START}user\n")
    lines, asked = [], []
    for number, row in enumerate(rows):
        line = list(prefix)
        for place, exchange in enumerate(row):
            line += between if place else []
            tokens, num_before = _turn(encode, exchange)
            asked += [
                (number, len(line) + at - 1, tokens[at]) for at in range(num_before, len(tokens))
            ]
            line += tokens
        lines.append(line)
    length = max(map(len, lines))
    ids = torch.tensor([line + [0] * (length - len(line)) for line in lines])
    return _batch(encode, ids, drawings, torch.arange(length), causal_mask(length), asked)


def _text_batch(rng: random.Random, encode: Encoder, opening: str, size: int) -> Batch:
    rows = [[ask_nothing(rng)] for _ in range(size)]
    return _dialogue(encode, encode(opening), rows, [])


def _batch(
    encode: Encoder,
    ids: Tensor,
    drawings: list[list[Drawing]],
    positions: Tensor,
    mask: Tensor,
    asked: list[tuple[int, int, int]],
) -> Batch:
    pictures = None
    if drawings:
        pixels = [to_pixels(drawing.picture) for row in drawings for drawing in row]
        pictures = torch.from_numpy(np.stack(pixels))
    places = (ids[0] == encode(IMAGE)[0]).nonzero().flatten()
    rows, columns, targets = torch.tensor(asked).T
    return Batch(ids, pictures, places, positions, mask, rows, columns, targets)
