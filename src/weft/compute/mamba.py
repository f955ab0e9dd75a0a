"""Mamba-2 layers in numpy, token by token: the twin of `cpp/model/mamba_step.cpp`, which gives the same bits.

A sum is added up in the order of its terms, or in sixteen sums that are added up in the end.
"""

from dataclasses import dataclass

import numpy as np

from weft.compute import exact
from weft.compute.convolution import convolve_rows
from weft.compute.runner import FloatArray
from weft.model.recurrence import Mamba2Spec

_LANES = 16


@dataclass(frozen=True, slots=True)
class Mamba2:
    """What lies between the two products of such a layer; `conv` is [conv_size, conv_width]."""

    spec: Mamba2Spec
    conv: FloatArray
    conv_bias: FloatArray | None
    step_bias: FloatArray
    a_log: FloatArray
    skip: FloatArray
    norm: FloatArray
    norm_eps: np.float32

    def __call__(self, rows: FloatArray, state: FloatArray) -> FloatArray:
        """Of a sequence's `rows` [n, in_size], [n, inner_size]; `state` [state_size] goes on in place."""
        spec = self.spec
        inner, size = spec.inner_size, (spec.conv_width - 1) * spec.conv_size
        before = state[:size].reshape(-1, spec.conv_size)
        matrices = state[size:].reshape(spec.num_heads, spec.state_dim, spec.head_dim)
        rows_of_conv = rows[:, inner : inner + spec.conv_size]
        convolved = exact.silu(convolve_rows(rows_of_conv, before, self.conv, self.conv_bias))
        given = self._scan(convolved, rows[:, -spec.num_heads :], matrices)
        return self._normed(given * exact.silu(rows[:, :inner]))

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
        given = np.zeros((len(x), spec.num_heads, spec.head_dim), np.float32)
        for row in range(len(x)):
            step, decay = steps[row, :, None, None], decays[row, :, None, None]
            matrices *= decay
            matrices += (step * np.repeat(b[row], each, axis=0)) * x[row]
            terms = matrices * np.repeat(c[row], each, axis=0)
            given[row] += np.add.accumulate(terms, axis=1)[:, -1]
        given += x[:, :, 0] * self.skip[:, None]
        return given.reshape(len(x), inner)

    def _normed(self, rows: FloatArray) -> FloatArray:
        size = self.spec.inner_size // self.spec.num_groups
        groups = rows.reshape(len(rows), -1, size)
        spare = ((0, 0), (0, 0), (0, -size % _LANES))
        squares = np.pad(groups * groups, spare).reshape(*groups.shape[:2], -1, _LANES)
        lanes = np.add.accumulate(squares, axis=2)[:, :, -1]
        sums = np.add.accumulate(lanes, axis=2)[:, :, -1:]
        scales: FloatArray = np.sqrt(sums / np.float32(size) + self.norm_eps)
        normed: FloatArray = (groups / scales).reshape(rows.shape) * self.norm
        return normed
