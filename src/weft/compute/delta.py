"""Gated delta nets in numpy: a memory of values by keys, of which each token forgets a part and mends another.

Token by token, each with operations of the same shapes: so a row's bits do not depend on chunks. For each value head
the state S is a matrix [key, value]. With k and q normed to length 1, and q divided by the root of their size:

    S *= decay;  S += outer(k, beta * (v - k S));  output = q S

where decay is exp(-exp(a_log) * softplus(a + dt_bias)), beta a sigmoid of b. An output is brought to mean square 1,
scaled, and multiplied by the SiLU of its gate.
"""

from dataclasses import dataclass

import numpy as np

from weft.compute import exact
from weft.compute.activations import sigmoid
from weft.compute.convolution import convolve_rows
from weft.compute.runner import FloatArray
from weft.model.recurrence import DeltaSpec

_LENGTH_EPS = np.float32(1e-6)  # of queries and keys, added to the square of their length


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """The weights of one layer that lie between its products."""

    spec: DeltaSpec
    conv: FloatArray  # [channels, width]
    a_log: FloatArray  # [value heads]
    dt_bias: FloatArray
    scale: FloatArray  # [value_size], of outputs

    def __call__(self, rows: FloatArray, state: FloatArray) -> FloatArray:
        """See `Recurrence`: rows are channels and gates, b and a, [rows, input_size]."""
        spec = self.spec
        channels, gates, b, a = self._parts(rows)
        conv_size = (spec.conv_width - 1) * spec.conv_size
        conv_state, memory = state[:conv_size].reshape(-1, spec.conv_size), state[conv_size:]
        memory = memory.reshape(spec.num_value_heads, spec.key_size, spec.value_size)
        mixed = exact.silu(convolve_rows(channels, conv_state, self.conv))
        sizes = (spec.keys_size, 2 * spec.keys_size)
        q, k, v = (
            part.reshape(len(rows), -1, size)
            for part, size in zip(
                np.split(mixed, sizes, axis=1),
                (spec.key_size, spec.key_size, spec.value_size),
                strict=True,
            )
        )
        group = spec.num_value_heads // spec.num_key_heads
        q = np.repeat(_unit(q), group, axis=1) * np.float32(spec.key_size**-0.5)
        k = np.repeat(_unit(k), group, axis=1)
        beta = sigmoid(b)
        decay = exact.exp(-exact.exp(self.a_log) * exact.softplus(a + self.dt_bias))
        output = np.empty_like(v)
        for row in range(len(rows)):
            memory *= decay[row][:, None, None]
            found = np.sum(memory * k[row][:, :, None], axis=1)
            delta = (v[row] - found) * beta[row][:, None]
            memory += k[row][:, :, None] * delta[:, None, :]
            output[row] = np.sum(memory * q[row][:, :, None], axis=1)
        mean_square = np.mean(output * output, axis=-1, keepdims=True)
        output = output / np.sqrt(mean_square + np.float32(spec.norm_eps)) * self.scale
        gated: FloatArray = output.reshape(gates.shape) * exact.silu(gates)
        return gated

    def _parts(self, rows: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Channels, gates, b and a, each as one run for all heads."""
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


def _unit(heads: FloatArray) -> FloatArray:
    length: FloatArray = np.sqrt(np.sum(heads * heads, axis=-1, keepdims=True) + _LENGTH_EPS)
    return heads / length
