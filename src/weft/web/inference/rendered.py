"""A prompt in tokens, as a body of /inference/v1/generate: the result of every `/render` endpoint.

Routers call these endpoints to find the prefixes that a request shares with earlier requests.
"""

from collections.abc import Sequence
from functools import partial

import msgspec

from weft.core.errors import BadRequest
from weft.core.values.types import Request, SamplingParams
from weft.schema.tokens import TokensBody, TokensParams
from weft.text.tokenizer import Tokenizer
from weft.web.inference.call import ModelCall

Offsets = Sequence[tuple[int, int]]


def refuse_media(request: Request, parameter: str) -> None:
    """Raises `BadRequest` for a prompt with media."""
    if request.media is not None or request.items:
        raise BadRequest(
            parameter,
            f"{parameter} with media cannot be rendered: their tokens are not known yet",
        )


def num_prompt_tokens(request: Request, parameter: str) -> int:
    """Returns the number of tokens of a prompt; raises `BadRequest` if an engine counts its media only later."""
    if request.media is not None:
        raise BadRequest(
            parameter,
            f"{parameter} with media cannot be counted here: their tokens are not known yet",
        )
    return len(request.prompt_token_ids)


def to_tokens_body(
    call: ModelCall,
    request: Request,
    params: SamplingParams,
    *,
    request_id: str,
    is_streamed: bool | None,
    offsets: Offsets | None = None,
) -> TokensBody:
    """Returns the body that generates what the rendered request would generate."""
    # As in the request, except the resolved max_tokens: the prepared parameters no longer have the constraints.
    given = msgspec.structs.asdict(params) | {"max_tokens": request.params.max_tokens}
    return TokensBody(
        token_ids=request.prompt_token_ids,
        sampling_params=TokensParams(**given),
        model=call.model,
        request_id=request_id,
        stream=is_streamed,
        cache_salt=request.cache_salt,
        priority=request.priority,
        token_offsets=None if offsets is None else list(offsets),
    )


async def offsets_of(
    tokenizer: Tokenizer, request: Request, *, add_special_tokens: bool
) -> Offsets | None:
    """Returns the characters of the prompt's text that each token stands for.

    Returns None for a prompt that came as token ids or was truncated.
    """
    text = request.prompt
    if text is None:
        return None
    token_ids, offsets = await tokenizer.soon(
        len(text),
        partial(tokenizer.encode_with_offsets, text, add_special_tokens=add_special_tokens),
    )
    return offsets if token_ids == request.prompt_token_ids else None
