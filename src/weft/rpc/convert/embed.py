"""Converts Embed messages in both directions: they hold token ids and one vector."""

from dataclasses import dataclass

from weft.core.checks.validate import Limits, check_prompt_length
from weft.core.config.engine import PoolerConfig
from weft.core.errors import BadRequest, Unsupported
from weft.core.values.prompts import TokensPrompt
from weft.core.values.types import PoolingRequestOutput, Request
from weft.pb import vllm_engine_pb2 as pb
from weft.rpc.convert.request import not_on_this_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedInput:
    """The content of an `EmbedRequest`. `request_id` None: the server generates an id."""

    request_id: str | None
    prompt: TokensPrompt


def to_embed_input(
    request: pb.EmbedRequest,
    pooler: PoolerConfig | None,
    limits: Limits,
    padding_id: int | None = None,
) -> EmbedInput:
    """Converts and checks a request. Trailing ids equal to `padding_id` are dropped."""
    if pooler is None:
        raise Unsupported("Embed is not supported by this model: it generates text")
    if not request.HasField("tokenized"):
        raise BadRequest("tokenized", "tokenized is missing: the input must be token ids")
    given = request.tokenized.input_ids
    check_prompt_length(len(given), limits, num_new=0)
    token_ids = list(given)
    while len(token_ids) > 1 and token_ids[-1] == padding_id:
        token_ids.pop()
    prompt: TokensPrompt = {"prompt_token_ids": token_ids}
    if request.tokenized.original_text:
        prompt["prompt"] = request.tokenized.original_text
    return EmbedInput(request_id=request.request_id or None, prompt=prompt)


def to_embed_response(output: PoolingRequestOutput) -> pb.EmbedResponse:
    """Converts an output; the output of an aborted request has no vector."""
    return pb.EmbedResponse(
        embedding=output.data,
        prompt_tokens=len(output.prompt_token_ids),
        embedding_dim=len(output.data),
    )


def to_embed_request(request: Request) -> pb.EmbedRequest:
    """Converts a checked request; refuses parameters for which the message has no field."""
    pooling = request.pooling
    assert pooling is not None
    if pooling.task != "embed":
        raise not_on_this_wire("task")
    for name in ("dimensions", "normalize", "skip_reading_prefix_cache"):
        if getattr(pooling, name) is not None:
            raise not_on_this_wire(name)
    for name in ("cache_salt", "data_parallel_rank"):
        if getattr(request, name) is not None:
            raise not_on_this_wire(name)
    if request.token_type_ids is not None:
        raise not_on_this_wire("prompt_pair")
    message = pb.EmbedRequest(request_id=request.request_id)
    message.tokenized.input_ids.extend(request.prompt_token_ids)
    message.tokenized.original_text = request.prompt or ""
    return message


def to_pooling_output(request: Request, answer: pb.EmbedResponse) -> PoolingRequestOutput:
    """Translate."""
    return PoolingRequestOutput(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        data=list(answer.embedding),
        shape=(len(answer.embedding),),
    )
