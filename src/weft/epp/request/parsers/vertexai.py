"""Parser of Vertex AI's PredictionService over gRPC: a JSON body inside a protobuf message inside a gRPC frame.

Only two fields are needed, so the protobuf is parsed by hand: field 2 of the prediction request (an HttpBody), and its
field 2 (the data).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from weft.epp.request.parsers.anthropic import AnthropicParser
from weft.epp.request.parsers.json_body import rename_model
from weft.epp.request.parsers.openai import parse_chat
from weft.epp.request.parsers.parser import Call, Dialect, Parser, Reads, malformed, unscheduled
from weft.epp.request.parsers.payload import first_message, frame
from weft.epp.request.values import InferenceRequest, Refused

SERVICE: Final = "PredictionService"
_CHAT: Final = f"{SERVICE}/ChatCompletions"
_RAW: Final = (f"{SERVICE}/RawPredict", f"{SERVICE}/StreamRawPredict")
_HTTP_BODY: Final = 2
_DATA: Final = 2
_MAX_FIELDS: Final = 1024  # per message; a prediction request has three


class VertexAiParser(Parser):
    """Parses calls of Vertex AI's PredictionService. A call that cannot be parsed goes to any endpoint."""

    type = "vertexai-parser"
    suffixes = (_CHAT, *_RAW, f"{SERVICE}/*")
    dialect = Dialect.VERTEX

    def reads(self, path: str) -> Reads:
        """Returns the parts of the request to read: calls without a chat must not wait for a body."""
        return Reads.BODY if path.endswith((_CHAT, *_RAW)) else Reads.NOTHING

    def parse(self, call: Call) -> InferenceRequest:
        """Parses a chat, which must be valid, or a raw prediction, which may contain anything."""
        if self.reads(call.path) is Reads.NOTHING:
            return unscheduled(call, self.type)
        inner = replace(call, body=http_body_data(first_message(call)))
        if call.path.endswith(_CHAT):
            request = parse_chat(inner, self.type)
        else:
            request = self._parse_raw(inner)
        return replace(request, parser=self.type, num_body_bytes=len(call.body))

    def rename(self, call: Call, model: str) -> bytes:
        """Replaces the model name in the JSON, and updates the lengths around it."""
        message = first_message(call)
        fields = list(_fields(message))
        renamed = []
        for number, raw in fields:
            if number == _HTTP_BODY:
                body = b"".join(
                    _field(n, rename_model(_value(r), model)) if n == _DATA else r
                    for n, r in _fields(_value(raw))
                )
                raw = _field(_HTTP_BODY, body)
            renamed.append(raw)
        return frame(b"".join(renamed))

    def _parse_raw(self, call: Call) -> InferenceRequest:
        try:
            if b'"anthropic_version"' in call.body:
                request = AnthropicParser().parse(call)
            else:
                request = parse_chat(call, self.type)
        except Refused:
            return unscheduled(call, self.type)
        return request if request.model else unscheduled(call, self.type)


def http_body_data(message: bytes) -> bytes:
    """Returns the JSON inside a prediction request."""
    for number, raw in _fields(message):
        if number == _HTTP_BODY:
            for inner, inner_raw in _fields(_value(raw)):
                if inner == _DATA:
                    return _value(inner_raw)
    raise malformed("invalid gRPC payload: the prediction request has no HTTP body")


def field_bytes(message: bytes, wanted: int) -> bytes:
    """Returns a length-delimited field of a protobuf message; empty if the field is absent."""
    return next((_value(raw) for number, raw in _fields(message) if number == wanted), b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the number and the bytes (including the tag) of each protobuf field."""
    at = num_fields = 0
    while at < len(message):
        num_fields += 1
        if num_fields > _MAX_FIELDS:
            raise malformed(f"invalid gRPC payload: a message has more than {_MAX_FIELDS} fields")
        tag, value_at = _varint(message, at)
        match tag & 7:
            case 0:
                _, end = _varint(message, value_at)
            case 1:
                end = value_at + 8
            case 2:
                length, start = _varint(message, value_at)
                end = start + length
            case 5:
                end = value_at + 4
            case _:
                raise malformed("invalid gRPC payload: not a protobuf message")
        if end > len(message):
            raise malformed("invalid gRPC payload: the message ends early")
        yield tag >> 3, message[at:end]
        at = end


def _value(field: bytes) -> bytes:
    """Returns the bytes of a length-delimited protobuf field."""
    tag, at = _varint(field, 0)
    if tag & 7 != 2:
        raise malformed("invalid gRPC payload: not a prediction request")
    _, start = _varint(field, at)
    return field[start:]


def _field(number: int, value: bytes) -> bytes:
    return _to_varint(number << 3 | 2) + _to_varint(len(value)) + value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns the varint at position `at`, and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise malformed("invalid gRPC payload: the message ends early")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise malformed("invalid gRPC payload: not a protobuf message")


def _to_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
