"""Where a constraint begins in an answer that starts with reasoning, of which the messages say little.

The field `grammar_from_first_token` says "at once". That it begins behind the reasoning, and what text ends
that, a server of ours is told in metadata; another one goes by a parser of its own, or has none.
"""

from typing import Any

import msgspec

from weft.core.errors import BadRequest
from weft.core.types import OpenReasoning, Request, RequestOptions, SamplingParams
from weft.rpc.boundary import Context
from weft.rpc.convert.incoming import ServerInfo
from weft.rpc.convert.outgoing import not_on_this_wire
from weft.text.parsers.table import REASONING_PARSERS

# Bytes: some models end their reasoning with characters that are not ASCII.
REASONING_END_METADATA = "x-weft-reasoning-end-bin"
REASONING_ENDED_METADATA = "x-weft-reasoning-ended"

_ENDED = {"true": True, "false": False}


def reasoning_of(context: Context) -> dict[str, Any]:
    """The arguments of `EngineClient.generate` that the call's metadata gives; what is not given is left out."""
    found: dict[str, Any] = {}
    for name, value in context.invocation_metadata() or ():
        if name == REASONING_ENDED_METADATA:
            if value not in _ENDED:
                raise BadRequest(name, f"{name} must be true or false")
            found["reasoning_ended"] = _ENDED[str(value)]
        if name == REASONING_END_METADATA:
            found["reasoning_parser_kwargs"] = {"end": _to_text(name, value)}
    return found


def _to_text(name: str, value: str | bytes) -> str:
    try:
        return value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(name, f"{name} is not valid UTF-8") from error


def check_reasoning(server: ServerInfo, params: SamplingParams, options: RequestOptions) -> None:
    """Refuse what this wire cannot carry, and what `server` would get wrong without a word."""
    kwargs = options.reasoning_parser_kwargs or {}
    if kwargs.keys() - {"end"}:
        raise not_on_this_wire("reasoning_parser_kwargs")
    try:
        str(kwargs.get("end")).encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            "reasoning_parser_kwargs", "end of reasoning_parser_kwargs is not valid Unicode"
        ) from error
    if server.is_ours or options.reasoning_ended or not _has_constraint(params):
        return
    if options.reasoning_ended is False or kwargs:
        _check_parser(server, kwargs.get("end"))


def with_reasoning(request: Request, options: RequestOptions) -> Request:
    """The request with what the caller says of reasoning, which the server is to judge."""
    end = (options.reasoning_parser_kwargs or {}).get("end")
    return msgspec.structs.replace(
        request,
        reasoning_ended=options.reasoning_ended,
        reasoning=None if end is None else OpenReasoning(end=str(end), end_token_ids=[]),
    )


def to_reasoning(
    server: ServerInfo, request: Request
) -> tuple[SamplingParams, list[tuple[str, str | bytes]]]:
    """What the parameters and the metadata of a call are, so that `server` does as was asked."""
    ended, reasoning = request.reasoning_ended, request.reasoning
    if server.is_ours:
        metadata: list[tuple[str, str | bytes]] = []
        if ended is not None:
            metadata.append((REASONING_ENDED_METADATA, "true" if ended else "false"))
        if reasoning is not None:
            metadata.append((REASONING_END_METADATA, reasoning.end.encode()))
        return request.params, metadata
    if ended and _has_constraint(request.params):
        return msgspec.structs.replace(request.params, grammar_from_first_token=True), []
    return request.params, []


def _has_constraint(params: SamplingParams) -> bool:
    """Whether there is one that would begin behind the reasoning."""
    return params.structured_outputs is not None and not params.grammar_from_first_token


def _check_parser(server: ServerInfo, end: Any) -> None:
    if server.constrains_reasoning:
        raise BadRequest(
            "reasoning_ended",
            "reasoning_ended=False cannot be sent to this server: its constraints begin at the first token",
        )
    family = REASONING_PARSERS.get(server.reasoning_parser)
    if family is not None and end is not None and family.reasoning_end != end:
        raise BadRequest(
            "reasoning_parser_kwargs",
            f"the server ends reasoning with {family.reasoning_end!r} "
            f"(--reasoning-parser {server.reasoning_parser}), not with {str(end)[:64]!r}",
        )
