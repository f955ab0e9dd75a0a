"""What became of a step's rows, as values: one for each entry of the plan, in its order."""

from typing import TypeAlias

import msgspec

from weft.compute.pooler import Collected
from weft.compute.runner import FloatArray
from weft.core.types import LogprobRow


class SampledRow(msgspec.Struct, frozen=True, eq=False):
    """`token_id` is None when the entry did not reach its sequence's end.

    `prompt_logprobs` has one row for each scored row of the entry.
    """

    token_id: int | None = None
    logprobs: LogprobRow | None = None
    prompt_logprobs: list[LogprobRow] = []


class PooledRow(msgspec.Struct, frozen=True, eq=False):
    """What was `collected` of a prompt so far and, at its end, what it `pooled` to."""

    collected: Collected
    pooled: FloatArray | None = None


class FailedRow(msgspec.Struct, frozen=True, eq=False):
    """`error` ends the sequence; `is_corrupt` says that it is for values that are not numbers."""

    error: str
    is_corrupt: bool = False


Result: TypeAlias = SampledRow | PooledRow | FailedRow
