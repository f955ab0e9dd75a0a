"""Reads token counts from the JSON of responses, complete or as server-sent events. Never raises an error."""

import json
from collections.abc import Iterable
from dataclasses import asdict, astuple, replace
from typing import Annotated, Final

import msgspec

from weft.epp.request.values import Usage

_MAX_OBJECTS: Final = 8192  # maximum number of objects decoded from a list of answers
# Decoding a MiB takes 5 ms on the event loop; of longer texts only the part after the last mark is read.
_MAX_DECODED_BYTES: Final = 2**19
_MAX_COUNTS_CHARS: Final = 4096
_LAST_USAGE: Final = b'"usage":'


Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Details(msgspec.Struct):
    """OpenAI's details of the prompt tokens."""

    cached_tokens: Count | None = None


class Counts(msgspec.Struct):
    """Token counts by their names in every API."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None
    prompt_tokens_details: Details | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    input_tokens_details: Details | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None

    def to_usage(self) -> Usage:
        """Returns the counts as `Usage`, whose prompt tokens include cached ones."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        if prompt is None and self.input_tokens is not None:
            # Anthropic counts tokens that were read from the cache, or written to it, apart from the other input
            # tokens.
            apart = (self.cache_read_input_tokens, self.cache_creation_input_tokens)
            prompt = self.input_tokens + sum(count or 0 for count in apart)
        details = self.prompt_tokens_details or self.input_tokens_details
        cached = self.cached_tokens if details is None else details.cached_tokens
        return Usage(
            num_prompt_tokens=prompt,
            num_completion_tokens=self.output_tokens if completion is None else completion,
            num_cached_tokens=self.cache_read_input_tokens if cached is None else cached,
        )


class Wrapped(msgspec.Struct):
    """The object inside the events `response.completed` and `message_start`."""

    usage: Counts | None = None


class Body(msgspec.Struct):
    """A response, or one event of a stream."""

    usage: Counts | None = None
    response: Wrapped | None = None
    message: Wrapped | None = None
    meta_info: Counts | None = None

    def counts(self) -> Counts | None:
        """Returns the token counts, which each API has in another place; None without counts."""
        for holder in (self, self.response, self.message):
            if holder is not None and holder.usage is not None:
                return holder.usage
        return self.meta_info


# Not strict: protobuf's JSON writes 64-bit counts as strings.
_body = msgspec.json.Decoder(Body, strict=False)
_first_value = json.JSONDecoder().raw_decode
_bodies = msgspec.json.Decoder(list[Body], strict=False)


def may_have_usage(text: bytes) -> bool:
    """True if usage may be in the text. Most events have none, and a search is cheaper than a decoder."""
    # Not a loop: three searches take less time than one generator.
    return b'"usage":{' in text or b'"usage": {' in text or b'"meta_info"' in text


def usage_of(json_text: bytes) -> Usage | None:
    """Returns the usage that a body or an event reports; None if it reports none."""
    if not may_have_usage(json_text):
        return None
    if len(json_text) > _MAX_DECODED_BYTES:
        return _last_usage(json_text)
    try:
        if json_text.lstrip()[:1] == b"[":
            if json_text.count(b"{") > _MAX_OBJECTS:
                return None
            bodies = _bodies.decode(json_text)
        else:
            bodies = [_body.decode(json_text)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    usages = [counts.to_usage() for body in bodies if (counts := body.counts()) is not None]
    return add(usages) if usages else None


def _last_usage(json_text: bytes) -> Usage | None:
    """Returns the last usage in a long text. Servers write the usage after the answers, and no JSON string can contain
    the searched mark.
    """
    place = json_text.rfind(_LAST_USAGE)
    if place < 0:
        return None
    start = place + len(_LAST_USAGE)
    text = json_text[start : start + _MAX_COUNTS_CHARS].lstrip().decode("utf-8", "replace")
    try:
        value, _ = _first_value(text)
        return msgspec.convert(value, Counts, strict=False).to_usage()
    except (ValueError, RecursionError):
        return None


def add(usages: list[Usage]) -> Usage:
    """Returns the sum of the usages of several answers."""
    return Usage(*map(_sum, zip(*map(astuple, usages), strict=True)))


def merge(older: Usage | None, newer: Usage) -> Usage:
    """Returns the newer counts; missing ones are taken from the older counts."""
    if older is None:
        return newer
    said = {name: count for name, count in asdict(newer).items() if count is not None}
    return replace(older, **said)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
