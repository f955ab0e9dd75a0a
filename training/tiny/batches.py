"""Documents to batches: encoded piece by piece, sorted by length so that little is padding, supervised by weight."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.tiny.corpus import documents
from training.tiny.document import Document

POOL = 3072  # documents encoded and sorted together
# Names and tool arguments can only be learnt once looking back and copying is, so the run begins with much of that.
COPYING_POOLS = 6
MAX_TOKENS = 640  # of one document


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of about equal length; `rows` and `columns` say which positions predict `targets`."""

    ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor


Sample = tuple[list[int], list[int]]  # token ids, supervised positions


def encode(rng: random.Random, tokenizer: Tokenizer, pool: list[Document]) -> list[Sample]:
    """Token ids of each document, and the positions that are supervised; a piece's weight is the chance of each."""
    texts = [piece.text for document in pool for piece in document.pieces]
    encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    samples: list[Sample] = []
    for document in pool:
        ids: list[int] = []
        supervised: list[int] = []
        for piece in document.pieces:
            new = next(encoded).ids
            supervised += [
                len(ids) + offset
                for offset in range(piece.skip, len(new))
                if piece.weight >= 1.0 or (piece.weight and rng.random() < piece.weight)
            ]
            ids += new
        supervised = [position for position in supervised if position > 0]
        if len(ids) <= MAX_TOKENS and supervised:
            samples.append((ids, supervised))
    return samples


def to_batch(samples: list[Sample]) -> Batch:
    """Pad on the right; attention is causal, so padding needs no mask."""
    length = max(len(ids) for ids, _ in samples)
    ids = torch.zeros(len(samples), length, dtype=torch.long)
    rows, columns, targets = [], [], []
    for row, (tokens, supervised) in enumerate(samples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        rows += [row] * len(supervised)
        columns += [position - 1 for position in supervised]
        targets += [tokens[position] for position in supervised]
    return Batch(ids, torch.tensor(rows), torch.tensor(columns), torch.tensor(targets))


def batches(
    tokenizer: Tokenizer, *, seed: int, first_pool: int, tokens: int
) -> Iterator[tuple[int, Batch]]:
    """Endless batches of about `tokens` tokens with the number of their pool, the same for the same seed."""
    for number in itertools.count(first_pool):
        rng = random.Random(f"{seed}:{number}")
        echoes = 0.4 if number < COPYING_POOLS else 0.0
        pool = list(itertools.islice(documents(rng.getrandbits(48), echoes=echoes), POOL))
        samples = sorted(encode(rng, tokenizer, pool), key=lambda sample: len(sample[0]))
        groups: list[list[Sample]] = [[]]
        for sample in samples:
            if groups[-1] and (len(groups[-1]) + 1) * len(sample[0]) > tokens:
                groups.append([])
            groups[-1].append(sample)
        rng.shuffle(groups)
        for group in groups:
            yield number, to_batch(group)
