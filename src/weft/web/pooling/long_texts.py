"""Texts beyond the context: cut into pieces, embedded piece by piece, and averaged."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
import numpy as np

from weft.core.config.engine import PoolerConfig
from weft.core.errors import BadRequest, ContextLengthExceeded
from weft.core.values.prompts import PromptType
from weft.core.values.types import PoolingParams, PoolingRequestOutput
from weft.schema.pooling import EmbeddingBody
from weft.web.inference.call import ModelCall
from weft.web.pooling.numbers import write_numbers
from weft.web.pooling.run import Prompts, run_all

_MAX_PIECES = 2048  # per HTTP request
_MAX_CHARS = 2**21  # per text, unless the server sets how many tokens of a text are embedded


def is_cutting(pooler: PoolerConfig, params: PoolingParams) -> bool:
    """True if texts are cut into pieces; truncated texts have a single piece."""
    return pooler.enable_chunked_processing and params.truncate_prompt_tokens is None


async def embed_long(
    call: ModelCall,
    body: EmbeddingBody,
    prompts: Prompts,
    params: PoolingParams,
    pooler: PoolerConfig,
) -> list[PoolingRequestOutput]:
    """The embedding of each prompt, of any length."""
    length = call.served.client.model_config.max_model_len
    texts = [await _token_ids(call, prompt, prompts, pooler) for prompt in prompts.prompts]
    cuts = [[ids[i : i + length] for i in range(0, max(len(ids), 1), length)] for ids in texts]
    if sum(map(len, cuts)) > _MAX_PIECES:
        raise BadRequest(
            "input", f"the texts make more than {_MAX_PIECES} pieces of {length} tokens"
        )
    pieces = Prompts([piece for text in cuts for piece in text])
    outputs = await run_all(call, body, pieces, params)
    is_normal = pooler.normalize if params.normalize is None else params.normalize

    def average_all() -> list[PoolingRequestOutput]:
        rest = iter(outputs)
        return [
            average(ids, [next(rest) for _ in text], is_normal=is_normal)
            for ids, text in zip(texts, cuts, strict=True)
        ]

    return await write_numbers(outputs, average_all)


async def _token_ids(
    call: ModelCall, prompt: PromptType, prompts: Prompts, pooler: PoolerConfig
) -> list[int]:
    if isinstance(prompt, list):
        ids = prompt
    else:
        assert isinstance(prompt, str), "an input is a text or ids"
        text = pooler.prompt + prompt
        _check_length(call, text, pooler)
        work = partial(
            call.served.tokenizer.encode_framed,
            [text.lower() if pooler.lowercases else text],
            add_special_tokens=prompts.kwargs["add_special_tokens"],
            max_tokens=None,
            side="right",
        )
        ids = (await call.served.tokenizer.soon(len(text), work)).ids
    if pooler.max_embed_len is not None and len(ids) > pooler.max_embed_len:
        raise ContextLengthExceeded(
            "input",
            f"this server embeds texts of at most {pooler.max_embed_len} tokens, and this one has "
            f"{len(ids)}",
            len(ids),
        )
    return ids


def _check_length(call: ModelCall, text: str, pooler: PoolerConfig) -> None:
    """Before time and memory are spent on tokens."""
    limits = call.served.client.info.limits
    if pooler.max_embed_len is not None:
        limits = replace(limits, max_model_len=pooler.max_embed_len)
    most_chars = max(limits.max_text_chars, 0 if pooler.max_embed_len else _MAX_CHARS)
    if len(text) > most_chars:
        raise ContextLengthExceeded(
            "input",
            f"this server embeds texts of at most {most_chars} characters, and this one has "
            f"{len(text)}",
            len(text),
        )


def average(
    token_ids: list[int], pieces: Sequence[PoolingRequestOutput], *, is_normal: bool
) -> PoolingRequestOutput:
    """The mean of the pieces' vectors, weighted by their numbers of tokens."""
    if len(pieces) == 1:
        return pieces[0]
    weights = np.array([len(piece.prompt_token_ids) for piece in pieces], np.float32)
    vectors = np.array([np.asarray(piece.data, np.float32) for piece in pieces])
    mean = (vectors * weights[:, None]).sum(axis=0) / weights.sum()
    if is_normal:  # normalized again: the mean of unit vectors is shorter than 1
        mean = mean / max(float(np.sqrt((mean * mean).sum())), 1e-12)
    return msgspec.structs.replace(
        pieces[0], prompt_token_ids=token_ids, data=mean.astype(np.float32).tolist()
    )
