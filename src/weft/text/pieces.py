"""The bytes that each token adds to the text, so that text can be built token by token.

Only decoders in which a token's bytes do not depend on its neighbours are described here: byte-level
BPE and the SentencePiece styles. For any other decoder `read_rule` returns None; the detokenizer then decodes the last
few tokens repeatedly and compares the texts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PieceRule:
    """Conversion of a token's name to bytes.

    `replacements` are applied in order to the name. `stripped` is a character of which up to
    `num_stripped` are removed at the very start of the text; `dropped_at_start` is a character that
    vanishes from the text's first token.
    """

    is_byte_level: bool = False
    has_byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    stripped: str = ""
    num_stripped: int = 0
    dropped_at_start: str = ""

    def piece(self, token: str, byte_by_char: Mapping[str, int]) -> bytes:
        """The bytes of a token that is not the first of a text."""
        if self.is_byte_level:
            if all(char in byte_by_char for char in token):
                return bytes([byte_by_char[char] for char in token])
            return token.encode()
        byte = _fallback_byte(token) if self.has_byte_fallback else None
        if byte is not None:
            return bytes([byte])
        for old, new in self.replacements:
            token = token.replace(old, new)
        return token.encode()


def read_rule(decoder: Mapping[str, Any] | None) -> PieceRule | None:
    """The rule for a decoder described in tokenizer.json; None if the text of tokens depends on their neighbours."""
    if decoder is None:
        return None
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return PieceRule(is_byte_level=True)
    return _read_sentencepiece(steps)


def byte_by_char() -> dict[str, int]:
    """The alphabet of byte-level BPE: one printable character per byte.

    Bytes that are printable in Latin-1 represent themselves; the others follow from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + position): byte for position, byte in enumerate(others)})
    return alphabet


def _read_sentencepiece(steps: Iterable[Mapping[str, Any]]) -> PieceRule | None:
    replacements: list[tuple[str, str]] = []
    has_byte_fallback = is_fused = False
    stripped, num_stripped, dropped = "", 0, ""
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if (
                not is_fused
            ):
                replacements.append((old, new))
            case {"type": "Metaspace", "replacement": str(old)} if not is_fused:
                replacements.append((old, " "))
                dropped = "" if step.get("prepend_scheme", "always") == "never" else old
            case {"type": "ByteFallback"} if not is_fused:
                has_byte_fallback = True
            case {"type": "Fuse"}:
                is_fused = True
            case {
                "type": "Strip",
                "content": str(stripped),
                "start": int(num_stripped),
                "stop": 0,
            } if is_fused:
                pass
            case _:
                return None
    return PieceRule(
        has_byte_fallback=has_byte_fallback,
        replacements=tuple(replacements),
        stripped=stripped,
        num_stripped=num_stripped,
        dropped_at_start=dropped,
    )


def _fallback_byte(token: str) -> int | None:
    """The byte that a token named like `<0x0A>` stands for."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None
