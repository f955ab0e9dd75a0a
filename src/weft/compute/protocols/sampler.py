"""`Sampler`: samples tokens and computes logprobs from the rows of a forward pass, in any memory.

A step is one call: `Choices` has the sampling parameters of its rows as arrays, and `Choice` those of one row.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.compute.protocols.masks import Words
from weft.compute.protocols.runner import FloatArray, IntArray, Rows
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.types import LogprobRow, SamplingParams

Doubles = NDArray[np.float64]
_MAX_TOP_K = 2**31 - 1


class Choice(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Sampling parameters of one row, applied in the order of the fields; fields with defaults have no effect.

    A row that `mask` (see `masks`) leaves without a token counts as not finite; any other restriction is skipped if it
    would leave no token. `seen` is prompt and output, for the repetition penalty; `output` is for the other two
    penalties. `temperature` 0 selects the best token; otherwise `key` selects the noise. A forced token is selected
    whatever the other fields say: it is then the only token of the row, if `mask` allows it.
    """

    mask: Words | None = None
    forced_token_id: int | None = None
    allowed: Sequence[int] | None = None
    forbidden: Sequence[int] = ()
    forbidden_ends: Sequence[int] = ()
    bias: Mapping[int, float] = {}
    seen: Sequence[int] = ()
    output: Sequence[int] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    temperature: float = 0.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    key: int = 0


_FIELDS = Choice.__struct_fields__
_fields = attrgetter(*_FIELDS)
# Fields of `Choice` that change a row, except its mask.
_changes = attrgetter(*(name for name in _FIELDS if name not in ("mask", "temperature", "key")))
_NO_CHANGES = _changes(Choice())


def reads_seen(params: SamplingParams) -> bool:
    """True if sampling with these parameters reads `Choice.seen`."""
    return params.repetition_penalty != 1.0


def reads_output(params: SamplingParams) -> bool:
    """True if sampling with these parameters reads `Choice.output`."""
    return bool(params.presence_penalty or params.frequency_penalty)


def narrowing(rows: Sequence[Choice | SamplingParams]) -> dict[str, Any]:
    """Returns the fields of `Choices` that narrow the random choice of each row to likely tokens."""
    return {
        "min_p": _numbers([row.min_p for row in rows], 0.0, np.float64),
        "top_k": _numbers([max(0, min(row.top_k, _MAX_TOP_K)) for row in rows], 0, np.int32),
        "top_p": _numbers([row.top_p for row in rows], 1.0, np.float64),
    }


@dataclass(frozen=True, slots=True)
class Lists:
    """A list of numbers for each row; list i is `values[starts[i]:starts[i + 1]]`."""

    starts: IntArray  # [rows + 1]
    values: IntArray

    @classmethod
    def of(cls, lists: Sequence[Sequence[int] | IntArray]) -> "Lists":
        """Returns the lists, stored one after the other."""
        starts = np.array([0, *accumulate(map(len, lists))], np.int32)
        parts = [np.asarray(numbers, np.int32) for numbers in lists if len(numbers)]
        return cls(starts, np.concatenate(parts) if parts else np.empty(0, np.int32))

    def __getitem__(self, place: int) -> IntArray:
        return self.values[self.starts[place] : self.starts[place + 1]]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Rows whose logprobs are wanted, and the tokens of each row.

    The tokens are the one that `choices` chose, then those in `given`, then the `num_best` best possible tokens (-1:
    all). If `choices` is -1, no token is chosen from the row, as for a row of a prompt, and its logprobs are of the
    unchanged row.
    """

    rows: IntArray  # [scored], row of the logits
    choices: IntArray  # [scored], index in `Choices`
    given: Lists  # one list per scored row
    num_best: IntArray  # [scored]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Sampling parameters of a step's rows, as arrays with one entry per choice; `Choice` describes them.

    A row may have several choices, or none. A field of None has no effect on any choice.
    """

    rows: IntArray  # [choices], row of the logits
    temperatures: Doubles
    keys: NDArray[np.uint64]
    masks: Words | None = None  # [masked choices, words]
    masked: IntArray | None = None  # indexes of the choices with these masks, ascending
    forced_token_ids: IntArray | None = None  # -1: no forced token
    allowed: Lists | None = None  # an empty list allows all tokens
    forbidden: Lists | None = None
    forbidden_ends: Lists | None = None
    biased: Lists | None = None
    bias: FloatArray | None = None  # one number for each value of `biased`
    seen: Lists | None = None
    output: Lists | None = None
    repetition_penalty: FloatArray | None = None
    frequency_penalty: FloatArray | None = None
    presence_penalty: FloatArray | None = None
    min_p: Doubles | None = None
    top_k: IntArray | None = None
    top_p: Doubles | None = None
    scoring: Scoring | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Choice:
        """Returns the choice at index `place` as a `Choice`."""
        forced = _number(self.forced_token_ids, place, -1)
        return Choice(
            mask=self._mask(place),
            forced_token_id=None if forced < 0 else forced,
            allowed=_list(self.allowed, place) or None,
            forbidden=_list(self.forbidden, place),
            forbidden_ends=_list(self.forbidden_ends, place),
            bias=self._bias(place),
            seen=_list(self.seen, place),
            output=_list(self.output, place),
            repetition_penalty=_number(self.repetition_penalty, place, 1.0),
            frequency_penalty=_number(self.frequency_penalty, place, 0.0),
            presence_penalty=_number(self.presence_penalty, place, 0.0),
            temperature=float(self.temperatures[place]),
            min_p=_number(self.min_p, place, 0.0),
            top_k=_number(self.top_k, place, 0),
            top_p=_number(self.top_p, place, 1.0),
            key=int(self.keys[place]),
        )

    def _mask(self, place: int) -> Words | None:
        if self.masks is None or self.masked is None:
            return None
        found = np.flatnonzero(self.masked == place)
        return self.masks[found[0]] if len(found) else None

    def _bias(self, place: int) -> dict[int, float]:
        if self.biased is None or self.bias is None:
            return {}
        start, end = self.biased.starts[place : place + 2]
        return dict(zip(self.biased[place].tolist(), self.bias[start:end].tolist(), strict=True))

    @classmethod
    def of(
        cls, rows: Sequence[int], choices: Sequence[Choice], scoring: Scoring | None = None
    ) -> "Choices":
        """Returns the choices of `rows`, as arrays."""
        plain = cls(
            rows=np.array(rows, np.int32),
            temperatures=np.array([choice.temperature for choice in choices], np.float64),
            keys=np.array([choice.key for choice in choices], np.uint64),
            scoring=scoring,
        )
        if all(one.mask is None and _changes(one) == _NO_CHANGES for one in choices):
            return plain
        return plain._with_changes(choices)

    def _with_changes(self, choices: Sequence[Choice]) -> "Choices":
        """Returns the choices with further fields set: all but temperatures and keys."""
        by = dict(zip(_FIELDS, zip(*map(_fields, choices), strict=True), strict=True))
        masks = {place: mask for place, mask in enumerate(by["mask"]) if mask is not None}
        biased = _lists([[*bias] for bias in by["bias"]]) if any(by["bias"]) else None
        return replace(
            self,
            masks=np.stack([*masks.values()]) if masks else None,
            masked=np.array([*masks], np.int32) if masks else None,
            forced_token_ids=_forced(by["forced_token_id"]),
            allowed=_lists([allowed or () for allowed in by["allowed"]]),
            forbidden=_lists(by["forbidden"]),
            forbidden_ends=_lists(by["forbidden_ends"]),
            biased=biased,
            bias=None if biased is None else _bias(choices),
            seen=_lists(by["seen"]),
            output=_lists(by["output"]),
            repetition_penalty=_numbers(by["repetition_penalty"], 1.0, np.float32),
            frequency_penalty=_numbers(by["frequency_penalty"], 0.0, np.float32),
            presence_penalty=_numbers(by["presence_penalty"], 0.0, np.float32),
            **narrowing(choices),
        )


@dataclass(frozen=True, slots=True)
class Scores:
    """The wanted (token, value, rank) of each scored row; undefined if the row is not finite.

    `ranks` is the number of tokens with at least this value; for the best tokens, their place among them.
    """

    starts: IntArray  # [scored + 1]
    token_ids: IntArray
    values: FloatArray
    ranks: IntArray
    is_finite: NDArray[np.bool_]  # [scored]

    def rows(self) -> list[LogprobRow | None]:
        """Returns the logprobs of each row; None for a row that is not finite."""
        scores: LogprobRow = list(
            zip(self.token_ids.tolist(), self.values.tolist(), self.ranks.tolist(), strict=True)
        )
        starts = self.starts.tolist()
        ends = zip(starts[:-1], starts[1:], self.is_finite.tolist(), strict=True)
        return [scores[start:end] if is_finite else None for start, end, is_finite in ends]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The token of each choice; undefined if its row contains NaN or has no finite maximum."""

    token_ids: IntArray
    is_finite: NDArray[np.bool_]
    scores: Scores | None = None


class Sampled(Protocol):
    """Result of a call of a sampler; it may not be computed yet."""

    @property
    def device_token_ids(self) -> Any:
        """Tokens of all choices in the device's memory, for the runner; None for logits in the host's memory."""

    def result(self) -> Outcome:
        """Returns the outcome in the host's memory; waits until it is computed."""


@dataclass(frozen=True, slots=True)
class SampledOnHost:
    """A `Sampled` that is already computed."""

    outcome: Outcome
    device_token_ids: None = None

    def result(self) -> Outcome:
        return self.outcome


class Sampler(Protocol):
    """Samples from the logits that a backend's runners return; only requested values are copied to the host."""

    def sample(
        self, logits: Rows, choices: Choices, mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS
    ) -> Sampled:
        """Samples from each row independently and computes logprobs; `logits` [rows, vocab] are not changed.

        `mode` selects the logprobs: of the row with forbidden tokens at minus infinity, or of the row after all
        processing; a prompt's row is always unchanged. Raises `ValueError` for a token outside the logits.
        """


N = TypeVar("N", bound=np.generic)


def _numbers(numbers: Sequence[float], neutral: float, dtype: type[N]) -> NDArray[N] | None:
    if numbers.count(neutral) == len(numbers):
        return None
    return np.array(numbers, dtype)


def _number(numbers: NDArray[Any] | None, place: int, neutral: float) -> Any:
    return neutral if numbers is None else numbers[place].item()


def _list(lists: Lists | None, place: int) -> list[int]:
    return [] if lists is None else lists[place].tolist()


def _lists(lists: Sequence[Sequence[int] | IntArray]) -> Lists | None:
    return Lists.of(lists) if any(map(len, lists)) else None


def _forced(token_ids: Sequence[int | None]) -> IntArray | None:
    if token_ids.count(None) == len(token_ids):
        return None
    return np.array([-1 if token_id is None else token_id for token_id in token_ids], np.int32)


def _bias(choices: Iterable[Choice]) -> FloatArray:
    return np.array([value for choice in choices for value in choice.bias.values()], np.float32)
