"""What sampling made of a step, as a value: one row for each entry of the plan."""

from dataclasses import dataclass

import msgspec

from weft.compute.pooler import Collected
from weft.compute.runner import FloatArray
from weft.engine.messages import LogprobRow


class SampledRow(msgspec.Struct, frozen=True, eq=False):
    """The news of one entry. `token_id` is None when the entry did not reach its sequence's end.

    `prompt_logprobs` has one row for each scored row of the entry. `error` ends the sequence;
    `is_corrupt` says that it is for logits that are not numbers. Of a pooling request there is what
    was `collected` so far and, at its end, what it `pooled` to.
    """

    token_id: int | None = None
    logprobs: LogprobRow | None = None
    prompt_logprobs: list[LogprobRow] = []
    error: str | None = None
    is_corrupt: bool = False
    collected: Collected | None = None
    pooled: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """All rows of a step, in the plan's order."""

    rows: tuple[SampledRow, ...]
