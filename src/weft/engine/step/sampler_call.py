"""`SamplerCall`: samples tokens and logprobs of many sequences in one call, with one result for each sequence."""

import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from weft.compute.protocols.runner import Rows
from weft.compute.protocols.sampler import (
    Choice,
    Choices,
    Lists,
    Outcome,
    Sampled,
    SampledOnHost,
    Sampler,
    Scoring,
)
from weft.core.observe.log import of_request
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.types import Request
from weft.engine.scheduling.plan import FailedRow, Result, SampledRow

log = logging.getLogger("weft.engine")

CORRUPT = FailedRow(error="the model produced logits that are not numbers", is_corrupt=True)
INTERNAL_ERROR = FailedRow(error="internal error while sampling")


@dataclass(slots=True)
class Score:
    """Logprobs to compute of a row: of the `given` tokens, of the chosen token if there is one, and of the
    `num_best` best.
    """

    row: int
    given: Seq[int]
    num_best: int


_NO_CHANGE = Choice()


class Wanted(msgspec.Struct, eq=False):
    """Sampling work for one sequence: a token from `row`, the token's logprobs, and logprobs of prompt rows.

    With a `failure` no token is sampled; only NaN and infinity in the row are still detected.
    """

    request: Request
    row: int | None = None
    choice: Choice = _NO_CHANGE
    score: Score | None = None
    prompt_scores: Seq[Score] = ()
    failure: FailedRow | None = None


class SamplerCall:
    """One sampler call for all sequences of a step. A failure of one sequence does not affect the others.

    The call may be computed as late as `results` is called.
    """

    def __init__(
        self,
        sampler: Sampler,
        logits: Rows,
        wanted: Seq[Wanted],
        mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS,
        *,
        is_draft: bool = False,
    ) -> None:
        self._sampler = sampler
        self._logits = logits
        self._wanted = wanted
        self._mode = mode
        # Failures are logged at level debug: the step's own sampling fails in the same way.
        self._is_draft = is_draft
        self._sampled: Sampled | None
        try:
            self._sampled = self._sample(wanted)
        except Exception:  # sampling each sequence alone finds the failing sequence
            log.debug("a call for all rows failed", exc_info=True)
            self._sampled = None

    @property
    def device_token_ids(self) -> Any:
        """The sampled tokens on the device, in the order of the sequences that sample one; see `Sampled`."""
        return None if self._sampled is None else self._sampled.device_token_ids

    def results(self) -> list[Result]:
        """Returns one result per sequence. Raises a failure of the device: a later step may have used its tokens."""
        if self._sampled is not None:
            try:
                return _results(self._wanted, self._sampled.result())
            except Exception:
                if self._sampled.device_token_ids is not None:
                    raise
                log.debug("a call for all rows failed", exc_info=True)
        return [self._result_alone(wanted) for wanted in self._wanted]

    def _sample(self, wanted: Seq[Wanted]) -> Sampled:
        choices = _to_choices(wanted)
        if not choices.rows.size and choices.scoring is None:
            return SampledOnHost(Outcome(np.empty(0, np.int32), np.empty(0, np.bool_)))
        return self._sampler.sample(self._logits, choices, self._mode)

    def _result_alone(self, wanted: Wanted) -> Result:
        try:
            [result] = _results([wanted], self._sample([wanted]).result())
        except Exception:  # ends only this request
            message, request_id = "sampling failed: request_id=%s", wanted.request.request_id
            extra = of_request(request_id, wanted.request.trace_headers)
            if self._is_draft:
                log.debug(message, request_id, extra=extra, exc_info=True)
            else:
                log.exception(message, request_id, extra=extra)
            return INTERNAL_ERROR
        return result


def _to_choices(wanted: Seq[Wanted]) -> Choices:
    rows: list[int] = []
    choices: list[Choice] = []
    scores: list[Score] = []
    scored: list[int] = []  # index of each score's choice
    for one in wanted:
        if one.prompt_scores:
            scores += one.prompt_scores
            scored += [-1] * len(one.prompt_scores)
        if one.score is not None:
            scores.append(one.score)
            scored.append(len(rows))
        if one.row is not None:
            rows.append(one.row)
            choices.append(one.choice)
    return Choices.of(rows, choices, _to_scoring(scores, scored) if scores else None)


def _to_scoring(scores: list[Score], choices: list[int]) -> Scoring:
    return Scoring(
        rows=np.array([score.row for score in scores], np.int32),
        choices=np.array(choices, np.int32),
        given=Lists.of([score.given for score in scores]),
        num_best=np.array([score.num_best for score in scores], np.int32),
    )


def _results(wanted: Seq[Wanted], outcome: Outcome) -> list[Result]:
    """Returns the result of each sequence. The sampler's outcome is in the order of `_to_choices`."""
    tokens = zip(outcome.token_ids.tolist(), outcome.is_finite.tolist(), strict=True)
    scores = iter(() if outcome.scores is None else outcome.scores.rows())
    results: list[Result] = []
    for one in wanted:
        prompt_logprobs = [row for _ in one.prompt_scores if (row := next(scores)) is not None]
        logprobs = None if one.score is None else next(scores)
        token_id, is_finite = (None, True) if one.row is None else next(tokens)
        is_scored = one.score is None or logprobs is not None
        if not (is_finite and is_scored and len(prompt_logprobs) == len(one.prompt_scores)):
            results.append(CORRUPT)
        elif one.failure is not None:
            results.append(one.failure)
        else:
            results.append(SampledRow(token_id, logprobs, prompt_logprobs))
    return results
