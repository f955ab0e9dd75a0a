"""The largest gRPC messages there may be, of every nasty kind, in every field of every call."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.internal.encoder import _VarintBytes

from weft.rpc.methods import CONTROL_SERVICE, INFERENCE_SERVICE, METHODS, METHODS_BY_SERVICE
from weft.wire.message_bounds import MAX_PARTS, MAX_UNPACKED_BYTES

# Calls by the name that an attack has; those of vLLM's own services begin with the service.
CALLS = MappingProxyType(
    {
        **METHODS,
        **{
            f"{service}/{name}": method
            for service in (INFERENCE_SERVICE, CONTROL_SERVICE)
            for name, method in METHODS_BY_SERVICE[service].items()
        },
    }
)
MAX_BYTES = 8 * 2**20
_ROOM = MAX_BYTES - 4096
_LENGTH_DELIMITED = 2
_MOST_PARTS = MAX_PARTS - 10


def _delimited(number: int, payload: bytes) -> bytes:
    return _VarintBytes(number << 3 | _LENGTH_DELIMITED) + _VarintBytes(len(payload)) + payload


def _repeated(number: int, payload: bytes, most: int = MAX_BYTES) -> bytes:
    piece = _delimited(number, payload)
    return piece * min(most, _ROOM // len(piece))


# What a field is filled with, by its number; the field's own type is not asked.
KINDS = MappingProxyType(
    {
        "text": lambda number: _delimited(number, b"some text " * (_ROOM // 10)),
        "text_to_encode": lambda number: _delimited(number, b"some text " * 50_000),
        "emoji": lambda number: _delimited(number, "😀".encode() * (_ROOM // 4)),
        "packed_numbers": lambda number: _delimited(number, b"\x41" * _ROOM),
        "packed_long_numbers": lambda number: _delimited(number, b"\xff\xff\x7f" * (_ROOM // 3)),
        "a_context": lambda number: _delimited(number, b"\x41" * 32_000),
        "unpacked_numbers": lambda number: (
            (_VarintBytes(number << 3) + b"\x41") * (MAX_UNPACKED_BYTES // 4)
        ),
        "parts": lambda number: _repeated(number, b"", _MOST_PARTS),
        "long_parts": lambda number: _repeated(number, b"a" * 600, _MOST_PARTS),
        "entries": lambda number: _repeated(number, b"\x08\x41", _MOST_PARTS),
        "too_many_parts": lambda number: _repeated(number, b""),
        "too_many_numbers": lambda number: (_VarintBytes(number << 3) + b"\x41") * (_ROOM // 4),
        "groups": lambda number: _VarintBytes(number << 3 | 3) * (_ROOM // 4),
        "continued": lambda _number: b"\x80" * _ROOM,
    }
)


@dataclass(frozen=True, slots=True)
class MessageAttack:
    """One call. `path` are the numbers of the fields that lead to the one that is filled."""

    method: str
    path: tuple[int, ...]
    kind: str

    def __str__(self) -> str:
        return f"{self.method} {'.'.join(map(str, self.path))}={self.kind}"

    def body(self) -> bytes:
        """Its bytes."""
        data = KINDS[self.kind](self.path[-1])
        for number in reversed(self.path[:-1]):
            data = _delimited(number, data)
        return data


def message_attacks() -> Iterator[MessageAttack]:
    """Every kind in every field of every call, and in one that there is not; once for calls with the same message."""
    by_message = {method.request_type: (name, method) for name, method in CALLS.items()}
    for name, method in by_message.values():
        for path in _paths(method.request_type.DESCRIPTOR):
            for kind in KINDS:
                yield MessageAttack(name, path, kind)


def _paths(descriptor) -> Iterator[tuple[int, ...]]:
    for field in descriptor.fields:
        yield (field.number,)
        if field.message_type is not None:
            yield from ((field.number, inner.number) for inner in field.message_type.fields)
    yield (15,)
