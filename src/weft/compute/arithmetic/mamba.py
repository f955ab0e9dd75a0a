"""Mamba-2 layers in numpy, token by token; `cpp/model/mamba_step.cpp` gives the same bits."""

from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic import exact
from weft.compute.arithmetic.convolution import Channels
from weft.compute.protocols.runner import FloatArray
from weft.model.recurrence import Mamba2Spec


@dataclass(frozen=True, slots=True)
class Mamba2:
    """The weights of a Mamba-2 layer between its two linear layers."""

    spec: Mamba2Spec
    channels: Channels
    norm_eps: np.float32
    a_log: FloatArray
    step_bias: FloatArray
    skip: FloatArray
    output_scale: FloatArray | None = None

    def __call__(self, rows: FloatArray, state: FloatArray) -> FloatArray:
        """Maps a sequence's `rows` [n, in_size] to [n, inner_size]; updates `state` [state_size] in place."""
        spec = self.spec
        inner = spec.inner_size
        convolved, matrices = self.channels(rows[:, inner : inner + spec.conv_size], state)
        matrices = matrices.reshape(spec.num_heads, spec.state_dim, spec.head_dim)
        given = self._scan(convolved, rows[:, -spec.num_heads :], matrices)
        gate = exact.silu(rows[:, :inner])
        if self.output_scale is None or spec.is_gated_first:
            return self._normed(given * gate)
        return self._normed(given) * gate

    def _scan(self, convolved: FloatArray, steps: FloatArray, matrices: FloatArray) -> FloatArray:
        spec = self.spec
        low, high = np.float32(spec.min_step), np.float32(spec.max_step)
        steps = exact.softplus(steps + self.step_bias)
        steps = np.where(steps < low, low, steps)
        steps = np.where(steps > high, high, steps)
        decays = exact.exp(-exact.exp(self.a_log) * steps)
        inner, groups = spec.inner_size, spec.num_groups * spec.state_dim
        x = convolved[:, :inner].reshape(-1, spec.num_heads, 1, spec.head_dim)
        b, c = (
            part.reshape(-1, spec.num_groups, spec.state_dim, 1)
            for part in (convolved[:, inner : inner + groups], convolved[:, inner + groups :])
        )
        each = spec.num_heads // spec.num_groups
        given = np.empty((len(x), spec.num_heads, spec.head_dim), np.float32)
        for row in range(len(x)):
            step, decay = steps[row, :, None, None], decays[row, :, None, None]
            matrices *= decay
            matrices += (step * np.repeat(b[row], each, axis=0)) * x[row]
            given[row] = exact.add_up(matrices * np.repeat(c[row], each, axis=0), 1)
        given += x[:, :, 0] * self.skip[:, None]
        return given.reshape(len(x), inner)

    def _normed(self, rows: FloatArray) -> FloatArray:
        if self.output_scale is None:
            return rows
        size = self.spec.inner_size // self.spec.num_groups
        groups = rows.reshape(len(rows), -1, size)
        squares = exact.sum_of_squares(groups) / np.float32(size)
        normed: FloatArray = (groups / np.sqrt(squares + self.norm_eps)).reshape(rows.shape)
        return normed * self.output_scale
