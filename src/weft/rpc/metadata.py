"""Call metadata, for values that the messages have no field for: adapter, trace context, reasoning.

The message field `grammar_from_first_token` can only say that a constraint begins at the first token. For Weft servers,
metadata say that a constraint begins after the reasoning, and which text ends the reasoning. Other servers use their
own reasoning parser, or have none.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from weft.core.checks.lora import LORA_METADATA, validate_lora_name
from weft.core.client import EngineClient
from weft.core.errors import BadRequest
from weft.core.observe.tracing import TRACE_HEADERS, carried
from weft.core.values.prompts import OpenReasoning
from weft.core.values.types import LoRARequest, Request, RequestOptions, SamplingParams
from weft.core.values.unicode import encode_text
from weft.rpc.auth import CallMetadata
from weft.rpc.connection import Metadata
from weft.rpc.convert.incoming import ServerReport
from weft.rpc.convert.request import not_on_this_wire
from weft.text.parsers.table import REASONING_PARSERS
from weft.text.reasoning import shows_end
from weft.text.tokenizer import Tokenizer

# Sent as bytes: the marker of some models is not ASCII.
REASONING_END_METADATA = "x-weft-reasoning-end-bin"
REASONING_ENDED_METADATA = "x-weft-reasoning-ended"

# The rank of a request of `vllm.Inference`, as vLLM's servers read it.
RANK_METADATA = "x-data-parallel-rank"

# In a fingerprint, between those of the model, of the adapter and of the media.
FINGERPRINT_SEPARATOR = ":"

_MAX_RANK_DIGITS = 10
_SEED_MASK = 2**31 - 1  # the protocol has 32 bits
_ENDED = {"true": True, "false": False}


def lora_request_of(metadata: CallMetadata, client: EngineClient) -> LoRARequest | None:
    """The adapter that the call's metadata names; None without a name, or for the name of the model itself."""
    names = {str(value) for name, value in metadata if name == LORA_METADATA and value}
    if len(names) > 1:
        raise BadRequest(LORA_METADATA, f"{LORA_METADATA} names {len(names)} adapters; give one")
    for name in names:
        return client.model_config.find_lora(name, client.lora_requests)
    return None


def trace_headers_of(metadata: CallMetadata) -> dict[str, str]:
    """The trace that the call belongs to."""
    return {name: str(value) for name, value in metadata if name in TRACE_HEADERS}


def data_parallel_rank_of(metadata: CallMetadata) -> int | None:
    """The rank that the call's metadata name; None without one."""
    for name, value in metadata:
        if name == RANK_METADATA:
            text = str(value).strip()
            if not (text.isascii() and text.isdigit() and len(text) <= _MAX_RANK_DIGITS):
                raise BadRequest(name, f"{name} must be a whole number, got {text[:40]!a}")
            return int(text)
    return None


def reasoning_of(metadata: CallMetadata) -> dict[str, Any]:
    """The arguments of `EngineClient.generate` from the call's metadata; absent ones are left out."""
    found: dict[str, Any] = {}
    for name, value in metadata:
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


def check_reasoning(server: ServerReport, params: SamplingParams, options: RequestOptions) -> None:
    """Refuses parameters that the protocol cannot carry, or that `server` would silently misinterpret."""
    kwargs = options.reasoning_parser_kwargs or {}
    if kwargs.keys() - {"end"}:
        raise not_on_this_wire("reasoning_parser_kwargs")
    encode_text("reasoning_parser_kwargs", str(kwargs.get("end")))
    if server.is_ours or options.reasoning_ended or not _has_constraint(params):
        return
    if options.reasoning_ended is False or kwargs:
        _check_parser(server, kwargs.get("end"))


def check_ended(
    server: ServerReport, request: Request, kwargs: Mapping[str, Any] | None, tokenizer: Tokenizer
) -> None:
    """Refuses a constraint that would never begin: vLLM searches the prompt for the text that ends reasoning, and no
    field overrides this.
    """
    if server.is_ours or server.constrains_reasoning or not request.reasoning_ended:
        return
    family = REASONING_PARSERS.get(server.reasoning_parser)
    end = (kwargs or {}).get("end") if family is None else family.reasoning_end
    if end is None or not _has_constraint(request.params):
        return
    if not shows_end(end, request.prompt_token_ids, tokenizer):
        raise BadRequest(
            "reasoning_ended",
            f"reasoning_ended=True is not seen by this server: it waits for {end!r} "
            f"(--reasoning-parser {server.reasoning_parser}), which the prompt does not have",
        )


def with_reasoning(request: Request, options: RequestOptions) -> Request:
    """The request with the caller's reasoning options, which the server applies."""
    end = (options.reasoning_parser_kwargs or {}).get("end")
    return msgspec.structs.replace(
        request,
        reasoning_ended=options.reasoning_ended,
        reasoning=None if end is None else OpenReasoning(end=str(end), end_token_ids=[]),
    )


def to_metadata(server: ServerReport, request: Request) -> Metadata:
    """The metadata of a call. An adapter is sent by name: the server must have it already."""
    metadata: list[tuple[str, str | bytes]] = []
    if (lora := request.lora_request) is not None:
        validate_lora_name(lora.lora_name)
        if lora.load_inplace:
            raise not_on_this_wire("load_inplace")
        metadata.append((LORA_METADATA, lora.lora_name))
    metadata += carried(request.trace_headers or {}).items()
    if server.is_ours and request.reasoning_ended is not None:
        metadata.append((REASONING_ENDED_METADATA, "true" if request.reasoning_ended else "false"))
    if server.is_ours and request.reasoning is not None:
        metadata.append((REASONING_END_METADATA, request.reasoning.end.encode()))
    return tuple(metadata)


def params_for(server: ServerReport, request: Request) -> SamplingParams:
    """Returns the parameters for `server`; for a server that ignores metadata, `grammar_from_first_token` is set if
    reasoning has ended. A Weft server gets the seed that was drawn here, so that another one can continue the request.
    """
    params = request.params
    if server.is_ours and params.seed is None:
        return msgspec.structs.replace(params, seed=request.seed & _SEED_MASK)
    if server.is_ours or not request.reasoning_ended or not _has_constraint(params):
        return params
    return msgspec.structs.replace(params, grammar_from_first_token=True)


def _has_constraint(params: SamplingParams) -> bool:
    """True if there is a constraint that would begin after the reasoning."""
    return params.structured_outputs is not None and not params.grammar_from_first_token


def _check_parser(server: ServerReport, end: Any) -> None:
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
