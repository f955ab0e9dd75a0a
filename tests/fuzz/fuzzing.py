"""One parser under damaged input: what it raises that it may not, and what it takes too long for."""

import random
import time
import traceback
from dataclasses import dataclass

from tests.fuzz.damage import damaged
from tests.fuzz.parsers import Parser

# Of processor time: no parser comes near it for input of a few kilobytes, on however slow a machine.
_MAX_PARSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """An input and what went wrong with it."""

    data: bytes
    reason: str


def fuzz(parser: Parser, seed: int, num_inputs: int) -> Failure | None:
    """The first failure among so many inputs; the same for the same seed."""
    draw = random.Random(seed)
    for seed_data in parser.seeds if seed == 0 else ():
        if (failure := attempt(parser, seed_data)) is not None:
            return failure
    for _ in range(num_inputs):
        if (failure := attempt(parser, damaged(draw, parser.seeds))) is not None:
            return failure
    return None


def attempt(parser: Parser, data: bytes) -> Failure | None:
    """How this input fails, if it does."""
    began_s = time.thread_time()
    try:
        parser.read(data)
    except parser.refusals:
        pass
    except Exception:  # noqa: BLE001 - whatever else it is, is what is looked for
        return Failure(data, traceback.format_exc())
    took_s = time.thread_time() - began_s
    return Failure(data, f"took {took_s:.1f} s") if took_s > _MAX_PARSE_S else None
