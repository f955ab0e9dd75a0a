"""Formats of numbers in answers: JSON, base64, or binary bodies."""

import asyncio
import base64
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from weft.core.errors import BadRequest
from weft.core.values.types import PoolingRequestOutput
from weft.schema.pooling import BytesMetadata, Item, NumberFields
from weft.web.inference.call import Heading
from weft.web.inference.logprobs import of_pieces
from weft.web.pooling.run import usage_of

T = TypeVar("T")

# Numbers handled in one turn of the event loop: writing this many takes 2 to 3 ms, and comparing them 15 ms.
_AT_ONCE = 2**14
_DTYPES = {"float32": "f4", "float16": "f2", "bfloat16": "u2"}
# Servers and proxies accept about 16 KiB of headers in total.
_MAX_METADATA_BYTES = 12 * 1024


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """Encoding of numbers in an answer."""

    encoding: str
    dtype: str
    is_big_endian: bool

    @property
    def is_raw(self) -> bool:
        """True if the body of the answer is the bytes of the numbers."""
        return self.encoding in ("bytes", "bytes_only")

    @property
    def endianness(self) -> str:
        """By name."""
        return "big" if self.is_big_endian else "little"

    def to_bytes(self, data: Sequence[float]) -> bytes:
        """The numbers in a row."""
        return b"".join(map(self._to_bytes, _pieces(data)))

    def _to_bytes(self, data: Sequence[float]) -> bytes:
        values: NDArray[Any] = np.asarray(data, np.float32)
        if self.dtype == "float16" and np.abs(values).max(initial=0) > np.finfo(np.float16).max:
            raise BadRequest("embed_dtype", "a number of the result does not fit float16")
        if self.dtype == "bfloat16":  # the upper 16 bits, rounded to nearest even
            bits = values.view(np.uint32)
            values = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        order = ">" if self.is_big_endian else "<"
        return values.astype(order + _DTYPES[self.dtype]).tobytes()

    def to_json(self, output: PoolingRequestOutput) -> list[Any] | str:
        """The numbers as a list, or as base64; for token embeddings, a list per token."""
        data = output.data
        if self.encoding == "base64":
            return base64.b64encode(self.to_bytes(data)).decode("ascii")
        if len(output.shape) < 2:
            return to_list(data)
        width = output.shape[1]
        rows = (data[start : start + width] for start in range(0, len(data), width))
        return of_pieces(list(map(msgspec.json.encode, rows)))


def to_list(data: Sequence[float]) -> list[float]:
    """The numbers as a list, written a piece at a time."""
    return of_pieces([msgspec.json.encode(piece)[1:-1] for piece in _pieces(data)])


def _pieces(data: Sequence[float]) -> Iterator[Sequence[float]]:
    return (data[start : start + _AT_ONCE] for start in range(0, len(data), _AT_ONCE))


async def write_numbers(outputs: Sequence[PoolingRequestOutput], write: Callable[[], T]) -> T:
    """Returns the result of `write`; for many numbers it runs on a thread, so that the event loop stays responsive."""
    num_numbers = sum(len(output.data) for output in outputs)
    return write() if num_numbers <= _AT_ONCE else await asyncio.to_thread(write)


def number_format(body: NumberFields) -> NumberFormat:
    """Returns the requested encoding; JSON numbers have no byte order."""
    encoding = body.encoding_format or "float"
    if encoding == "float":
        for name in ("embed_dtype", "endianness"):
            if getattr(body, name) not in (None, "float32", "native"):
                raise BadRequest(name, f"{name} needs encoding_format base64, bytes or bytes_only")
    endianness = body.endianness or "native"
    order = sys.byteorder if endianness == "native" else endianness
    return NumberFormat(encoding, body.embed_dtype or "float32", order == "big")


def raw_answer(
    head: Heading, form: NumberFormat, outputs: Sequence[PoolingRequestOutput]
) -> Response:
    """Returns all numbers as the body, one input after another."""
    items: list[Item] = []
    parts: list[bytes] = []
    start = 0
    for index, output in enumerate(outputs):
        part = form.to_bytes(output.data)
        end = start + len(part)
        shape = list(output.shape)
        items.append(
            Item(
                index=index, embed_dtype=form.dtype, endianness=form.endianness,
                start=start, end=end, shape=shape,
            )
        )  # fmt: skip
        parts.append(part)
        start = end
    headers = {}
    if form.encoding == "bytes":
        metadata = BytesMetadata(**asdict(head), data=items, usage=usage_of(outputs))
        text = msgspec.json.encode(metadata)
        if len(text) > _MAX_METADATA_BYTES or not text.isascii():
            raise BadRequest(
                "encoding_format",
                f"the metadata of {len(items)} inputs does not fit a header; use bytes_only, or fewer "
                "inputs",
            )
        headers["metadata"] = text.decode("ascii")
    return Response(b"".join(parts), media_type="application/octet-stream", headers=headers)
