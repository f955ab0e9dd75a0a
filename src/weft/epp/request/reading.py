"""Converts a body to a request: unpacked, parsed, and with prompts cut to the compared length."""

from dataclasses import replace
from typing import Final

from weft.epp.request.parsers.json_body import short_text
from weft.epp.request.parsers.parser import Call, Parser, malformed, unscheduled
from weft.epp.request.parsers.payload import ENCODINGS, can_inflate, inflate
from weft.epp.request.parsers.reading_time import check_reading_time
from weft.epp.request.values import MAX_COMPARED_TOKENS, InferenceRequest, Prompt, Refused

_MAX_COMPARED_BYTES: Final = 4 * MAX_COMPARED_TOKENS
_MAX_MODEL_CHARS: Final = 1024


def read(parser: Parser, call: Call) -> InferenceRequest:
    """Parses a call; raises `Refused` if the body is invalid.

    A body that is declared as another type than JSON, and is not JSON, is left to the server.
    """
    try:
        request = parser.parse(_plain(call))
    except Refused as refused:
        if refused.status != 400 or call.is_grpc or call.is_json:
            raise
        return unscheduled(call, parser.type)
    if len(request.model) > _MAX_MODEL_CHARS:
        raise malformed(f"model must have at most {_MAX_MODEL_CHARS} characters")
    return replace(
        request, prompts=_compared(request.prompts), cache_salt=short_text(request.cache_salt)
    )


def renamed(parser: Parser, call: Call, model: str) -> bytes:
    """The unpacked body of a parsed call, with another model name."""
    return parser.rename(_plain(call), model)


def _plain(call: Call) -> Call:
    """The call with an unpacked body. In gRPC, each message is compressed separately, which parsers handle."""
    if call.is_grpc:
        return call
    encoding = call.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        if not can_inflate(encoding):
            allowed = ", ".join(ENCODINGS)
            raise Refused(415, f"content-encoding must be one of {allowed}, not {encoding!r}")
        call = replace(call, body=inflate(call.body, encoding, call.max_body_bytes))
    if call.is_on_loop:
        check_reading_time(call.body)
    return call


def _compared(prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """The compared prompts, the last one cut, with the remaining tokens counted."""
    room = _MAX_COMPARED_BYTES
    compared: list[Prompt] = []
    for i, prompt in enumerate(prompts):
        room -= _num_bytes(prompt)
        if room < 0:
            left_out = sum(map(_num_bytes, prompts[i:])) // 4
            prompt = _cut(prompt, room + _num_bytes(prompt))
            left_out -= _num_bytes(prompt) // 4
            return (*compared, replace(prompt, num_left_out=prompt.num_left_out + left_out))
        compared.append(prompt)
    return prompts


def _num_bytes(prompt: Prompt) -> int:
    """As tokens of four bytes; of a text, near enough."""
    if prompt.text is not None:
        return len(prompt.text)
    return 4 * len(prompt.token_ids or ())


def _cut(prompt: Prompt, num_bytes: int) -> Prompt:
    if prompt.text is not None:
        return replace(prompt, text=prompt.text[:num_bytes])
    return replace(prompt, token_ids=(prompt.token_ids or ())[: num_bytes // 4])
