"""Converts the arguments of `encode` to a checked `Request`: tokenizes, truncates, validates."""

from collections.abc import Mapping
from typing import Any

from weft.core.checks.pooling import validate_pooling
from weft.core.checks.validate import (
    Limits,
    validate_prompt,
)
from weft.core.config.engine import EngineConfig
from weft.core.errors import BadRequest, Unsupported
from weft.core.values.prompts import Prompt, TextPart, TokensPart
from weft.core.values.types import PoolingParams, Request, RequestOptions, SamplingParams
from weft.text.frame import Encoded
from weft.text.prompts import (
    check_length,
    fitting,
    label_of,
    no_tokenizer,
    read_tokenization,
    truncated,
)
from weft.text.tokenizer import Tokenizer

_IDLE = SamplingParams(max_tokens=None, detokenize=False)


class PoolingInputs:
    """Makes the requests of `encode` for an engine with this config; thread-safe."""

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer | None, *, limits: Limits
    ) -> None:
        self._limits = limits
        self._pooler = config.pooler_config
        self._tokenizer = tokenizer

    def check(self, params: PoolingParams) -> None:
        """Refuse parameters before the prompt is looked at."""
        validate_pooling(params, self._pooler, self._limits)

    def read(
        self,
        prompt: Prompt,
        params: PoolingParams,
        options: RequestOptions,
        engine_id: str,
        arrived_at: float,
    ) -> Request:
        """Makes a request of a prompt and checked parameters.

        A truncated text keeps its special tokens, and loses its end unless the tokenizer or `truncation_side` says
        otherwise.
        """
        for name in ("lora_request", "reasoning_ended"):
            if getattr(options, name) is not None:
                raise Unsupported(f"{name} is not supported yet")
        if prompt.media is not None:
            raise Unsupported("media are not supported by encode: it takes texts and token ids")
        resolved = validate_pooling(params, self._pooler, self._limits)
        encoded = self._encode(prompt, params, options.tokenization_kwargs or {})
        validate_prompt(encoded.ids, self._limits, num_new=0)
        assert self._pooler is not None, "validate_pooling has refused it otherwise"
        assert resolved.task is not None
        return Request(
            request_id=options.request_id,
            engine_id=engine_id,
            prompt_token_ids=encoded.ids,
            params=_IDLE,
            eos_token_ids=(),
            seed=0,
            arrival_time=arrived_at,
            prompt=label_of(prompt),
            priority=options.priority,
            cache_salt=prompt.cache_salt,
            data_parallel_rank=options.data_parallel_rank,
            trace_headers=options.trace_headers,
            pooling=resolved,
            pooling_kind=self._pooler.kinds[resolved.task],
            token_type_ids=encoded.type_ids if any(encoded.type_ids) else None,
        )

    def _encode(self, prompt: Prompt, params: PoolingParams, kwargs: Mapping[str, Any]) -> Encoded:
        how = read_tokenization(kwargs, params.truncate_prompt_tokens, self._limits)
        named = None if self._tokenizer is None else self._tokenizer.named_truncation_side
        side = how.side or named or "right"
        most = self._limits.max_model_len
        match prompt.parts:
            case (TokensPart(token_ids=ids),):
                return Encoded(truncated(ids, how.truncate_prompt_tokens, side, most), [])
            case (TextPart(text=text),):
                texts = [self._usual(text)]
            case _:
                raise BadRequest("prompt", "encode takes a prompt of one part, text or token ids")
        if self._tokenizer is None:
            raise no_tokenizer()
        if prompt.second is not None:
            texts.append(self._usual(prompt.second.text, is_second=True))
        if how.truncate_prompt_tokens is None:
            check_length(sum(map(len, texts)), self._tokenizer, self._limits)
        texts = [fitting(text, how, side, self._tokenizer, self._limits) for text in texts]
        return self._tokenizer.encode_framed(
            texts,
            add_special_tokens=how.add_special_tokens,
            max_tokens=most if how.truncate_prompt_tokens == -1 else how.truncate_prompt_tokens,
            side=side,
        )

    def _usual(self, text: str, *, is_second: bool = False) -> str:
        """The text with the prefix that the model's authors prescribe."""
        assert self._pooler is not None
        text = text if is_second else self._pooler.prompt + text
        return text.lower() if self._pooler.lowercases else text
