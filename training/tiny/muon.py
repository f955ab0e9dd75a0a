"""Muon for many small matrices: momentum, then each update is made nearly orthogonal, in float32 and by shape.

torch's own Muon goes matrix by matrix in bfloat16, which took 1.2 s a step here on two CPU cores; this takes 0.1 s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic Newton-Schulz iteration
ROUNDS = 5


def orthogonalized(updates: Tensor) -> Tensor:
    """Push the singular values of each matrix [count, short, long] towards one."""
    first, second, third = COEFFICIENTS
    x = updates / (updates.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = first * x + (second * gram + third * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonal updates; weight decay is decoupled."""

    def __init__(
        self, weights: Iterable[Tensor], *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(
            list(weights), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every matrix, those of one shape together."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                by_shape[min(weight.shape), max(weight.shape)].append(weight)
            for weights in by_shape.values():
                self._step_alike(weights, group)

    def _step_alike(self, weights: list[Tensor], group: dict[str, float]) -> None:
        moving = []
        for weight in weights:
            assert weight.grad is not None
            state = self.state[weight]
            average = state.setdefault("momentum", torch.zeros_like(weight))
            average.lerp_(weight.grad, 1.0 - group["momentum"])
            nesterov = weight.grad.lerp(average, group["momentum"])
            moving.append(nesterov if weight.shape[0] <= weight.shape[1] else nesterov.mT)
        for weight, update in zip(weights, orthogonalized(torch.stack(moving)), strict=True):
            rows, columns = weight.shape
            scale = max(1.0, rows / columns) ** 0.5
            weight.mul_(1.0 - group["lr"] * group["weight_decay"])
            weight.add_(update if rows <= columns else update.mT, alpha=-group["lr"] * scale)
