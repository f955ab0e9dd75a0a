"""Gated delta nets in numpy: a memory of values by keys; each token decays the memory and corrects a part of it.

Tokens are computed one by one, each with operations of the same shapes, so a row's bits do not depend on chunks. For
each value head the state S is a matrix [key, value]. With k and q normed to length 1, and q divided by the root of
their size:

S *= decay; S += outer(k, beta * (v - k S)); output = q S

where decay is exp(-exp(a_log) * softplus(a + step_bias)), and beta is a sigmoid of b. An output is normed to mean
square 1, scaled, and multiplied by the SiLU of its gate. `cpp/model/delta_step.cpp` gives the same bits.
"""

from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic import exact
from weft.compute.arithmetic.convolution import Channels
from weft.compute.protocols.runner import FloatArray
from weft.model.recurrence import DeltaSpec

_LENGTH_EPS = np.float32(1e-6)  # added to the squared length of queries and keys


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """The weights of a gated delta net's layer between its two linear layers."""

    spec: DeltaSpec
    channels: Channels
    norm_eps: np.float32
    a_log: FloatArray  # [value heads]
    step_bias: FloatArray
    output_scale: FloatArray  # [value_size]

    def __call__(self, rows: FloatArray, state: FloatArray) -> FloatArray:
        """Implements `Recurrence`. Each row has channels, gates, b and a, side by side."""
        spec = self.spec
        channels, gates, b, a = self._parts(rows)
        mixed, memory = self.channels(channels, state)
        memory = memory.reshape(spec.num_value_heads, spec.key_size, spec.value_size)
        q, k, v = np.split(mixed, (spec.keys_size, 2 * spec.keys_size), axis=1)
        root = np.float32(1) / np.sqrt(np.float32(spec.key_size))
        decays = exact.exp(-exact.exp(self.a_log) * exact.softplus(a + self.step_bias))
        output = self._scan(
            self._unit(q) * root,
            self._unit(k),
            v.reshape(len(rows), -1, spec.value_size),
            (exact.sigmoid(b), decays),
            memory,
        )
        squares = exact.sum_of_squares(output) / np.float32(spec.value_size)
        output = output / np.sqrt(squares + self.norm_eps) * self.output_scale
        gated: FloatArray = output.reshape(gates.shape) * exact.silu(gates)
        return gated

    @staticmethod
    def _scan(
        q: FloatArray,
        k: FloatArray,
        v: FloatArray,
        steps: tuple[FloatArray, FloatArray],
        memory: FloatArray,
    ) -> FloatArray:
        output = np.empty_like(v)
        betas, decays = (step[:, :, None] for step in steps)
        for row, value in enumerate(v):
            memory *= decays[row][:, :, None]
            found = exact.add_up(memory * k[row], 1)
            memory += k[row] * ((value - found) * betas[row])[:, None]
            output[row] = exact.add_up(memory * q[row], 1)
        return output

    def _unit(self, rows: FloatArray) -> FloatArray:
        """Returns queries or keys scaled to length 1, one column for each value head."""
        spec = self.spec
        heads = rows.reshape(len(rows), spec.num_key_heads, spec.key_size)
        unit = heads / np.sqrt(exact.sum_of_squares(heads) + _LENGTH_EPS)
        return np.repeat(unit, spec.num_value_heads // spec.num_key_heads, axis=1)[..., None]

    def _parts(self, rows: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Returns channels, gates, b and a, each contiguous for all heads."""
        spec, heads = self.spec, self.spec.num_value_heads
        starts = (spec.conv_size, spec.conv_size + spec.inner_size)
        if not spec.is_by_key_head:
            channels, gates, last = np.split(rows, starts, axis=1)
            return channels, gates, last[:, :heads], last[:, heads:]
        group = heads // spec.num_key_heads
        by_head, last = rows[:, : -2 * heads], rows[:, -2 * heads :]
        by_head = by_head.reshape(len(rows), spec.num_key_heads, -1)
        values = group * spec.value_size
        ends = np.cumsum([spec.key_size, spec.key_size, values])
        q, k, v, gates = (part.reshape(len(rows), -1) for part in np.split(by_head, ends, axis=2))
        pair = last.reshape(len(rows), spec.num_key_heads, 2, group)
        b, a = (pair[:, :, part].reshape(len(rows), -1) for part in (0, 1))
        return np.concatenate([q, k, v], axis=1), gates, b, a
