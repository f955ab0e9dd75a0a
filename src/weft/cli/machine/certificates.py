"""Validity dates of TLS certificates, read from the PEM file with only the standard library."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_TIMES = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
_PLACE_OF_VALIDITY = (
    # Fields before the dates: serial number, algorithm and issuer; a version field may come first.
    3
)


def validity(path: Path) -> list[tuple[datetime, datetime]]:
    """Returns the start and the end of the validity of each certificate in the file, in order.

    Raises `OSError` if the file cannot be read, `ValueError` if it contains no certificate.
    """
    text = path.read_text(encoding="ascii", errors="replace")
    found = [_BEGIN + part.partition(_END)[0] + _END for part in text.split(_BEGIN)[1:]]
    if not found:
        raise ValueError("it contains no certificate in PEM form")
    return [_dates(ssl.PEM_cert_to_DER_cert(pem)) for pem in found]


def _dates(der: bytes) -> tuple[datetime, datetime]:
    (whole,) = _elements(der)
    parts = _elements(_elements(whole[1])[0][1])
    if parts and parts[0][0] == _VERSION:
        parts = parts[1:]
    if len(parts) <= _PLACE_OF_VALIDITY:
        raise ValueError("its certificate is cut short")
    first, last = (_moment(kind, text) for kind, text in _elements(parts[_PLACE_OF_VALIDITY][1]))
    return first, last


def _moment(kind: int, text: bytes) -> datetime:
    if kind not in _TIMES:
        raise ValueError("its certificate has no validity dates")
    return datetime.strptime(text.decode("ascii"), _TIMES[kind]).replace(tzinfo=UTC)


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Returns the tag and the content of each DER element in `der`."""
    elements = []
    at = 0
    while at < len(der):
        if at + 2 > len(der):
            raise ValueError("its certificate is cut short")
        tag, length, start = der[at], der[at + 1], at + 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(der[at + 2 : start], "big")
        at = start + length
        if at > len(der):
            raise ValueError("its certificate is cut short")
        elements.append((tag, der[start:at]))
    return elements
