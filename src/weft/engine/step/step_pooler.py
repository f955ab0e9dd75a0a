"""`StepPooler`: computes the pooling results of the prompts that end in a step from the step's hidden states."""

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.compute.pooler import Collected, Pooler
from weft.compute.protocols.runner import FloatArray, Rows
from weft.core.observe.log import of_request
from weft.core.values.types import PoolingKind
from weft.engine.scheduling.plan import FailedRow, Part, Plan, PlannedRows, PooledRow, Result

log = logging.getLogger("weft.engine")

_NOT_NUMBERS = "the model produced hidden states that are not numbers"


@dataclass(frozen=True, slots=True)
class StepPooler:
    """Collects each prompt's hidden states on the host, and pools those of prompts that end in the step."""

    pooler: Pooler

    def finish(self, rows: Rows, plan: Plan) -> Iterator[Part]:
        """Yields the results of all prompts that end in the step, as one part."""
        yield plan, _pool(np.asarray(rows), plan, self.pooler)


def _pool(rows: FloatArray, plan: Plan, pooler: Pooler) -> list[Result]:
    counts = [entry.num_leading + entry.samples for entry in plan.entries]
    ends = list(itertools.accumulate(counts))
    assert (ends[-1] if ends else 0) == len(rows), (ends, len(rows))
    return [
        _pool_entry(rows[end - count : end], entry, pooler)
        for entry, count, end in zip(plan.entries, counts, ends, strict=True)
    ]


def _pool_entry(rows: FloatArray, entry: PlannedRows, pooler: Pooler) -> Result:
    request = entry.sequence.request
    assert request.pooling is not None
    assert request.pooling_kind is not None
    # A preempted sequence starts again without collected rows.
    collected = entry.sequence.collected if entry.start else None
    collected = collected or Collected(request.pooling_kind)
    if len(rows):
        collected = collected.plus(rows)
    if not entry.samples:
        return PooledRow(collected)
    try:
        result = pooler.finish(collected.result(), request.pooling)
    except Exception:  # ends only this request
        extra = of_request(request.request_id, request.trace_headers)
        log.exception("pooling failed: request_id=%s", request.request_id, extra=extra)
        return FailedRow(error="internal error while pooling")
    if not np.isfinite(result).all():
        return FailedRow(error=_NOT_NUMBERS, is_corrupt=True)
    is_of_tokens = request.pooling_kind is PoolingKind.EACH
    return PooledRow(collected, result if is_of_tokens else result[0])
