"""`InputProcessor`: converts a prompt and its parameters to a checked `Request`."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from weft.core.checks.media_tensors import check_placeholders, check_tensors
from weft.core.checks.resolve_params import resolve_params
from weft.core.checks.scalars import check_integer
from weft.core.checks.validate import (
    Limits,
    validate_cache_salt,
    validate_params,
    validate_priority,
    validate_prompt,
    validate_request_id,
)
from weft.core.config.engine import EngineConfig
from weft.core.config.ranks import served_ranks
from weft.core.errors import BadRequest, Unsupported
from weft.core.values.media import check_anchors, check_media, media_salt, owned
from weft.core.values.pictures import ItemPreparer, PlacedItem, PreparedItem
from weft.core.values.prompts import OpenReasoning, Prompt, PromptType, TokensPart
from weft.core.values.speech import NO_GENERATION
from weft.core.values.types import (
    PoolingParams,
    Request,
    RequestOptions,
    SamplingParams,
    StreamingInput,
)
from weft.core.values.unicode import check_text
from weft.text.items import place_items
from weft.text.pooling_inputs import PoolingInputs
from weft.text.prompt_embeds import salt_of
from weft.text.prompts import (
    Tokenization,
    encode_prompt,
    label_of,
    read_prompt,
    read_tokenization,
    size_of,
)
from weft.text.reasoning import read_reasoning
from weft.text.tokenizer import Tokenizer

Params = SamplingParams | PoolingParams
# Checking a token id takes 50 ns: for fewer ids a switch of threads would take longer.
_MANY_IDS = 20_000
# A prompt, or a function that makes it, called once the parameters are known to be valid.
Source = PromptType | Callable[[], PromptType]


class InputProcessor:
    """Makes requests for an engine with this config; thread-safe.

    `limits` replaces the limits of the config. `clock` is monotonic, in seconds. Every `engine_id` begins with
    `engine_id_prefix`. With `items` media are prepared here, and become `Request.items`.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        engine_id_prefix: str = "",
        items: ItemPreparer | None = None,
    ) -> None:
        self._prefix = engine_id_prefix
        limits = limits or Limits.of(config)
        self._tokenizer = tokenizer
        self._limits = limits
        self._eos_token_ids = config.model_config.eos_token_ids
        self._is_pooling = config.pooler_config is not None
        self._rules_reasoning = config.structured_outputs_in_reasoning
        self._pooling = PoolingInputs(config, tokenizer, limits=limits)
        self._size, self._ranks = config.data_parallel_size, served_ranks(config)
        self._media = config.model_config.media
        self._items, self._items_config = items, config.items_config
        self._is_of_speech = config.sounds_config is not None
        self._clock = clock

    def process(self, prompt: Source, params: Params, options: RequestOptions) -> Request:
        """Tokenise, truncate, validate and resolve. Raises `BadRequest` or `Unsupported`."""
        arrived_at = self._clock()
        given = self._given(prompt, params, options)
        return self._read(given, params, options, arrived_at)

    async def prepare(self, prompt: Source, params: Params, options: RequestOptions) -> Request:
        """Like `process`, for the event loop's thread: long texts are processed on another thread."""
        arrived_at = self._clock()
        given = self._given(prompt, params, options)
        items: list[PreparedItem] = []
        if given.media is not None and self._items is not None and not self._is_pooling:
            salt = media_salt(options.media_owner, given.cache_salt)
            items = await self._items.prepare(given.media, salt)
            if not given.media.tensors:
                given = msgspec.structs.replace(given, media=None)
        read = partial(self._read, given, params, options, arrived_at, items)
        num_chars, num_ids = size_of(given)
        # There may be hundreds of bad words, each in two spellings.
        if num_ids > _MANY_IDS or (isinstance(params, SamplingParams) and params.bad_words):
            return await asyncio.to_thread(read)
        return read() if self._tokenizer is None else await self._tokenizer.soon(num_chars, read)

    async def prepare_piece(
        self, piece: StreamingInput, before: list[int], options: RequestOptions
    ) -> Request:
        """Makes the request for a piece of streaming input, which continues the tokens before it."""
        params = piece.sampling_params
        assert params is not None, "the session has filled it in"
        kwargs = {**(options.tokenization_kwargs or {}), "add_special_tokens": False}
        bare = msgspec.structs.replace(options, tokenization_kwargs=kwargs)
        request = await self.prepare(piece.prompt, params, bare if before else options)
        for name, values in (
            ("prompt_embeds", request.prompt_embeds),
            ("media", request.media or request.items),
        ):
            if values:
                raise BadRequest(name, f"{name} does not go with a prompt in pieces")
        if not before:
            return request
        whole = Prompt(
            parts=(TokensPart([*before, *request.prompt_token_ids]),),
            label=request.prompt,
            cache_salt=request.cache_salt,
        )
        options = msgspec.structs.replace(options, tokenization_kwargs=None)
        return self.process(whole, params, options)

    def _given(self, prompt: Source, params: Params, options: RequestOptions) -> Prompt:
        """Checks what does not depend on tokens; returns the prompt, with media of names that are the owner's alone."""
        self._check(params, options)
        given = read_prompt(prompt() if callable(prompt) else prompt)
        validate_cache_salt(given.cache_salt)
        if given.media is None or isinstance(params, PoolingParams):
            return given
        check_media(given.media, self._media)
        media = owned(given.media, options.media_owner, given.cache_salt)
        return msgspec.structs.replace(given, media=media)

    def _check(self, params: Params, options: RequestOptions) -> None:
        _check_options(options)
        if options.data_parallel_rank is not None:
            self._check_rank(options.data_parallel_rank)
        if isinstance(params, PoolingParams):
            self._pooling.check(params)
        elif self._is_pooling:
            raise Unsupported("generate is not supported by this model: it was opened for pooling")
        elif self._is_of_speech:
            raise Unsupported(NO_GENERATION)
        else:
            validate_params(params, self._limits)

    def _check_rank(self, rank: int) -> None:
        check_integer("data_parallel_rank", rank, 0, self._size - 1)
        if rank not in self._ranks:
            first, last = self._ranks[0], self._ranks[-1]
            own = f"rank {first}" if first == last else f"ranks {first} to {last}"
            raise BadRequest(
                "data_parallel_rank",
                f"data_parallel_rank {rank} is another server's: this one has {own} of {self._size}",
            )

    def _read(
        self,
        prompt: Prompt,
        params: Params,
        options: RequestOptions,
        arrived_at: float,
        prepared: Sequence[PreparedItem] = (),
    ) -> Request:
        """Makes a request of a prompt and checked parameters; `prepared` are its media, if they are prepared here.

        A truncated prompt loses its start, unless the tokenizer or `truncation_side` says otherwise; so does a prompt
        of token ids.
        """
        # Unique, even if a caller uses a request id again.
        engine_id = f"{self._prefix}{options.request_id}-{secrets.token_hex(4)}"
        if isinstance(params, PoolingParams):
            return self._pooling.read(prompt, params, options, engine_id, arrived_at)
        kwargs = options.tokenization_kwargs or {}
        how = read_tokenization(kwargs, params.truncate_prompt_tokens, self._limits)
        if params.stop and self._tokenizer is None:
            raise BadRequest("stop", "stop strings need a tokenizer, and this model has none")
        if prepared or prompt.media is not None:
            self._check_media(prompt, params, how, prepared)
        token_ids, embeds = encode_prompt(prompt, how, self._tokenizer, self._limits)
        if prompt.media is not None:
            check_placeholders(prompt.media.tensors, token_ids)
        items: list[PlacedItem] = []
        if self._items_config is not None:
            anchors = self._items_config.anchors
            token_ids, items = place_items(token_ids, prepared, anchors, self._tokenizer)
        validate_prompt(token_ids, self._limits)
        if self._media is not None and self._items_config is None:
            check_anchors(token_ids, prompt.media, self._media)
        if embeds:
            _check_beside_embeds(params, items)
        resolved = resolve_params(params, len(token_ids), self._limits)
        bad_words = resolved.bad_words or resolved.bad_words_token_ids
        if self._rules_reasoning:
            resolved = msgspec.structs.replace(resolved, grammar_from_first_token=True)
        return Request(
            request_id=options.request_id,
            engine_id=engine_id,
            prompt_token_ids=token_ids,
            params=resolved,
            eos_token_ids=self._eos_token_ids,
            # Drawn once, here, so that a preempted request samples the same tokens again.
            seed=secrets.randbits(63) if resolved.seed is None else resolved.seed,
            arrival_time=arrived_at,
            prompt=label_of(prompt) if options.prompt_text is None else options.prompt_text,
            priority=options.priority,
            cache_salt=salt_of(embeds, prompt.cache_salt) if embeds else prompt.cache_salt,
            data_parallel_rank=options.data_parallel_rank,
            trace_headers=options.trace_headers,
            lora_request=options.lora_request,
            bad_token_ids=self._bad_token_ids(resolved) if bad_words else [],
            reasoning=self._reasoning(resolved, options, token_ids),
            prompt_embeds=embeds,
            media=None if items else prompt.media,
            items=items,
        )

    def _check_media(
        self,
        prompt: Prompt,
        params: SamplingParams,
        how: Tokenization,
        prepared: Sequence[PreparedItem],
    ) -> None:
        if prepared:
            _check_beside_media(params, how, are_items=True)
        if prompt.media is not None:
            check_tensors(prompt.media.tensors)
            _check_beside_media(params, how, are_items=bool(prompt.media.items))

    def _reasoning(
        self, params: SamplingParams, options: RequestOptions, token_ids: list[int]
    ) -> OpenReasoning | None:
        ended, kwargs = options.reasoning_ended, options.reasoning_parser_kwargs
        if ended is None and kwargs is None and params.thinking_token_budget is None:
            return None
        return read_reasoning(params, ended, kwargs, token_ids, self._tokenizer)

    def _bad_token_ids(self, params: SamplingParams) -> list[list[int]]:
        """Returns the token ids of each word at the start of a text, and also after a space if these differ. The rule
        is vLLM's, so that answers are equal: the ids after a space are used only if their first id differs and their
        number is the same.
        """
        found = list(params.bad_words_token_ids or ())
        if params.bad_words and self._tokenizer is None:
            raise BadRequest("bad_words", "bad_words need a tokenizer, and this model has none")
        for word in map(str.lstrip, params.bad_words or ()):
            assert self._tokenizer is not None
            first, after_space = (
                self._tokenizer.encode(text, add_special_tokens=False)
                for text in (word, f" {word}")
            )
            found.append(first)
            if first[:1] != after_space[:1] and len(first) == len(after_space):
                found.append(after_space)
        return [list(ids) for ids in dict.fromkeys(map(tuple, found)) if ids]


def _check_beside_media(params: SamplingParams, how: Tokenization, *, are_items: bool) -> None:
    """Refuses options that depend on the token count of a prompt with media, which is known only later."""
    for name, value in (
        ("truncate_prompt_tokens", how.truncate_prompt_tokens),
        ("prompt_logprobs", params.prompt_logprobs if are_items else None),
    ):
        if value is not None:
            raise BadRequest(name, f"{name} does not go with media in the prompt")


def _check_beside_embeds(params: SamplingParams, items: Sequence[PlacedItem]) -> None:
    if items:
        raise BadRequest("prompt_embeds", "prompt_embeds does not go with media in the prompt")
    if params.prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs", "prompt_logprobs does not go with prompt_embeds")


def _check_options(options: RequestOptions) -> None:
    """Checks the options, except adapter, tokenization and reasoning, which are checked where they are used."""
    validate_request_id(options.request_id)
    validate_priority(options.priority)
    if options.prompt_text is not None:
        check_text("prompt_text", options.prompt_text)
    for header in (options.trace_headers or {}).items():
        for text in header:
            check_text("trace_headers", text)
