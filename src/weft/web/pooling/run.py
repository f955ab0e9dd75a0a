"""Several prompts through the engine at once: their outputs in order, or the first error."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from weft.core.errors import GenerationError
from weft.core.tasks import gather_all
from weft.core.types import PoolingParams, PoolingRequestOutput, PromptType, RequestOptions
from weft.schema.pooling import PoolingFields, PoolingUsage
from weft.web.chat.prompt import with_salt
from weft.web.inference.call import ModelCall
from weft.web.pooling.inputs import Prompts

# Of one HTTP request; enough to fill steps, and few enough to leave places for others.
_MAX_OPEN = 128


@dataclass(frozen=True, slots=True)
class PoolingJob:
    """One prompt, and what is to be made of it."""

    prompt: PromptType
    params: PoolingParams
    kwargs: dict[str, Any] = field(default_factory=dict)


def jobs_of(prompts: Prompts, params: PoolingParams, cache_salt: str | None) -> list[PoolingJob]:
    """One for each prompt."""
    return [
        PoolingJob(with_salt(prompt, cache_salt), params, prompts.kwargs)
        for prompt in prompts.prompts
    ]


async def run_jobs(
    call: ModelCall, body: PoolingFields, jobs: Sequence[PoolingJob]
) -> list[PoolingRequestOutput]:
    """The output of each job. The first that fails ends the others."""
    client = call.served.client
    gate = asyncio.Semaphore(_MAX_OPEN)
    turn = asyncio.Lock()

    async def run(position: int, job: PoolingJob) -> PoolingRequestOutput:
        async with gate:
            async with turn:  # one begins in each turn of the event loop: others come between
                await asyncio.sleep(0)
            options = RequestOptions(
                request_id=f"{call.request_id}-{position}",
                trace_headers=call.trace_headers,
                priority=body.priority or 0,
                tokenization_kwargs=job.kwargs,
            )
            with client.preparing(1):
                request = await client.prepare(job.prompt, job.params, options)
            async with aclosing(client.run_pooling(request)) as outputs:
                async for output in outputs:
                    if not output.data:
                        raise GenerationError("the request was aborted")
                    return output
        raise GenerationError("the engine ended the request without a result")

    return await gather_all(run(position, job) for position, job in enumerate(jobs))


def usage_of(outputs: Sequence[PoolingRequestOutput]) -> PoolingUsage:
    """The tokens of all prompts."""
    total = sum(len(output.prompt_token_ids) for output in outputs)
    return PoolingUsage(prompt_tokens=total, total_tokens=total)
