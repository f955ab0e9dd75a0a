"""Attributes of the span `llm_request` under OpenTelemetry's current names for generative AI.

The default names are vLLM's, some of which are names of older conventions. `OTEL_SEMCONV_STABILITY_OPT_IN` requests the
current names instead. vLLM's names for values that the conventions do not have stay.
"""

import os
from collections.abc import Sequence
from typing import Final

from weft.core.observe.stats import SequenceTimes
from weft.core.observe.tracing import Span
from weft.core.values.types import OutputKind, Request

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
_LATEST: Final = "gen_ai_latest_experimental"
_PROVIDER: Final = "weft"
_RENAMED: Final = {
    "gen_ai.usage.prompt_tokens": "gen_ai.usage.input_tokens",
    "gen_ai.usage.completion_tokens": "gen_ai.usage.output_tokens",
}
# vLLM's names of values that the conventions give only for some requests.
_CHOICES: Final = ("gen_ai.request.n", "gen_ai.request.choice.count")
_FIRST_TOKEN: Final = (
    "gen_ai.latency.time_to_first_token",
    "gen_ai.response.time_to_first_chunk",
)
_EMBEDDINGS: Final = {"embed": "embeddings", "token_embed": "embeddings"}


def are_latest_requested() -> bool:
    """True if the environment requests the current names; values for other kinds of spans are ignored."""
    return _LATEST in [word.strip() for word in os.environ.get(OPT_IN, "").split(",")]


def use_latest(span: Span, request: Request, times: Sequence[SequenceTimes]) -> None:
    """Replaces vLLM's names in the attributes of a whole span, and adds what only the current conventions have."""
    for old, new in _RENAMED.items():
        _rename(span, old, new)
    span.set("gen_ai.provider.name", _PROVIDER)
    span.set("gen_ai.request.model", span.attributes["gen_ai.response.model"])
    if times:  # later answers find the prompt that the first one computed
        first = min(times, key=lambda answer: answer.index)
        span.set("gen_ai.usage.cache_read.input_tokens", first.num_cached_tokens)
    span.set("error.type", span.error)
    if request.pooling is None:
        span.set("gen_ai.operation.name", "text_completion")
        _add_sampling(span, request)
    else:
        task = request.pooling.task
        assert task is not None  # resolved when the request was checked
        span.set("gen_ai.operation.name", _EMBEDDINGS.get(task, task))


def _add_sampling(span: Span, request: Request) -> None:
    params = request.params
    if params.n > 1:
        _rename(span, *_CHOICES)
    else:
        span.attributes.pop(_CHOICES[0], None)
    is_stream = params.output_kind is not OutputKind.FINAL_ONLY
    if is_stream:
        _rename(span, *_FIRST_TOKEN)
        span.set("gen_ai.request.stream", value=True)
    if params.top_k > 0:
        span.set("gen_ai.request.top_k", params.top_k)
    span.set("gen_ai.request.seed", params.seed)
    span.set("gen_ai.request.presence_penalty", params.presence_penalty)
    span.set("gen_ai.request.frequency_penalty", params.frequency_penalty)


def _rename(span: Span, old: str, new: str) -> None:
    if old in span.attributes:
        span.attributes[new] = span.attributes.pop(old)
