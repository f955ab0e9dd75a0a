"""Converts a body to a request: decompresses and parses it, and cuts the prompts to the compared length."""

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
    """Parses a request. Raises `Refused` if its body is invalid.

    A body whose content type is not JSON, and which is not JSON, is left to the server.
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
    """Returns the decompressed body of a parsed request, with another model name."""
    return parser.rename(_plain(call), model)


def _plain(call: Call) -> Call:
    """Returns the call with a decompressed body. gRPC messages are compressed one by one, which parsers handle."""
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
    """Returns the beginning of the prompts that prefix indexes compare. The last prompt is cut, and its remaining
    tokens are counted.
    """
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
    """Returns the size of a prompt's tokens at four bytes each; approximate for a text."""
    if prompt.text is not None:
        return len(prompt.text)
    return 4 * len(prompt.token_ids or ())


def _cut(prompt: Prompt, num_bytes: int) -> Prompt:
    if prompt.text is not None:
        return replace(prompt, text=prompt.text[:num_bytes])
    return replace(prompt, token_ids=(prompt.token_ids or ())[: num_bytes // 4])
