"""`LLM`: an engine inside a Python program, without servers and without `async`."""

import atexit
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import msgspec

from weft.core.aio.loop_thread import LoopThread
from weft.core.aio.tasks import gather_all
from weft.core.beam_search import BeamSearchParams, check_beam_search, search_beams
from weft.core.checks.scoring import cosine, is_cross_encoder, pair_up
from weft.core.client import EngineClient
from weft.core.errors import BadRequest, Unsupported
from weft.core.observe.metrics import Metrics
from weft.core.observe.progress_bar import progress_bar
from weft.core.values.media import PROCESSOR_KWARGS, Media
from weft.core.values.prompts import Prompt, PromptType, TextPart
from weft.core.values.types import (
    LoRARequest,
    OutputKind,
    PoolingParams,
    PoolingRequestOutput,
    PositionLogprobs,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)
from weft.core.values.weight_transfer import WeightTransferInitRequest, WeightTransferUpdateRequest
from weft.engine.clients.data_parallel import start_engines
from weft.engine.llm.llm_options import fit_options
from weft.engine.llm.llm_tokenizer import LLMTokenizer
from weft.engine.llm.metric_values import Metric, read_metrics
from weft.model.open import Checkpoint
from weft.text.chat_media import take_media
from weft.text.media_data import with_picture_urls
from weft.text.templates.chat import ChatTemplate, Message
from weft.text.tokenizer import read_special_tokens

P = ParamSpec("P")
T = TypeVar("T")

# Arguments of `ChatTemplate.render`; all other keyword arguments of `chat` are variables of the template.
_RENDER_ARGUMENTS = ("tools", "documents", "add_generation_prompt", "continue_final_message")
_CONTENT_FORMAT = "chat_template_content_format"  # of vLLM


class BeamSearchSequence(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt with one of its continuations. `cum_logprob` and `logprobs` are about the continuation."""

    tokens: list[int]
    text: str
    cum_logprob: float
    logprobs: list[PositionLogprobs]


class BeamSearchOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Continuations of one prompt, best first."""

    sequences: list[BeamSearchSequence]


def _waiting(
    method: Callable[Concatenate[EngineClient, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[LLM, P], T]":
    """Returns a method of `LLM` that calls a method of `EngineClient` and blocks until its result."""

    @wraps(method)
    def call(self: "LLM", /, *args: P.args, **kwargs: P.kwargs) -> T:
        work: Coroutine[Any, Any, T] = getattr(self._client, method.__name__)(*args, **kwargs)
        return self._loop.wait(work)

    return call


class LLM:
    """A loaded model for text generation or pooling. Its settings are the fields of `EngineOptions`.

    vLLM's settings are accepted too, with the meaning that `weft serve` gives to the flags of `vllm serve`
    (docs/reference/vllm-flags.md).

    The engine and its event loop have threads of their own, so `LLM` works in scripts, notebooks and inside running
    event loops. `close` (or the end of a `with` block) frees all resources.
    """

    def __init__(self, model: str = "embedded:tiny", **options: Any) -> None:
        fitted = fit_options(model, options)
        config = fitted.config
        self._template = _template(fitted.checkpoint)
        self._request_ids = itertools.count()
        self._default_params = config.model_config.default_sampling_params
        self._loop = LoopThread("weft-offline")
        try:
            self._metrics = Metrics()
            self._client = self._loop.wait(start_engines(fitted.checkpoint, config, self._metrics))
        except BaseException:
            self._loop.close()
            raise
        # Without this, a script that ends without `close` would unload the native core while its threads run.
        atexit.register(self.close)

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Returns the finished output of each prompt, in order.

        A prompt is a text, `{"prompt": text}`, `{"prompt_token_ids": ids}` or a list of ids; a single prompt counts as
        a list of one. One `SamplingParams` applies to all prompts; None means the model's own defaults. The first
        prompt that is rejected raises an error, and the others are aborted. `use_tqdm` shows a progress bar if stderr
        is a terminal; other engines use the same name. The adapter in `lora_request`, one for all prompts or one for
        each, is loaded if needed; it requires `enable_lora=True`.
        """
        all_prompts = _as_list(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        all_params = _for_each(all_prompts, "sampling_params", sampling_params)
        adapters = _for_each(all_prompts, "lora_request", lora_request)
        work = [
            self._generate_one(
                prompt,
                params,
                {"lora_request": adapter, "tokenization_kwargs": tokenization_kwargs},
            )
            for prompt, params, adapter in zip(all_prompts, all_params, adapters, strict=True)
        ]
        return self._run_all(work, has_bar=use_tqdm)

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        *,
        lora_request: LoRARequest | None = None,
        use_tqdm: bool = False,
    ) -> list[BeamSearchOutput]:
        """Returns the best continuations of each prompt, in the prompts' order, best first."""
        check_beam_search(params, self._client.info.limits)
        work = [self._search_one(prompt, params, lora_request) for prompt in _as_list(prompts)]
        return self._run_all(work, has_bar=use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        **template: Any,
    ) -> list[RequestOutput]:
        """Returns the next message of each conversation. `messages` is one conversation, or a list of conversations.

        A conversation is a list of messages. `template` has the arguments of `ChatTemplate.render`: `tools`,
        `documents`, `add_generation_prompt`, `continue_final_message`, and the model's own template variables, which
        may also be in `chat_template_kwargs`. Contents may have media parts in OpenAI's form, and pictures of Pillow
        as `{"type": "image_pil", "image_pil": picture}`, if the model takes media.
        """
        if self._template is None:
            raise Unsupported("this model has no chat template; use generate")
        if template.pop(_CONTENT_FORMAT, "auto") != "auto":
            raise Unsupported(f"{_CONTENT_FORMAT}: the template decides; leave it out")
        own = {name: template.pop(name) for name in _RENDER_ARGUMENTS if name in template}
        variables = {**(chat_template_kwargs or {}), **template}
        prompts: list[PromptType] = []
        for conversation in _as_chats(messages):
            bare, media = self._take_media(conversation, mm_processor_kwargs)
            text = self._template.render(bare, **own, template_kwargs=variables)
            prompts.append(text if media is None else Prompt(parts=(TextPart(text),), media=media))
        # The template writes the special tokens itself.
        as_written = {"add_special_tokens": False}
        return self.generate(
            prompts,
            sampling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            tokenization_kwargs=as_written,
        )

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """Returns the pooled output of each prompt, in order; for pooling models."""
        params = pooling_params or PoolingParams()
        work = [self._encode_one(prompt, params) for prompt in _as_list(prompts)]
        return self._run_all(work, has_bar=use_tqdm)

    def embed(self, prompts: PromptType | Sequence[PromptType]) -> list[list[float]]:
        """Returns the embedding of each prompt."""
        return [o.data for o in self.encode(prompts, PoolingParams(task="embed"))]

    def classify(self, prompts: PromptType | Sequence[PromptType]) -> list[list[float]]:
        """Returns the scores of all classes, for each prompt."""
        return [o.data for o in self.encode(prompts, PoolingParams(task="classify"))]

    def reward(
        self, prompts: PromptType | Sequence[PromptType], *, use_tqdm: bool = True
    ) -> list[PoolingRequestOutput]:
        """Returns the scores of a reward model: of each token of each prompt, or of each prompt, depending on the
        model.
        """
        pooler = self._client.info.pooler
        has_each = pooler is not None and "token_classify" in pooler.tasks
        params = PoolingParams(task="token_classify" if has_each else "classify")
        return self.encode(prompts, params, use_tqdm=use_tqdm)

    def score(self, text_1: str | Sequence[str], text_2: str | Sequence[str]) -> list[float]:
        """Returns similarity scores of text pairs: of one text with each of several, or of texts with equal indexes."""
        first, second = ([t] if isinstance(t, str) else list(t) for t in (text_1, text_2))
        pairs = pair_up(first, second)
        pooler = self._client.info.pooler
        if pooler is None or not is_cross_encoder(pooler):
            texts = list(dict.fromkeys(text for pair in pairs for text in pair))
            vectors = dict(zip(texts, self.embed(texts), strict=True))
            return [cosine(vectors[a], vectors[b]) for a, b in pairs]
        prompts: list[PromptType] = [{"prompt": a, "prompt_pair": b} for a, b in pairs]
        return [scores[0] for scores in self.classify(prompts)]

    sleep = _waiting(EngineClient.sleep)
    wake_up = _waiting(EngineClient.wake_up)
    scale_elastic_ep = _waiting(EngineClient.scale_elastic_ep)
    drain = _waiting(EngineClient.drain)
    undrain = _waiting(EngineClient.undrain)
    reset_prefix_cache = _waiting(EngineClient.reset_prefix_cache)
    start_profile = _waiting(EngineClient.start_profile)
    stop_profile = _waiting(EngineClient.stop_profile)
    collective_rpc = _waiting(EngineClient.collective_rpc)
    start_weight_update = _waiting(EngineClient.start_weight_update)
    finish_weight_update = _waiting(EngineClient.finish_weight_update)

    def init_weight_transfer_engine(self, init_info: dict[str, Any] | None = None) -> None:
        """Announces that weights will be sent. `OperatorCalls.init_weight_transfer_engine` describes `init_info`."""
        request = WeightTransferInitRequest(init_info or {})
        self._loop.wait(self._client.init_weight_transfer_engine(request))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Sends tensors of a weight update. `OperatorCalls.update_weights` describes `update_info`."""
        self._loop.wait(self._client.update_weights(WeightTransferUpdateRequest(update_info)))

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns the sampling parameters that `generate` uses by default."""
        return msgspec.convert(dict(self._default_params), SamplingParams)

    def get_tokenizer(self) -> LLMTokenizer:
        """Returns the model's tokenizer, which has `encode`, `decode` and `apply_chat_template`."""
        return LLMTokenizer(self._client.renderer, self._template)

    def get_metrics(self) -> list[Metric]:
        """Returns the metrics that a server's `/metrics` would now show."""

        async def read() -> list[Metric]:
            return read_metrics(self._metrics.registry.collect())

        return self._loop.wait(read())

    def close(self) -> None:
        """Stops the engine; idempotent."""
        if self._loop.is_closed:
            return

        async def end() -> None:  # runs on the event loop, and ends its tasks
            self._client.shutdown()
            await self._client.wait_closed()

        atexit.unregister(self.close)
        self._loop.wait(end())
        self._loop.close()
        if self._template is not None:
            self._template.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_media(
        self, messages: Sequence[Message], processor_kwargs: Mapping[str, Any] | None
    ) -> tuple[Sequence[Message], Media | None]:
        if self._client.model_config.media is None:
            if processor_kwargs:
                raise BadRequest(
                    PROCESSOR_KWARGS, f"{PROCESSOR_KWARGS}: this model reads text only"
                )
            return messages, None
        return take_media(with_picture_urls(messages), processor_kwargs)

    def _run_all(self, work: Sequence[Coroutine[Any, Any, T]], *, has_bar: bool) -> list[T]:
        with progress_bar(len(work), is_wanted=has_bar) as advance:
            return self._loop.wait(gather_all(work, advance))

    async def _encode_one(self, prompt: PromptType, params: PoolingParams) -> PoolingRequestOutput:
        request_id = str(next(self._request_ids))
        async with aclosing(self._client.encode(prompt, params, request_id)) as outputs:
            async for output in outputs:
                return output
        raise AssertionError("encode ended without an output")

    async def _generate_one(
        self, prompt: PromptType, params: SamplingParams, beside: Mapping[str, Any]
    ) -> RequestOutput:
        params = msgspec.structs.replace(params, output_kind=OutputKind.FINAL_ONLY)
        stream = self._client.generate(prompt, params, str(next(self._request_ids)), **beside)
        async with aclosing(stream) as outputs:
            async for output in outputs:
                return output
        raise AssertionError("generate ended without an output")

    async def _search_one(
        self, prompt: PromptType, params: BeamSearchParams, lora_request: LoRARequest | None
    ) -> BeamSearchOutput:
        options = RequestOptions(request_id=str(next(self._request_ids)), lora_request=lora_request)
        request = await self._client.prepare(
            prompt, SamplingParams(max_tokens=params.max_tokens), options
        )
        num_logprobs = 2 * params.beam_width
        beams = await search_beams(
            self._client, request, options, params, num_logprobs=num_logprobs
        )
        sequences = []
        for beam in beams:
            tokens = [*request.prompt_token_ids, *beam.token_ids]
            skips = params.skip_special_tokens
            text = self._client.renderer.decode(tokens, skip_special_tokens=skips)
            sequences.append(
                BeamSearchSequence(
                    tokens=tokens, text=text, cum_logprob=beam.logprob, logprobs=list(beam.rows)
                )
            )
        return BeamSearchOutput(sequences=sequences)


def _template(checkpoint: Checkpoint) -> ChatTemplate | None:
    if checkpoint.chat_template is None:
        return None
    return ChatTemplate(checkpoint.chat_template, read_special_tokens(checkpoint.tokenizer_files))


def _as_chats(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    if messages and isinstance(messages[0], Mapping):
        return [cast("Sequence[Message]", messages)]
    return list(cast("Sequence[Sequence[Message]]", messages))


def _for_each(prompts: Sequence[PromptType], name: str, given: T | Sequence[T]) -> list[T]:
    """Returns one value per prompt, from one value for all prompts or from a list of equal length."""
    if not isinstance(given, Sequence):
        return [given] * len(prompts)
    if len(given) != len(prompts):
        raise BadRequest(name, f"{name} must be a list of {len(prompts)}, got {len(given)}")
    return list(given)


def _as_list(prompts: PromptType | Sequence[PromptType]) -> list[PromptType]:
    is_one = isinstance(prompts, str | dict) or (
        isinstance(prompts, list) and bool(prompts) and isinstance(prompts[0], int)
    )
    return [cast(PromptType, prompts)] if is_one else list(cast("Sequence[PromptType]", prompts))
