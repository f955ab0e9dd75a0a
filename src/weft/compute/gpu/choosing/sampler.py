"""`GpuSampler`: samples tokens and computes logprobs from logits on the card, for all rows of a step together.

Only the results are copied to the host, in one copy; `result` waits for this copy.
"""

from dataclasses import dataclass

import numpy as np
import torch

from weft.compute.gpu import launches
from weft.compute.gpu.choosing.constraints import Constrained, constrain
from weft.compute.gpu.choosing.scoring import PendingScores, score
from weft.compute.gpu.kernels import sampling
from weft.compute.gpu.steps.transfers import ToHost, to_card
from weft.compute.protocols.sampler import Choices, Outcome
from weft.core.values.logprobs import LogprobsMode

_BLOCK = 4096  # number of tokens that one program handles
_PROCESSED = (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Sampling parameters of all choices, as tensors on the card."""

    rows: torch.Tensor  # int64
    keys: torch.Tensor
    temperatures: torch.Tensor  # float64, like the fields below
    min_p: torch.Tensor
    top_p: torch.Tensor
    top_k: torch.Tensor  # int64


@dataclass(frozen=True, slots=True)
class Bounds:
    """The lowest logit that may be sampled, and the last allowed token among tokens with exactly this logit."""

    lowest: torch.Tensor  # [choices] float32
    last: torch.Tensor  # [choices] int32


@dataclass(frozen=True, slots=True)
class SampledOnCard:
    """A `Sampled` on the card whose computation may still be running."""

    device_token_ids: torch.Tensor
    chosen: ToHost  # [2, choices]: tokens, and whether the rows are finite
    scores: PendingScores | None

    def result(self) -> Outcome:
        token_ids, is_finite = self.chosen.wait()
        scores = None if self.scores is None else self.scores.result()
        return Outcome(token_ids, is_finite.astype(np.bool_), scores)


class GpuSampler:
    """Samples tokens and computes logprobs on the card."""

    def sample(
        self,
        logits: torch.Tensor,
        choices: Choices,
        mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS,
    ) -> SampledOnCard:
        numbers = _send_numbers(choices)
        constrained = constrain(logits, choices, numbers.rows)
        rows = logits if constrained is None else constrained.rows
        if constrained is not None:
            numbers = _at_own_rows(numbers)
        is_bounded = any(x is not None for x in (choices.min_p, choices.top_k, choices.top_p))
        bounds = _find_bounds(rows, numbers) if is_bounded and len(choices) else None
        out = _draw(rows, numbers, bounds, constrained)
        scores = None
        if choices.scoring is not None:
            seen = _Seen(logits, mode, numbers, constrained, bounds)
            scores = score(seen.rows, choices.scoring, out, mode, logits.shape[1])
        return SampledOnCard(out[0], ToHost.of(out), scores)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Rows in the form in which their logprobs are computed."""

    logits: torch.Tensor
    mode: LogprobsMode
    numbers: _Numbers
    constrained: Constrained | None
    bounds: Bounds | None

    def rows(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Returns copies of the rows `rows` of the logits, each as modified for the choice at its place in `places`.

        A row with the place -1 is unmodified.
        """
        seen = self.logits[rows]
        is_chosen = places >= 0
        own = places.clamp(min=0)
        if self.constrained is not None and self.constrained.masked is not None:
            seen = torch.where(is_chosen[:, None], self.constrained.masked[own], seen)
        if self.mode not in _PROCESSED or not len(self.numbers.rows):
            return seen
        source = (
            self.logits[self.numbers.rows] if self.constrained is None else self.constrained.rows
        )
        drawn, temperature = source[own], self.numbers.temperatures[own][:, None]
        if self.bounds is not None:
            lowest, last = self.bounds.lowest[own][:, None], self.bounds.last[own][:, None]
            tokens = torch.arange(drawn.shape[1], device=drawn.device)
            may_come = (drawn > lowest) | ((drawn == lowest) & (tokens <= last))
            drawn = torch.where(may_come, drawn, float("-inf"))
        divided = (drawn.double() / torch.where(temperature > 0, temperature, 1.0)).float()
        return torch.where(is_chosen[:, None], divided, seen)


def _send_numbers(choices: Choices) -> _Numbers:
    """Copies the parameters of all choices to the card in one transfer, 64 bits each."""
    count = len(choices)
    whole = np.empty((6, count), np.int64)
    floats = whole.view(np.float64)
    whole[0] = choices.rows
    whole[1] = choices.keys.view(np.int64)
    floats[2] = choices.temperatures
    floats[3] = 0.0 if choices.min_p is None else choices.min_p
    floats[4] = 1.0 if choices.top_p is None else choices.top_p
    whole[5] = 0 if choices.top_k is None else choices.top_k
    forced = choices.forced_token_ids
    if forced is not None:  # a forced token is chosen whatever the other settings are
        floats[2:5, forced >= 0] = np.array([[0.0], [0.0], [1.0]])
        whole[5, forced >= 0] = 0
    sent = to_card(whole)
    wide = sent.view(torch.float64)
    return _Numbers(sent[0], sent[1].view(torch.uint64), wide[2], wide[3], wide[4], sent[5])


def _at_own_rows(numbers: _Numbers) -> _Numbers:
    """Returns the parameters for copied rows: choice i has row i."""
    rows = torch.arange(len(numbers.rows), device=numbers.rows.device)
    return _Numbers(
        rows, numbers.keys, numbers.temperatures, numbers.min_p, numbers.top_p, numbers.top_k
    )


def _find_bounds(rows: torch.Tensor, numbers: _Numbers) -> Bounds:
    count = len(numbers.rows)
    lowest = torch.empty(count, dtype=torch.float32, device=rows.device)
    last = torch.empty(count, dtype=torch.int32, device=rows.device)
    sampling.find_bounds[(count,)](
        *(rows, numbers.rows, numbers.temperatures, numbers.min_p, numbers.top_k, numbers.top_p),
        *(lowest, last, rows.shape[1], rows.stride(0)),
        BLOCK=_BLOCK,
        num_warps=16,
    )
    return Bounds(lowest, last)


def _draw(
    rows: torch.Tensor, numbers: _Numbers, bounds: Bounds | None, constrained: Constrained | None
) -> torch.Tensor:
    """Returns [2, choices]: the token of each choice, and whether its row is finite."""
    count, vocab = len(numbers.rows), rows.shape[1]
    out = torch.empty((2, count), dtype=torch.int32, device=rows.device)
    if not count:
        return out
    num_blocks = -(-vocab // _BLOCK)
    best = torch.empty((count, num_blocks), dtype=torch.float64, device=rows.device)
    tokens = torch.empty((count, num_blocks), dtype=torch.int32, device=rows.device)
    highest = torch.empty((count, num_blocks), dtype=torch.float32, device=rows.device)
    lowest, last = (highest, tokens) if bounds is None else (bounds.lowest, bounds.last)
    sampling.draw_blocks[(num_blocks, count)](
        *(
            rows,
            numbers.rows,
            numbers.temperatures,
            numbers.keys,
            lowest,
            last,
            best,
            tokens,
            highest,
        ),
        *(vocab, rows.stride(0)),
        HAS_BOUNDS=bounds is not None,
        BLOCK=_BLOCK,
        num_warps=8,
    )
    flags = tokens if constrained is None else constrained.is_finite
    sampling.draw[(count,)](
        *(best, tokens, highest, flags, out, count, num_blocks, vocab),
        HAS_FLAGS=constrained is not None,
        BLOCK=launches.power_of_two(num_blocks),
        num_warps=1,
    )
    return out
