"""Reads the probabilities of labels as the next token of prompts, in the engine."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from weft.core.aio.tasks import gather_all
from weft.core.errors import GenerationError
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.types import OutputKind, RequestOutput, SamplingParams
from weft.web.chat.prompt import prepare, with_salt
from weft.web.inference.call import ModelCall, naming

# Maximum running prompts of one HTTP request: enough to fill steps, and few enough to leave places for others.
_MAX_OPEN = 128
# A prompt as two parts, which are joined when it runs: prompts share one part, and all of them may be long.
Split: TypeAlias = tuple[Sequence[int], Sequence[int]]
_LOGITS = (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS)


class Body(Protocol):
    """Fields that every decision API has."""

    @property
    def priority(self) -> int | None: ...

    @property
    def cache_salt(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of one prompt. `scores` are the logprobs of its labels, or their logits if the server reports logits."""

    scores: tuple[float, ...]
    argmax_is_label: bool
    is_logits: bool
    num_prompt_tokens: int
    num_cached_tokens: int

    @property
    def probabilities(self) -> list[float]:
        """Probabilities of the labels among themselves; their sum is 1."""
        top = max(self.scores)
        if top == -math.inf:
            return [1 / len(self.scores)] * len(self.scores)
        weights = [math.exp(score - top) for score in self.scores]
        total = math.fsum(weights)
        return [weight / total for weight in weights]

    @property
    def best(self) -> int:
        """Index of the most probable label."""
        return max(range(len(self.scores)), key=self.scores.__getitem__)

    @property
    def mass(self) -> float | None:
        """Probability of all labels together among all tokens; None if the server reports logits."""
        return None if self.is_logits else math.fsum(map(math.exp, self.scores))


def num_scores(readings: Sequence[Reading]) -> int:
    """Number of the scores of all readings."""
    return sum(len(reading.scores) for reading in readings)


async def read_labels(
    call: ModelCall,
    body: Body,
    prompts: Sequence[Split],
    label_ids: Sequence[Sequence[int]],
    names: Mapping[str, str],
) -> list[Reading]:
    """Returns the reading of each prompt. The first failure ends the others; `names` are fields of the body.

    The first prompt is computed alone, so that the others find the tokens that they share in the prefix cache.
    """
    gate = asyncio.Semaphore(_MAX_OPEN)

    async def read(position: int) -> Reading:
        async with gate:
            await asyncio.sleep(0)  # one prompt begins in each turn of the event loop
            with naming(names):
                start, end = prompts[position]
                labels = tuple(label_ids[position])
                return await _read(call, body, position, [*start, *end], labels)

    first = await read(0)
    return [first, *await gather_all(read(position) for position in range(1, len(prompts)))]


async def _read(
    call: ModelCall, body: Body, position: int, prompt: list[int], label_ids: tuple[int, ...]
) -> Reading:
    client = call.served.client
    params = SamplingParams(
        temperature=0.0,
        max_tokens=1,
        ignore_eos=True,
        logprob_token_ids=[*label_ids],
        output_kind=OutputKind.FINAL_ONLY,
    )
    options: Any = msgspec.structs.replace(
        call.request_options(body.priority), request_id=f"{call.request_id}-{position}"
    )
    with client.preparing(1):
        salted = with_salt(prompt, body.cache_salt)
        request = await prepare(call.served, salted, params, options)
    async with aclosing(client.run(request)) as outputs:
        async for output in outputs:
            if output.outputs and output.outputs[0].logprobs:
                return _to_reading(output, label_ids, is_logits=reports_logits(call))
    raise GenerationError("the request was aborted")


def reports_logits(call: ModelCall) -> bool:
    """True if the server reports logits in place of logprobs."""
    return call.served.client.model_config.logprobs_mode in _LOGITS


def _to_reading(output: RequestOutput, label_ids: tuple[int, ...], *, is_logits: bool) -> Reading:
    (answer,) = output.outputs
    assert answer.logprobs
    row = answer.logprobs[0]
    return Reading(
        scores=tuple(row[token_id].logprob for token_id in label_ids),
        argmax_is_label=answer.token_ids[0] in label_ids,
        is_logits=is_logits,
        num_prompt_tokens=len(output.prompt_token_ids),
        num_cached_tokens=output.num_cached_tokens,
    )
