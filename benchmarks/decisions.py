"""Questions behind one prefix, beside the steps that they need at least: `python -m benchmarks.decisions`.

A `weft serve` answers many questions about one input over HTTP. In turns with it, a runner of the same model in this
process computes the same rows and nothing else: the prefix, then the own tokens of all questions in full steps, with
logits for the last token of each. There is no scheduler, no sampling, no tokenizer and no server in that bound.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import numpy as np
import psutil

from benchmarks.peers.checkpoints import SHAPE_BY_NAME, write_checkpoint
from benchmarks.peers.environments import ROOT
from benchmarks.serve import Server, server
from benchmarks.steps.timing import BLOCK_SIZE, fill_pool
from weft.compute.backends import BACKENDS, choose
from weft.compute.protocols.runner import Batch, IntArray, Runner
from weft.core.config.engine_options import EngineOptions
from weft.model.files.checkpoint import Checkpoint
from weft.model.open import open_model
from weft.text.tokenizer import Tokenizer

STEP = 512  # rows of a step, as the server has them
MAX_LEN, NUM_BLOCKS = 4096, 4096
# What the checkpoints' template writes around the input of a question.
BEFORE, BETWEEN = "<|im_start|>user\n", "\n\n"


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one kind. `body` makes one by a dice; `of_body` holds its questions, `of_answer` the answers."""

    name: str
    path: str
    num_shared: int
    body: Callable[[random.Random], dict[str, Any]]
    of_body: str
    of_answer: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: seconds that passed, and seconds of processors, of the server and of the bound."""

    served: tuple[float, float]
    bound: tuple[float, float]


def main() -> None:
    """Print a row for each load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="smollm2-135m", choices=SHAPE_BY_NAME)
    parser.add_argument("--layers", type=int, help="in place of the shape's")
    parser.add_argument(
        "--shared", type=int, nargs="+", default=[2000, 2008], help="tokens of the prefix"
    )
    parser.add_argument("--loads", nargs="+", default=[*LOADS], choices=LOADS)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    shape = SHAPE_BY_NAME[options.shape]
    if options.layers is not None:
        shape = replace(shape, name=f"{shape.name}-{options.layers}", layers=options.layers)
    model = str(write_checkpoint(shape, ROOT / shape.name))
    opened = open_model(model)
    assert isinstance(opened, Checkpoint)
    tokenizer = Tokenizer.from_files(dict(opened.tokenizer_files))
    compute = choose(EngineOptions(model=model, num_threads=options.threads), opened.card)
    runner = BACKENDS[compute.compute].load(opened, compute, max_model_len=MAX_LEN)
    fill_pool(runner, NUM_BLOCKS)
    print(
        f"{options.questions} questions, {options.rounds} turns, {options.threads} thread(s), "
        f"{shape.name}\n"
    )
    print(
        "| load | shared tokens | own tokens | server s | bound s | ratio: median (least, most) "
        "| of CPU | as one by one |"
    )
    print(
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        flush=True,
    )
    flag = f"--num-threads={options.threads}"
    with server(model, flag, max_model_len=MAX_LEN, num_blocks=NUM_BLOCKS) as served:
        for num_shared in options.shared:
            for name in options.loads:
                load = LOADS[name](tokenizer, num_shared, options.questions)
                lengths, is_same = ask_alone(served, load)
                turns = measure(served, runner, load, lengths, options.rounds)
                print(row(load, turns, lengths, is_same=is_same), flush=True)


# -- loads --------------------------------------------------------------------------------------


def one_token(tokenizer: Tokenizer, num_shared: int, count: int) -> Load:
    """/generative_scoring with items of one token: one row a question."""

    def body(dice: random.Random) -> dict[str, Any]:
        return {
            "query": [dice.randrange(256) for _ in range(num_shared)],
            "items": [[1000 + number] for number in range(count)],
            "label_token_ids": [65, 66],
        }

    return Load(
        "scoring, items of 1 token", "/generative_scoring", num_shared, body, "items", "data"
    )


def choices(tokenizer: Tokenizer, num_shared: int, count: int) -> Load:
    """/v1/decisions with short questions of two options."""
    options = [{"value": "a"}, {"value": "b"}]
    questions = [
        {"type": "choice", "instructions": f"{number}?", "choices": options}
        for number in range(count)
    ]

    def body(dice: random.Random) -> dict[str, Any]:
        return {"input": _input(tokenizer, dice, num_shared), "questions": questions}

    return Load("decisions", "/v1/decisions", num_shared, body, "questions", "answers")


def _input(tokenizer: Tokenizer, dice: random.Random, num_shared: int) -> str:
    """A text that is, with the template's words around it, so many tokens."""

    def count(text: str) -> int:
        return len(tokenizer.encode(f"{BEFORE}{text}{BETWEEN}", add_special_tokens=False))

    text = ""
    while (num_tokens := count(text)) != num_shared:
        if num_tokens > num_shared:
            text = text[: -(num_tokens - num_shared)]
        else:
            missing = num_shared - num_tokens
            text += "".join(dice.choices("abcdefghijklmnopqrstuvwxyz ", k=max(1, missing // 2)))
    return text


LOADS = {"one-token": one_token, "choices": choices}


# -- measurements -------------------------------------------------------------------------------


def ask_alone(served: Server, load: Load) -> tuple[list[int], bool]:
    """Own tokens of each question; and true if each has the same numbers alone and among all, bit for bit."""
    body = load.body(random.Random(2))
    together = ask(served, load.path, body)[load.of_answer]
    lengths, is_same = [], True
    for question, expected in zip(body[load.of_body], together, strict=True):
        answer = ask(served, load.path, {**body, load.of_body: [question]})
        usage, (alone,) = answer["usage"], answer[load.of_answer]
        lengths.append(usage.get("input_tokens", usage.get("prompt_tokens")) - load.num_shared)
        is_same = is_same and alone == {**expected, **({"index": 0} if "index" in alone else {})}
    return lengths, is_same


def measure(
    served: Server, runner: Runner, load: Load, lengths: Sequence[int], num_rounds: int
) -> list[Turn]:
    """The server and the bound in turns, each time with another input; the first turn does not count."""
    dice = random.Random(1)
    turns = []
    for _ in range(num_rounds + 1):
        body = load.body(dice)
        cpu_before, began = _cpu_s(served), time.perf_counter()
        ask(served, load.path, body)
        taken = time.perf_counter() - began, _cpu_s(served) - cpu_before
        cpu_before, began = time.process_time(), time.perf_counter()
        compute_rows(runner, load.num_shared, lengths)
        bound = time.perf_counter() - began, time.process_time() - cpu_before
        turns.append(Turn(taken, bound))
    return turns[1:]


def ask(served: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of the server."""
    answer = httpx2.post(f"http://127.0.0.1:{served.http_port}{path}", json=body, timeout=600)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def _cpu_s(served: Server) -> float:
    """Processor seconds of the server and its engine so far."""
    front = psutil.Process(served.pid)
    times = [one.cpu_times() for one in (front, *front.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def compute_rows(runner: Runner, num_shared: int, lengths: Sequence[int]) -> None:
    """All rows of a load, in steps that are as full as they can be."""
    for start in range(0, num_shared, STEP):
        runner.forward(_batch([Rows(0, start, min(STEP, num_shared - start))], num_shared, 1))
    most = max(lengths)
    waiting: list[Rows] = []
    for number, length in enumerate(lengths):
        if sum(rows.count for rows in waiting) + length > STEP:
            runner.forward(_batch(waiting, num_shared, most))
            waiting = []
        waiting.append(Rows(number, num_shared, length))
    runner.forward(_batch(waiting, num_shared, most))


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows of a sequence, from the position `start` on."""

    number: int
    start: int
    count: int

    def table(self, num_shared: int, most: int) -> IntArray:
        """Its blocks: the full ones of the prefix, which all sequences share, then its own.

        A last block of the prefix that is not full is the sequence's own; what is shared of it is not computed again.
        """
        num_full, num_own = num_shared // BLOCK_SIZE, -(-most // BLOCK_SIZE) + 1
        first = num_full + self.number * num_own
        return np.array([*range(num_full), *range(first, first + num_own)], np.int32)


def _batch(several: Sequence[Rows], num_shared: int, most: int) -> Batch:
    tables = [rows.table(num_shared, most) for rows in several]
    places = [np.arange(rows.start, rows.start + rows.count, dtype=np.int32) for rows in several]
    slots = [
        table[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE
        for table, place in zip(tables, places, strict=True)
    ]
    starts = np.cumsum([0, *(rows.count for rows in several)]).astype(np.int32)
    return Batch(
        token_ids=np.random.default_rng(0).integers(0, 256, starts[-1], dtype=np.int32),
        positions=np.concatenate(places),
        slots=np.concatenate(slots),
        query_starts=starts,
        prompt_lens=np.array([rows.start + rows.count for rows in several], np.int32),
        block_tables=np.stack(tables),
        logit_rows=starts[1:] - np.int32(1),
    )


def row(load: Load, turns: Sequence[Turn], lengths: Sequence[int], *, is_same: bool) -> str:
    """A row of the table."""
    ratios = [turn.served[0] / turn.bound[0] for turn in turns]
    of_cpu = statistics.median(turn.served[1] / turn.bound[1] for turn in turns)
    served, bound = (
        statistics.median(getattr(turn, name)[0] for turn in turns) for name in ("served", "bound")
    )
    return (
        f"| {load.name} | {load.num_shared:,} | {sum(lengths):,} | {served:.2f} | {bound:.2f} "
        f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f}) | {of_cpu:.2f} "
        f"| {'yes' if is_same else 'no'} |"
    )


if __name__ == "__main__":
    main()
