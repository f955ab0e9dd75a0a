"""Beam search over any `EngineClient`: each step is a request of one token for every beam.

The KV of prefixes that beams share comes from the engine's prefix cache. No token is drawn at random: equal requests
get equal answers.
"""

import asyncio
import heapq
import math
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import TypeVar

import msgspec

from weft.core.aio.tasks import gather_all
from weft.core.checks.scalars import check_integer, check_number
from weft.core.checks.validate import Limits
from weft.core.client import EngineClient
from weft.core.errors import BadRequest
from weft.core.values.prompts import TokensPrompt
from weft.core.values.types import (
    CompletionOutput,
    FinishReason,
    OutputKind,
    PositionLogprobs,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)

MAX_PENALTY = 10
T = TypeVar("T", "Beam", "_Candidate")


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a beam search, which keeps the `beam_width` best continuations and returns as many.

    The score of a beam is its summed log-probability divided by its length to the power of `length_penalty`. The length
    counts the tokens of prompt and answer without the token that ended the beam. `temperature` exists for clients that
    send 0; other values are refused.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Beam:
    """One continuation of the prompt; `token_ids` of an ended beam include the token that ended it.

    Beams are compared by `score`. `rows` is empty if the request has no `logprobs`.
    """

    token_ids: tuple[int, ...] = ()
    rows: tuple[PositionLogprobs, ...] = ()
    logprob: float = 0.0
    score: float = 0.0
    finish_reason: FinishReason = FinishReason.LENGTH

    @property
    def has_ended(self) -> bool:
        """True if the last token is an end-of-sequence token and the request does not set `ignore_eos`."""
        return self.finish_reason is FinishReason.STOP


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A beam and a token that may follow it. The extended beam is built only for candidates that are selected."""

    beam: Beam
    row: PositionLogprobs
    token_id: int
    logprob: float
    score: float
    has_ended: bool

    def to_beam(self, num_logprobs: int | None) -> Beam:
        """Returns the beam extended by the token; its last row of logprobs has the token first, then the `num_logprobs`
        best.
        """
        rows = self.beam.rows
        if num_logprobs is not None:
            likeliest = dict(islice(self.row.items(), num_logprobs))
            rows = (*rows, {self.token_id: self.row[self.token_id], **likeliest})
        return Beam(
            token_ids=(*self.beam.token_ids, self.token_id),
            rows=rows,
            logprob=self.logprob,
            score=self.score,
            finish_reason=FinishReason.STOP if self.has_ended else FinishReason.LENGTH,
        )


def check_beam_search(params: BeamSearchParams, limits: Limits) -> None:
    """Raises `BadRequest` for parameters outside the limits."""
    check_integer("beam_width", params.beam_width, 1, max_beam_width(limits))
    check_integer("max_tokens", params.max_tokens, 1, limits.max_sequence_len)
    check_number("length_penalty", params.length_penalty, -MAX_PENALTY, MAX_PENALTY)
    if params.temperature != 0:
        raise BadRequest(
            "temperature", "temperature must be 0 for beam search, which samples no tokens"
        )


def max_beam_width(limits: Limits) -> int:
    """Returns the largest allowed beam width: a beam needs logprobs of twice that many tokens, as half may end it."""
    room = limits.vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
    return max(1, room // 2)


async def search_beams(
    client: EngineClient,
    request: Request,
    options: RequestOptions,
    params: BeamSearchParams,
    *,
    num_logprobs: int | None = None,
) -> list[Beam]:
    """Returns the best beams for the prompt of a checked request, best first.

    With `num_logprobs` each beam has, for each of its tokens, a row of that many logprobs.
    """
    if request.prompt_embeds:
        raise BadRequest("prompt_embeds", "prompt_embeds cannot be combined with beam search")
    width = params.beam_width
    eos_token_ids = () if params.ignore_eos else client.model_config.eos_token_ids
    step = _Step(client, request, options, width)
    beams, ended = [Beam()], list[Beam]()
    for num_tokens in range(1, params.max_tokens + 1):
        outputs = await step.run(beams)
        if any(output.finish_reason is FinishReason.ABORT for output in outputs):
            beams = [replace(beam, finish_reason=FinishReason.ABORT) for beam in beams]
            break
        lengths = _Lengths(len(request.prompt_token_ids) + num_tokens, params.length_penalty)
        going, stopped = list[_Candidate](), list[_Candidate]()
        for beam, output in zip(beams, outputs, strict=True):
            found = list(_candidates(beam, output, lengths, eos_token_ids))
            going = _best([*going, *(one for one in found if not one.has_ended)], width)
            stopped = _best([*stopped, *(one for one in found if one.has_ended)], width)
            await asyncio.sleep(0)  # a beam has hundreds of candidates: other tasks run between
        ended = _best([*ended, *(one.to_beam(num_logprobs) for one in stopped)], width)
        beams = [one.to_beam(num_logprobs) for one in going]
        if not beams:
            break
    return _best([*ended, *beams], width)


async def run_beam_search(
    client: EngineClient, request: Request, options: RequestOptions, length_penalty: float
) -> AsyncGenerator[RequestOutput, None]:
    """Yields one output, with a beam for each of the n answers."""
    requested = request.params
    assert requested.max_tokens is not None, "a checked request has a number"
    params = BeamSearchParams(
        beam_width=requested.n,
        max_tokens=requested.max_tokens,
        ignore_eos=requested.ignore_eos,
        length_penalty=length_penalty,
        include_stop_str_in_output=requested.include_stop_str_in_output,
        skip_special_tokens=requested.skip_special_tokens,
    )
    beams = await search_beams(client, request, options, params, num_logprobs=requested.logprobs)
    yield RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=[_answer(client, index, beam, request, params) for index, beam in enumerate(beams)],
        is_finished=True,
    )


def _answer(
    client: EngineClient, index: int, beam: Beam, request: Request, params: BeamSearchParams
) -> CompletionOutput:
    is_cut = beam.has_ended and not params.include_stop_str_in_output
    token_ids = list(beam.token_ids[:-1] if is_cut else beam.token_ids)
    return CompletionOutput(
        index=index,
        text=client.renderer.decode(token_ids, skip_special_tokens=params.skip_special_tokens),
        token_ids=token_ids,
        cumulative_logprob=beam.logprob,
        logprobs=None if request.params.logprobs is None else beam.rows[: len(token_ids)],
        finish_reason=beam.finish_reason,
        stop_reason=beam.token_ids[-1] if beam.has_ended else None,
    )


class _Step:
    """Requests the next token of several beams from the engine at the same time."""

    def __init__(
        self, client: EngineClient, request: Request, options: RequestOptions, beam_width: int
    ) -> None:
        self._client = client
        self._request = request
        self._options = msgspec.structs.replace(options, tokenization_kwargs=None)
        self._num_steps = 0
        self._params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprobs=2 * beam_width,
            detokenize=False,
            output_kind=OutputKind.FINAL_ONLY,
        )

    async def run(self, beams: Sequence[Beam]) -> list[CompletionOutput]:
        """Returns one output per beam; the first error aborts the requests of the other beams."""
        self._num_steps += 1
        return await gather_all(self._extend(beam, position) for position, beam in enumerate(beams))

    async def _extend(self, beam: Beam, position: int) -> CompletionOutput:
        prompt: TokensPrompt = {
            "prompt_token_ids": [*self._request.prompt_token_ids, *beam.token_ids]
        }
        if self._request.cache_salt is not None:
            prompt["cache_salt"] = self._request.cache_salt
        request_id = f"{self._options.request_id}-{self._num_steps}-{position}"
        options = msgspec.structs.replace(self._options, request_id=request_id)
        request = await self._client.prepare(prompt, self._params, options)
        async with aclosing(self._client.run(request)) as outputs:
            async for output in outputs:
                return output.outputs[0]
        raise AssertionError("an engine's stream ends with a finished output")


class _Lengths:
    """Divides summed log-probabilities by the length of the sequence, without the token that ends a sequence."""

    def __init__(self, num_tokens: int, penalty: float) -> None:
        self._going = math.pow(max(num_tokens, 1), penalty)
        self._ended = math.pow(max(num_tokens - 1, 1), penalty)

    def score(self, logprob: float, *, has_ended: bool) -> float:
        """Returns the score of a sequence with this summed log-probability; `has_ended`: its last token ended it."""
        return logprob / (self._ended if has_ended else self._going)


def _candidates(
    beam: Beam, output: CompletionOutput, lengths: _Lengths, eos_token_ids: Collection[int]
) -> Iterator[_Candidate]:
    """Yields the beam with each of its most likely next tokens, most likely first."""
    (row,) = output.logprobs or ({},)
    for token_id, entry in row.items():
        has_ended = token_id in eos_token_ids
        logprob = beam.logprob + entry.logprob
        score = lengths.score(logprob, has_ended=has_ended)
        yield _Candidate(beam, row, token_id, logprob, score, has_ended)


def _best(found: list[T], num_best: int) -> list[T]:
    """Returns the candidates with the highest scores, best first; equal scores keep their order."""
    return heapq.nlargest(num_best, found, key=attrgetter("score"))
