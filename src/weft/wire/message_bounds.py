"""Counts the parts of a protobuf message before it is decoded.

Decoding blocks all other requests, and an empty message of two bytes takes fifty bytes in memory. Messages, strings and
map entries are counted, and also the bytes of packed numbers: a packed number is cheap, but eight million of them still
take 40 to 55 ms.
"""

import re
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from weft.core.values.patterns import NEVER_BYTES

# An abort may name 10,000 requests. Scanning this many parts takes 12 ms.
MAX_PARTS = 12_000
MAX_UNPACKED_BYTES = 2**21
MAX_PACKED_BYTES = 2**22

# Numbers without a length prefix (varints): the lowest three bits of the tag mark them.
_VARINT = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_NUMBERS = re.compile(
    rb"(?:[" + re.escape(bytes(range(0, 0x80, 8))) + rb"]" + _VARINT
    + rb"|[" + re.escape(bytes(range(0x80, 0x100, 8))) + rb"]" + _VARINT + _VARINT
    + rb"|[" + re.escape(bytes(range(5, 0x80, 8))) + rb"].{4}"
    + rb"|[" + re.escape(bytes(range(1, 0x80, 8))) + rb"].{8}"
    + NEVER_BYTES + rb")*+",
    re.DOTALL,
)  # fmt: skip
_LENGTH_DELIMITED = 2
_GROUPS = (3, 4)
_WIDTHS = {1: 8, 5: 4}
_MAX_SHIFT = 70


def crowded_field(
    data: bytes,
    descriptor: Any,
    max_packed_bytes: int = MAX_PACKED_BYTES,
    max_parts: int = MAX_PARTS,
) -> str | None:
    """Returns the name of the field that has too many parts; None if no field has. An invalid message is left to the
    decoder.
    """
    open_messages = [(0, len(data), descriptor)]
    num_parts = 0
    room, packed_room = MAX_UNPACKED_BYTES, max_packed_bytes
    while open_messages:
        at, end, kind = open_messages.pop()
        fields = kind.fields_by_number
        while at < end:
            numbers = _NUMBERS.match(data, at, min(end, at + room))
            assert numbers is not None, "it matches nothing at the least"
            room -= numbers.end() - at
            at = numbers.end()
            if at == end:
                break
            tag, at = _read_varint(data, at, end)
            num_parts += 1
            wire_type = tag & 7
            field = fields.get(tag >> 3)
            # Groups are obsolete, and could hide other parts: they are refused.
            if num_parts > max_parts or room < _MAX_SHIFT or wire_type in _GROUPS:
                return "a field" if field is None else field.name
            if wire_type != _LENGTH_DELIMITED:
                at += _WIDTHS.get(wire_type, 1)
                continue
            length, at = _read_varint(data, at, end)
            if field is not None and field.message_type is not None:
                open_messages.append((at, min(at + length, end), field.message_type))
            elif field is not None and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
                packed_room -= length
                if packed_room < 0:
                    return str(field.name)
            at += length
    return None


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < _MAX_SHIFT:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at
