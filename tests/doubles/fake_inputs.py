"""What turns prompts into the requests of `FakeEngine`: a vocabulary of bytes, and the real checks."""

from collections.abc import Callable

from weft.core.checks.resolve_params import resolve_params
from weft.core.checks.validate import Limits, validate_params, validate_prompt, validate_request_id
from weft.core.config.engine import EngineConfig
from weft.core.errors import BadRequest, Unsupported
from weft.core.values.prompts import PromptType
from weft.core.values.types import PoolingParams, Request, RequestOptions, SamplingParams

EOS_ID = 2
FIRST_ID = 3  # below are bos, pad and eos
VOCAB_SIZE = 512


class FakeRenderer:
    """One token per byte of text, above the special ids."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""
        ids = [FIRST_ID + byte for byte in text.encode()]
        return [1, *ids] if add_special_tokens else ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """One letter per token, so that any token may be part of a stop string."""
        return "".join(chr(ord("a") + token % 26) for token in token_ids)


class FakeInputProcessor:
    """Tokenise, truncate, validate: as the real one does."""

    def __init__(self, config: EngineConfig, renderer: FakeRenderer) -> None:
        self._limits = Limits.of(config)
        self._eos_token_ids = config.model_config.eos_token_ids
        self._renderer = renderer

    def process(
        self,
        prompt: PromptType | Callable[[], PromptType],
        params: SamplingParams | PoolingParams,
        options: RequestOptions,
    ) -> Request:
        """A checked request."""
        if isinstance(params, PoolingParams):
            raise Unsupported("encode is not supported by this engine")
        validate_request_id(options.request_id)
        if options.data_parallel_rank not in (None, 0):
            raise BadRequest("data_parallel_rank", "data_parallel_rank must be in 0 to 0")
        validate_params(params, self._limits)
        if callable(prompt):
            prompt = prompt()
        token_ids, text = self._read(prompt)
        if params.truncate_prompt_tokens is not None:
            keep = params.truncate_prompt_tokens
            token_ids = token_ids[-(self._limits.max_model_len - 1 if keep == -1 else keep) :]
        validate_prompt(token_ids, self._limits)
        return Request(
            request_id=options.request_id,
            engine_id=options.request_id,
            prompt_token_ids=token_ids,
            params=resolve_params(params, len(token_ids), self._limits),
            eos_token_ids=self._eos_token_ids,
            seed=0,
            arrival_time=0.0,
            prompt=options.prompt_text or text,
            priority=options.priority,
            lora_request=options.lora_request,
        )

    def _read(self, prompt: PromptType) -> tuple[list[int], str | None]:
        if isinstance(prompt, str):
            return self._renderer.encode(prompt), prompt
        if isinstance(prompt, list):
            return prompt, None
        if "prompt_token_ids" in prompt:
            return prompt["prompt_token_ids"], prompt.get("prompt")
        return self._renderer.encode(prompt["prompt"]), prompt["prompt"]
