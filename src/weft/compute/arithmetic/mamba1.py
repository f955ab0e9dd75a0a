"""Layers of the first Mamba in numpy, token by token; `cpp/model/mamba1_step.cpp` gives the same bits."""

from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic import exact
from weft.compute.arithmetic.convolution import Channels
from weft.compute.protocols.runner import FloatArray
from weft.model.recurrence import Mamba1Spec


@dataclass(frozen=True, slots=True)
class Mamba1:
    """The weights of a layer between its two linear layers; matrices are flat, with the rows of the checkpoint."""

    spec: Mamba1Spec
    channels: Channels
    norm_eps: np.float32
    a_log: FloatArray
    step_bias: FloatArray
    skip: FloatArray
    step_in: FloatArray
    step_out: FloatArray

    def __call__(self, rows: FloatArray, state: FloatArray) -> FloatArray:
        """Maps a sequence's `rows` [n, 2 * inner_size] to [n, inner_size]; updates `state` [state_size] in place."""
        inner = self.spec.inner_size
        x, vectors = self.channels(rows[:, :inner], state)
        steps, b, c = self._made(x)
        given = self._scan(x, steps, b, c, vectors)
        return given * exact.silu(rows[:, inner:])

    def _made(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns the time steps of rows [n, inner_size], and B and C [n, state_dim]."""
        spec = self.spec
        made = exact.dots(x, self.step_in.reshape(spec.made_size, -1))
        parts = np.split(made, [spec.step_rank, spec.step_rank + spec.state_dim], axis=1)
        if spec.has_norms:
            parts = [self._normed(part) for part in parts]
        low, b, c = parts
        steps = exact.dots(low, self.step_out.reshape(spec.inner_size, -1))
        return exact.softplus(steps + self.step_bias), b, c

    def _normed(self, rows: FloatArray) -> FloatArray:
        squares = exact.sum_of_squares(rows) / np.float32(rows.shape[1])
        normed: FloatArray = rows / np.sqrt(squares + np.float32(self.spec.step_eps))
        return normed

    def _scan(
        self, x: FloatArray, steps: FloatArray, b: FloatArray, c: FloatArray, vectors: FloatArray
    ) -> FloatArray:
        spec = self.spec
        vectors = vectors.reshape(spec.num_heads, spec.state_dim, spec.head_dim)
        rates = -exact.exp(self.a_log).reshape(spec.num_heads, spec.head_dim, -1).swapaxes(1, 2)
        of_blocks = (len(x), spec.num_heads, 1, spec.head_dim)
        x, steps = x.reshape(of_blocks), steps.reshape(of_blocks)
        given = np.empty((len(x), spec.num_heads, spec.head_dim), np.float32)
        for row in range(len(x)):
            vectors *= exact.exp(rates * steps[row])
            vectors += steps[row] * b[row, :, None] * x[row]
            given[row] = exact.add_up(vectors * c[row, :, None], 1)
        given += x[:, :, 0] * self.skip.reshape(spec.num_heads, -1)
        return given.reshape(len(x), -1)
