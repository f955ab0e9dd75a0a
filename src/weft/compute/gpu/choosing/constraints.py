"""Masks, bias and penalties of requests, applied on the card to copies of their rows, all rows together."""

from dataclasses import dataclass

import numpy as np
import torch

from weft.compute.gpu.steps.transfers import to_card
from weft.compute.protocols.sampler import Choices, Lists

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Constrained:
    """Rows of logits after masks, bias and penalties, one row for each choice."""

    rows: torch.Tensor  # [choices, vocab]
    masked: torch.Tensor | None  # the rows after masking; None if no row is masked
    is_finite: torch.Tensor  # [choices], True if some token is allowed and all values are numbers


@dataclass(frozen=True, slots=True)
class _Entries:
    """Tokens of all choices in flat arrays: entry i is token `tokens[i]` of row `rows[i]`."""

    rows: torch.Tensor
    tokens: torch.Tensor

    @classmethod
    def of(cls, lists: Lists, vocab_size: int, field: str) -> "_Entries":
        """Returns the entries of `lists`; raises a `ValueError` that names `field` for a token outside the
        vocabulary.
        """
        values = lists.values
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < vocab_size:
            raise ValueError(f"{field} has a token beyond the {vocab_size} of the vocabulary")
        counts = np.diff(lists.starts)
        rows = np.repeat(np.arange(len(counts)), counts)
        both = to_card(np.stack([rows, values.astype(np.int64)]))
        return cls(both[0], both[1])

    def read(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the logits at these entries."""
        return rows[self.rows, self.tokens]

    def write(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Writes a value for each entry; entries of the same token have equal values."""
        rows[self.rows, self.tokens] = values


def constrain(logits: torch.Tensor, choices: Choices, sources: torch.Tensor) -> Constrained | None:
    """Returns the rows after masks, bias and penalties; None if no choice has any of these."""
    lists = (choices.allowed, choices.forbidden, choices.forbidden_ends, choices.biased)
    numbers = (
        choices.repetition_penalty,
        choices.frequency_penalty,
        choices.presence_penalty,
        choices.forced_token_ids,
        choices.masks,
    )
    if not len(choices) or all(x is None for x in (*lists, *numbers)):
        return None
    rows = logits[sources]
    is_finite = _is_finite(rows)
    masked = None
    if choices.masks is not None and choices.masked is not None:
        masked = rows = _masked(rows, choices)
        is_finite = is_finite & (_is_finite(rows) | _is_forced(choices, rows))
        rows = rows.clone()
    unchanged = None if choices.forced_token_ids is None else rows.clone()
    _take_out(rows, choices)
    _favour(rows, choices)
    _penalise(rows, choices)
    if unchanged is not None:
        _force(rows, unchanged, choices)
    return Constrained(rows, masked, is_finite)


def _is_finite(rows: torch.Tensor) -> torch.Tensor:
    return torch.isfinite(rows.amax(1))  # the maximum of a row with a NaN is NaN


def _is_forced(choices: Choices, rows: torch.Tensor) -> torch.Tensor:
    if choices.forced_token_ids is None:
        return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    return to_card(choices.forced_token_ids >= 0)


def _masked(rows: torch.Tensor, choices: Choices) -> torch.Tensor:
    assert choices.masks is not None
    assert choices.masked is not None
    words = to_card(choices.masks.view(np.int32))
    bits = words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=rows.device)
    may_come = (bits & 1).bool().reshape(len(words), -1)[:, : rows.shape[1]]
    own = to_card(choices.masked.astype(np.int64))
    rows[own] = torch.where(may_come, rows[own], _NEVER)
    return rows


def _take_out(rows: torch.Tensor, choices: Choices) -> None:
    """Sets the logits of forbidden tokens to minus infinity; ignores a list that would forbid all tokens of a row."""
    vocab_size = rows.shape[1]
    if choices.allowed is not None:
        entries = _Entries.of(choices.allowed, vocab_size, "allowed")
        allowed = torch.full_like(rows, _NEVER)
        entries.write(allowed, entries.read(rows))
        rows.copy_(torch.where((allowed.amax(1) > _NEVER)[:, None], allowed, rows))
    for field in ("forbidden", "forbidden_ends"):
        lists: Lists | None = getattr(choices, field)
        if lists is not None:
            entries = _Entries.of(lists, vocab_size, field)
            before = entries.read(rows)
            entries.write(rows, torch.full_like(before, _NEVER))
            is_left = (rows.amax(1) > _NEVER)[entries.rows]
            entries.write(rows, torch.where(is_left, _NEVER, before))


def _favour(rows: torch.Tensor, choices: Choices) -> None:
    if choices.biased is None:
        return
    assert choices.bias is not None
    entries = _Entries.of(choices.biased, rows.shape[1], "biased")
    entries.write(rows, entries.read(rows) + to_card(choices.bias))


def _penalise(rows: torch.Tensor, choices: Choices) -> None:
    """Applies the penalties: repetition for each token of prompt and output once, frequency and presence for the
    output.
    """
    if choices.repetition_penalty is not None and choices.seen is not None:
        entries = _Entries.of(choices.seen, rows.shape[1], "seen")
        penalty = to_card(choices.repetition_penalty)[entries.rows]
        own = entries.read(rows)
        entries.write(rows, torch.where(own > 0, own / penalty, own * penalty))
    frequency, presence = choices.frequency_penalty, choices.presence_penalty
    if choices.output is None or (frequency is None and presence is None):
        return
    entries = _Entries.of(choices.output, rows.shape[1], "output")
    places = entries.rows * rows.shape[1] + entries.tokens
    counts = torch.zeros(rows.numel(), dtype=torch.int32, device=rows.device)
    counts.index_put_((places,), torch.ones_like(places, dtype=torch.int32), accumulate=True)
    own = entries.read(rows)
    if frequency is not None:
        own = own - to_card(frequency)[entries.rows] * counts[places].float()
    if presence is not None:
        own = own - to_card(presence)[entries.rows]
    entries.write(rows, own)


def _force(rows: torch.Tensor, unchanged: torch.Tensor, choices: Choices) -> None:
    """Leaves only the forced token in its row, whatever the other settings say."""
    forced = choices.forced_token_ids
    assert forced is not None
    if int(forced.max()) >= rows.shape[1]:
        raise ValueError(
            f"forced_token_ids has a token beyond the {rows.shape[1]} of the vocabulary"
        )
    own = to_card(np.flatnonzero(forced >= 0))
    tokens = to_card(forced[forced >= 0].astype(np.int64))
    # Higher than minus infinity, which excluded tokens have.
    values = unchanged[own, tokens].clamp(min=torch.finfo(rows.dtype).min)
    rows[own] = _NEVER
    rows[own, tokens] = values
