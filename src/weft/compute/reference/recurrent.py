"""States of sequences in numpy: each sequence of a step continues from one slot, and stores its state in a slot."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np

from weft.compute.protocols.runner import Batch, FloatArray
from weft.compute.reference.encoder import Linear
from weft.model.recurrence import Recurrence as Spec


class Recurrence(Protocol):
    """A layer that processes a sequence row by row.

    A row's bits must not depend on the row at which the step begins.
    """

    def __call__(self, rows: FloatArray, state: FloatArray) -> FloatArray:
        """Returns the results [rows, out] for successive rows [rows, in] of one sequence; updates the flat `state`
        in place.
        """


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """A layer's recurrence, with the linear layers that only this kind of layer has.

    `parts` are all linear layers before the recurrence, each with its first column in the result; `out` is the linear
    layer after the recurrence.
    """

    recurrence: Recurrence
    unrounded: Linear | None
    parts: tuple[tuple[str, int], ...]
    out: str

    @classmethod
    def of(cls, recurrence: Recurrence, spec: Spec, unrounded: Linear | None) -> "RecurrentLayer":
        """Returns the layer with the linear layers that `spec` names."""
        starts = accumulate(spec.products.values(), initial=0)
        return cls(recurrence, unrounded, tuple(zip(spec.products, starts, strict=False)), spec.out)


def advance(
    recurrence: Recurrence, batch: Batch, states: FloatArray, rows: FloatArray
) -> FloatArray:
    """Runs all sequences of a step through a layer whose `states` are [slots, state size]; returns the results."""
    assert batch.state_reads is not None
    assert batch.state_writes is not None
    outputs = []
    for index, (read, written) in enumerate(
        zip(batch.state_reads, batch.state_writes, strict=True)
    ):
        begin, end = batch.query_starts[index : index + 2]
        certain = batch.state_end(index)
        state = states[written]
        if batch.positions[begin] == 0:
            state[:] = 0
        elif read != written:
            state[:] = states[read]
        outputs.append(recurrence(rows[begin:certain], state))
        if certain < end:
            outputs.append(recurrence(rows[certain:end], state.copy()))
    return np.concatenate(outputs)
