"""Logprobs of rows on the card, with ranks: of given tokens, and of the most likely tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from weft.compute.gpu.kernels import sampling
from weft.compute.gpu.steps.transfers import ToHost, to_card
from weft.compute.protocols.runner import IntArray
from weft.compute.protocols.sampler import Scores, Scoring
from weft.core.values.logprobs import LogprobsMode

_ROWS = 32  # number of rows that are computed at once, which bounds the float64 sums
_FEW_BEST = 64  # above this number of best tokens, the rows are sorted
_BLOCK = 4096
_LOGITS = (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS)
# A function from rows of the logits and places of choices to copies of the rows, in the form that is scored.
See = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class PendingScores:
    """Logprobs that are being copied to the host.

    Each scored row has its given tokens, then places for its best ones.
    """

    num_given: IntArray  # [scored]
    num_best: IntArray  # [scored]
    packed: ToHost  # [3, entries]: tokens, values as bits, ranks
    is_finite: ToHost  # [scored]

    def result(self) -> Scores:
        """Waits for the logprobs and returns them; the best tokens are tokens with a probability above 0."""
        token_ids, bits, ranks = self.packed.wait()
        values = bits.view(np.float32)
        counts = self.num_given + self.num_best
        ends = np.cumsum(counts)
        is_best = np.arange(len(values)) >= np.repeat(ends - self.num_best, counts)
        may_come = ~is_best | (values > -np.inf)
        owners = np.repeat(np.arange(len(counts)), counts)[may_come]
        starts = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(np.bincount(owners, minlength=len(counts)), out=starts[1:])
        is_finite = self.is_finite.wait().astype(np.bool_)
        return Scores(starts, token_ids[may_come], values[may_come], ranks[may_come], is_finite)


def score(
    see: See, scoring: Scoring, chosen: torch.Tensor, mode: LogprobsMode, vocab_size: int
) -> PendingScores:
    """Computes the logprobs of all rows.

    `chosen` [2, choices] has the chosen tokens, and whether their rows are finite.
    """
    is_chosen = scoring.choices >= 0
    num_given = np.diff(scoring.given.starts) + is_chosen
    num_best = np.where(scoring.num_best < 0, vocab_size, np.minimum(scoring.num_best, vocab_size))
    num_best = num_best.astype(np.int32)
    parts, flags = [], []
    for first in range(0, len(scoring), _ROWS):
        own = slice(first, first + _ROWS)
        places = to_card(scoring.choices[own].astype(np.int64))
        rows = see(to_card(scoring.rows[own].astype(np.int64)), places)
        is_finite = torch.isfinite(rows.amax(1))
        if chosen.shape[1]:
            is_finite &= (places < 0) | (chosen[1][places.clamp(min=0)] != 0)
        flags.append(is_finite.to(torch.int32))
        values = rows if mode in _LOGITS else _log_softmax(rows)
        given = _given(scoring, own, chosen)
        parts.append(_pack(values, given, num_given[own], num_best[own]))
    return PendingScores(
        num_given.astype(np.int32),
        num_best,
        ToHost.of(torch.cat(parts, 1)),
        ToHost.of(torch.cat(flags)),
    )


def _log_softmax(rows: torch.Tensor) -> torch.Tensor:
    largest = rows.amax(1, keepdim=True)
    log_sum = (rows - largest).double().exp().sum(1, keepdim=True).log()
    return (rows.double() - largest.double() - log_sum).float()


def _given(scoring: Scoring, own: slice, chosen: torch.Tensor) -> torch.Tensor:
    """Returns the given tokens of these rows in one array; in each row the chosen token comes first."""
    starts = scoring.given.starts
    choices = scoring.choices[own]
    flat: list[int] = []  # the chosen token is marked by -1 - its choice
    for place, choice in enumerate(choices.tolist(), own.start):
        flat += [-1 - choice] if choice >= 0 else []
        flat += scoring.given.values[starts[place] : starts[place + 1]].tolist()
    tokens = to_card(np.array(flat, np.int64))
    if not chosen.shape[1]:
        return tokens
    return torch.where(tokens < 0, chosen[0][(-1 - tokens).clamp(min=0)].long(), tokens)


def _pack(
    values: torch.Tensor, given: torch.Tensor, num_given: NDArray[np.int_], num_best: IntArray
) -> torch.Tensor:
    """Returns [3, entries] for these rows, in the layout of `PendingScores`."""
    owners = to_card(np.repeat(np.arange(len(num_given)), num_given))
    own = values[owners, given]
    ranks = _ranks(values, owners, own)
    first = np.stack([np.repeat(np.arange(len(num_given)), num_given)])[0]
    columns = [torch.stack([given.int(), own.view(torch.int32), ranks])]
    order = [np.stack([first, np.zeros_like(first)])]
    most = int(num_best.max(initial=0))
    if most:
        tokens, found = _best(values, most)
        is_wanted = np.arange(most) < num_best[:, None]
        rows, places = np.nonzero(is_wanted)
        at = to_card(rows), to_card(places)
        best_ranks = at[1].int() + 1
        columns.append(torch.stack([tokens[at].int(), found[at].view(torch.int32), best_ranks]))
        order.append(np.stack([rows, places + 1]))
    keys = np.concatenate(order, 1)
    return torch.cat(columns, 1)[:, to_card(np.lexsort((keys[1], keys[0])))]


def _ranks(values: torch.Tensor, owners: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Returns, for each value, the number of tokens of its row that have at least this value."""
    counts = [
        (values[owners[i : i + _ROWS]] >= own[i : i + _ROWS, None]).sum(1, dtype=torch.int32)
        for i in range(0, len(own), _ROWS)
    ]
    return torch.cat(counts) if counts else torch.empty(0, dtype=torch.int32, device=values.device)


def _best(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and values of each row's largest values, [rows, count], best first; of equal values the smaller
    id.
    """
    if count > _FEW_BEST:
        found, tokens = torch.sort(values, dim=1, descending=True, stable=True)
        return tokens[:, :count], found[:, :count].contiguous()
    tokens = torch.empty((len(values), count), dtype=torch.int32, device=values.device)
    found = torch.empty((len(values), count), dtype=torch.float32, device=values.device)
    sampling.find_best[(len(values),)](
        *(values.contiguous(), tokens, found, count, values.shape[1]), BLOCK=_BLOCK, num_warps=8
    )
    return tokens, found
