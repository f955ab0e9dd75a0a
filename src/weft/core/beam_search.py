"""Beam search over any `EngineClient`: each step is a request of one token for every beam.

What beams have in common comes from the engine's prefix cache. Nothing is drawn: equal requests get
equal answers.
"""

import math
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import msgspec

from weft.core.client import EngineClient
from weft.core.errors import BadRequest
from weft.core.prompts import TokensPrompt
from weft.core.tasks import gather_all
from weft.core.types import (
    CompletionOutput,
    FinishReason,
    OutputKind,
    PositionLogprobs,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)
from weft.core.validate import Limits, check_integer, check_number

MAX_PENALTY = 10


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to search: the `beam_width` best continuations are followed, and that many are answered.

    A beam scores its summed log-probability over its length, prompt and answer without the token that
    ended it, to the power of `length_penalty`. `temperature` is there for programs that give 0.
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
    """A continuation. One that has ended keeps the token that ended it in `token_ids`."""

    token_ids: tuple[int, ...] = ()
    rows: tuple[PositionLogprobs, ...] = ()
    logprob: float = 0.0
    finish_reason: FinishReason = FinishReason.LENGTH

    @property
    def has_ended(self) -> bool:
        """Whether its last token is an end-of-sequence that counts as one."""
        return self.finish_reason is FinishReason.STOP

    def score(self, num_prompt_tokens: int, length_penalty: float) -> float:
        """What beams are compared by."""
        length = num_prompt_tokens + len(self.token_ids) - self.has_ended
        return self.logprob / math.pow(max(length, 1), length_penalty)


def check_beam_search(params: BeamSearchParams, limits: Limits) -> None:
    """Raise `BadRequest` for what cannot be searched."""
    check_integer("beam_width", params.beam_width, 1, max_beam_width(limits))
    check_integer("max_tokens", params.max_tokens, 1, limits.max_sequence_len)
    check_number("length_penalty", params.length_penalty, -MAX_PENALTY, MAX_PENALTY)
    if params.temperature != 0:
        raise BadRequest("temperature", "temperature must be 0: beams are not drawn")


def max_beam_width(limits: Limits) -> int:
    """Of every beam twice as many tokens are looked at: half of them may end it."""
    room = limits.vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
    return max(1, room // 2)


async def search_beams(
    client: EngineClient, request: Request, options: RequestOptions, params: BeamSearchParams
) -> list[Beam]:
    """The best beams behind the prompt of a checked request, best first."""
    if request.prompt_embeds:
        raise BadRequest("prompt_embeds", "prompt_embeds does not go with beam search")
    num_prompt_tokens = len(request.prompt_token_ids)

    def score(beam: Beam) -> float:
        return beam.score(num_prompt_tokens, params.length_penalty)

    eos_token_ids = () if params.ignore_eos else client.model_config.eos_token_ids
    step = _Step(client, request, options, params.beam_width)
    beams, ended = [Beam()], list[Beam]()
    for _ in range(params.max_tokens):
        outputs = await step.run(beams)
        if any(output.finish_reason is FinishReason.ABORT for output in outputs):
            beams = [replace(beam, finish_reason=FinishReason.ABORT) for beam in beams]
            break
        found = [
            candidate
            for beam, output in zip(beams, outputs, strict=True)
            for candidate in _candidates(beam, output, eos_token_ids)
        ]
        ended += [beam for beam in found if beam.has_ended]
        beams = _best([beam for beam in found if not beam.has_ended], params.beam_width, score)
        if not beams:
            break
    return _best([*ended, *beams], params.beam_width, score)


async def run_beam_search(
    client: EngineClient, request: Request, options: RequestOptions, length_penalty: float
) -> AsyncGenerator[RequestOutput, None]:
    """One output, with a beam for each of the n answers."""
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
    beams = await search_beams(client, request, options, params)
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
    """Asks the engine for the next token of several beams at once."""

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
        """One output a beam; the first error ends the others."""
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


def _candidates(beam: Beam, output: CompletionOutput, eos_token_ids: Collection[int]) -> list[Beam]:
    """The beam with each of its likeliest next tokens, likeliest first."""
    (row,) = output.logprobs or ({},)
    return [
        Beam(
            token_ids=(*beam.token_ids, token_id),
            rows=(*beam.rows, _chosen_first(row, token_id)),
            logprob=beam.logprob + entry.logprob,
            finish_reason=(FinishReason.STOP if token_id in eos_token_ids else FinishReason.LENGTH),
        )
        for token_id, entry in row.items()
    ]


def _chosen_first(row: PositionLogprobs, token_id: int) -> PositionLogprobs:
    """As rows of an answer are: the token that came before those that might have."""
    return {token_id: row[token_id], **row}


def _best(beams: list[Beam], num_beams: int, score: Callable[[Beam], float]) -> list[Beam]:
    """Of beams with one score those found first."""
    return sorted(beams, key=score, reverse=True)[:num_beams]
