"""`InputProcessor`: the one place in which a prompt and its parameters become a checked `Request`."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import msgspec

from weft.core.config import EngineConfig
from weft.core.errors import BadRequest
from weft.core.types import (
    PoolingParams,
    PromptType,
    Request,
    RequestOptions,
    SamplingParams,
    StreamingInput,
    TokensPrompt,
)
from weft.core.validate import Limits, validate_priority, validate_request_id
from weft.text.inputs import SamplingInputs, size_of
from weft.text.pooling_inputs import PoolingInputs
from weft.text.tokenizer import Tokenizer

Params = SamplingParams | PoolingParams
# Checking a token id takes 50 ns: fewer are checked sooner than threads are switched.
_MANY_IDS = 20_000
# A prompt, or what makes it: that is asked once the parameters are known to be good.
Prompt = PromptType | Callable[[], PromptType]


class InputProcessor:
    """For an engine with this config; safe to share between threads.

    `limits` are the config's own, unless somebody knows better. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = limits or Limits.of(config)
        self._tokenizer = tokenizer
        self._sampling = SamplingInputs(config, tokenizer, limits=limits)
        self._pooling = PoolingInputs(config, tokenizer, limits=limits)
        self._num_ranks = config.data_parallel_size
        self._clock = clock

    def process(self, prompt: Prompt, params: Params, options: RequestOptions) -> Request:
        """Tokenise, truncate, validate and resolve. Raises `BadRequest` or `Unsupported`."""
        arrived_at = self._clock()
        self._check(params, options)
        given = prompt() if callable(prompt) else prompt
        return self._read(given, params, options, arrived_at)

    async def prepare(self, prompt: Prompt, params: Params, options: RequestOptions) -> Request:
        """`process`, for an event loop's thread: a long text does not hold it."""
        arrived_at = self._clock()
        self._check(params, options)
        given = prompt() if callable(prompt) else prompt
        read = partial(self._read, given, params, options, arrived_at)
        num_chars, num_ids = size_of(given)
        # Bad words may be hundreds, each in two spellings.
        if num_ids > _MANY_IDS or (isinstance(params, SamplingParams) and params.bad_words):
            return await asyncio.to_thread(read)
        return read() if self._tokenizer is None else await self._tokenizer.soon(num_chars, read)

    async def prepare_piece(
        self, piece: StreamingInput, before: list[int], options: RequestOptions
    ) -> Request:
        """The request that a piece of streaming input makes behind the tokens before it."""
        params = piece.sampling_params
        assert params is not None, "the session has filled it in"
        if not before:
            return await self.prepare(piece.prompt, params, options)
        kwargs = {**(options.tokenization_kwargs or {}), "add_special_tokens": False}
        bare = msgspec.structs.replace(options, tokenization_kwargs=kwargs)
        request = await self.prepare(piece.prompt, params, bare)
        whole: TokensPrompt = {"prompt_token_ids": [*before, *request.prompt_token_ids]}
        if request.prompt is not None:
            whole["prompt"] = request.prompt
        if request.cache_salt is not None:
            whole["cache_salt"] = request.cache_salt
        options = msgspec.structs.replace(options, tokenization_kwargs=None)
        return self.process(whole, params, options)

    def _check(self, params: Params, options: RequestOptions) -> None:
        validate_request_id(options.request_id)
        validate_priority(options.priority)
        rank = options.data_parallel_rank
        if rank is not None and not 0 <= rank < self._num_ranks:
            raise BadRequest(
                "data_parallel_rank",
                f"data_parallel_rank must be in 0 to {self._num_ranks - 1}, got {rank}",
                rank,
            )
        if isinstance(params, PoolingParams):
            self._pooling.check(params)
        else:
            self._sampling.check(params)

    def _read(
        self, prompt: PromptType, params: Params, options: RequestOptions, arrived_at: float
    ) -> Request:
        if isinstance(params, PoolingParams):
            return self._pooling.read(prompt, params, options, arrived_at)
        return self._sampling.read(prompt, params, options, arrived_at)
