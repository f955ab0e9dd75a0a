"""Steps for a runner, made by hand: sequences, where their blocks lie, and how far each gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from weft.compute.protocols.runner import Batch, FloatArray, Runner


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens [start, end) of a sequence run in one step; all of its rows give logits."""

    token_ids: list[int]
    num_prompt_tokens: int
    blocks: list[int]
    start: int
    end: int
    states: tuple[int, int] = (0, 0)  # slots that it reads and writes, where the model keeps states


def step(parts: list[Part], block_size: int, logit_rows: list[int] | None = None) -> Batch:
    """The parts as one packed step; None wants the logits of every row."""
    positions = np.concatenate([np.arange(part.start, part.end) for part in parts])
    tables = np.zeros((len(parts), max(len(part.blocks) for part in parts)), np.int32)
    slots = []
    for row, part in enumerate(parts):
        tables[row, : len(part.blocks)] = part.blocks
        slots.extend(
            part.blocks[p // block_size] * block_size + p % block_size
            for p in range(part.start, part.end)
        )
    starts = np.cumsum([0, *(part.end - part.start for part in parts)])
    return Batch(
        token_ids=_ints([t for part in parts for t in part.token_ids[part.start : part.end]]),
        positions=_ints(positions),
        slots=_ints(slots),
        query_starts=_ints(starts),
        prompt_lens=_ints([part.num_prompt_tokens for part in parts]),
        block_tables=tables,
        logit_rows=_ints(range(len(positions)) if logit_rows is None else logit_rows),
        state_reads=_ints(part.states[0] for part in parts),
        state_writes=_ints(part.states[1] for part in parts),
    )


def _ints(values):
    return np.array(list(values), np.int32)


def run_at_random(
    runner: Runner, sequences: list[list[int]], rng: np.random.Generator, max_chunk: int
) -> list[FloatArray]:
    """Logits of every position of every sequence, computed in random mixes, chunks and places.

    A block size, a scattered placement and the order within each step are drawn from `rng` too.
    """
    block_size = int(rng.choice([1, 3, 8, 16, 50]))
    tables = scattered_blocks([len(s) for s in sequences], block_size, rng)
    num_blocks, num_slots = sum(map(len, tables)) + 1, 2 * len(sequences)
    runner.allocate_kv(num_blocks=num_blocks, block_size=block_size, num_state_slots=num_slots)
    slots = [2 * i for i in range(len(sequences))]
    results = [np.zeros((len(s), runner.vocab_size), np.float32) for s in sequences]
    done = [0] * len(sequences)
    while open_ones := [i for i, s in enumerate(sequences) if done[i] < len(s)]:
        chosen = rng.permutation(open_ones)[: rng.integers(1, len(open_ones) + 1)]
        parts = []
        for i in chosen:
            size = 1 if rng.random() < 0.4 else int(rng.integers(1, max_chunk + 1))
            end = min(len(sequences[i]), done[i] + size)
            goes_on = 2 * int(i) + int(rng.integers(2))  # in the slot where it is, or in another
            states = slots[i], goes_on
            slots[i] = goes_on
            parts.append(Part(sequences[i], len(sequences[i]), tables[i], done[i], end, states))
        logits = runner.forward(step(parts, block_size))
        row = 0
        for i, part in zip(chosen, parts, strict=True):
            results[i][part.start : part.end] = logits[row : row + part.end - part.start]
            row += part.end - part.start
            done[i] = part.end
    return results


def run_in_steps(
    runner: Runner,
    sequences: list[list[int]],
    ends: Sequence[Sequence[int]],
    rng: np.random.Generator,
) -> list[FloatArray]:
    """As `run_at_random`, in steps that are given: `ends` says for each how far it takes every sequence."""
    tables = scattered_blocks([len(s) for s in sequences], 8, rng)
    runner.allocate_kv(num_blocks=sum(map(len, tables)) + 1, block_size=8, num_state_slots=2)
    results: list[list[FloatArray]] = [[] for _ in sequences]
    for before, after in pairwise(([0] * len(sequences), *ends)):
        chosen = [i for i in range(len(sequences)) if after[i] > before[i]]
        parts = [
            Part(sequences[i], len(sequences[i]), tables[i], before[i], after[i], (i, i))
            for i in chosen
        ]
        counts = [part.end - part.start for part in parts]
        rows = np.split(runner.forward(step(parts, 8)), np.cumsum(counts)[:-1])
        for i, some in zip(chosen, rows, strict=True):
            results[i].append(some)
    return [np.concatenate(some) for some in results]


def scattered_blocks(
    lengths: list[int], block_size: int, rng: np.random.Generator
) -> list[list[int]]:
    """A block table for each sequence; together they use random blocks of the pool, never block 0."""
    counts = [-(-length // block_size) for length in lengths]
    blocks = (rng.permutation(sum(counts)) + 1).tolist()
    return [[blocks.pop() for _ in range(count)] for count in counts]


def alone(runner: Runner, token_ids: list[int]) -> np.ndarray:
    """Logits of every position, one row a step, in blocks of 16 that lie in order."""
    blocks = list(range(-(-len(token_ids) // 16)))
    runner.allocate_kv(num_blocks=len(blocks), block_size=16, num_state_slots=1)
    rows = [
        runner.forward(step([Part(token_ids, len(token_ids), blocks, p, p + 1)], 16))
        for p in range(len(token_ids))
    ]
    return np.concatenate(rows)


def check_two_schedules(runner: Runner, seed: int, lengths: list[int], max_chunk: int) -> None:
    """Two independent random schedules of the same sequences give the same bits."""
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, 301, length).tolist() for length in lengths]
    first, second = (run_at_random(runner, sequences, rng, max_chunk) for _ in range(2))
    assert [a.tobytes() for a in first] == [b.tobytes() for b in second]


def check_any_schedule(
    runner: Runner, seed: int, lengths: Sequence[int], max_chunks: Sequence[int]
) -> None:
    """Random schedules of sequences, of chunks so large each, give the bits of one token at a time."""
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, 300, length).tolist() for length in lengths]
    expected = [alone(runner, ids).tobytes() for ids in sequences]
    for max_chunk in max_chunks:
        got = run_at_random(runner, sequences, rng, max_chunk)
        assert [logits.tobytes() for logits in got] == expected


def check_slots_of_others(
    runner: Runner,
    block_size: int,
    fill: Callable[[], object],
    cuts: Sequence[int] = (50, 51, 52),
    length: int = 101,
) -> None:
    """What `fill` leaves in slots of nobody, and of later positions, reaches no row."""
    ids = np.random.default_rng(1).integers(0, 300, length).tolist()
    expected = alone(runner, ids)
    runner.allocate_kv(num_blocks=60, block_size=block_size, num_state_slots=1)
    blocks = scattered_blocks([length, 200], block_size, np.random.default_rng(2))[0]
    fill()
    got = [
        runner.forward(step([Part(ids, length, blocks, start, end)], block_size))
        for start, end in pairwise((0, *cuts, length))
    ]
    assert np.concatenate(got).tobytes() == expected.tobytes()


def check_overflow(runner: Runner) -> None:
    """Token 0 gives NaN; the others of the step keep their bits."""
    ids = np.random.default_rng(1).integers(1, 300, 30).tolist()
    expected = alone(runner, ids)
    runner.allocate_kv(num_blocks=20, block_size=4, num_state_slots=2)
    parts = [
        Part([0] * 20, 20, [9, 8, 7, 6, 5], 0, 20),
        Part(ids, 30, list(range(10, 18)), 0, 30, (1, 1)),
    ]
    got = runner.forward(step(parts, 4))
    assert np.isnan(got[:20]).all()
    assert got[20:].tobytes() == expected.tobytes()


def check_wanted_rows(runner: Runner) -> None:
    """`logit_rows` picks rows; none at all is a valid step of unfinished prompts."""
    ids = list(range(40))
    runner.allocate_kv(num_blocks=5, block_size=8)
    parts = [Part(ids, 40, [0, 1, 2, 3, 4], 0, 40)]
    every = runner.forward(step(parts, 8))
    assert runner.forward(step(parts, 8, [3, 39])).tobytes() == every[[3, 39]].tobytes()
    assert runner.forward(step(parts, 8, [])).shape == (0, 300)
