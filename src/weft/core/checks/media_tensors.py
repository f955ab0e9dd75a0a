"""Checks that media in the form of tensors match their declared types, shapes and placeholders."""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from weft.core.errors import BadRequest
from weft.core.values.media import TENSORS, MediaTensors, Tensor
from weft.core.values.unicode import check_text

# Bytes per number of each dtype, and the `memoryview` formats of the dtypes that tensors of sizes may have.
ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {"float32": 4, "bfloat16": 2, "float16": 2, "uint8": 1, "int64": 8, "uint32": 4}
)
_SIZES: Mapping[str, Literal["B", "q", "I"]] = MappingProxyType(
    {"uint8": "B", "int64": "q", "uint32": "I"}
)
MAX_DIMS = 8
MAX_HASH_CHARS = 256


def num_bytes(name: str, dtype: str, shape: Sequence[int]) -> int:
    """Returns the required size of a tensor's data in bytes; `BadRequest` for an invalid dtype or shape."""
    if dtype not in ITEM_BYTES:
        raise _refused(name, f"dtype must be one of {', '.join(ITEM_BYTES)}, got {dtype[:40]!r}")
    if len(shape) > MAX_DIMS:
        raise _refused(name, f"shape must have at most {MAX_DIMS} sizes, got {len(shape)}")
    if any(size < 1 for size in shape):
        raise _refused(name, f"each size in shape must be at least 1, got {list(shape)}")
    return math.prod(shape) * ITEM_BYTES[dtype]


def check_length(name: str, tensor: Tensor) -> None:
    """Raises `BadRequest` if the data's size differs from what dtype and shape require."""
    expected = num_bytes(name, tensor.dtype, tensor.shape)
    if len(tensor.data) != expected:
        raise _refused(
            name,
            f"{tensor.dtype} numbers in the shape {list(tensor.shape)} take {expected} bytes, got "
            f"{len(tensor.data)}",
        )


def check_tensors(batches: Sequence[MediaTensors]) -> None:
    """Raises `BadRequest` for tensors whose data, shapes or rows do not match what the request declares."""
    if len({given.modality for given in batches}) < len(batches):
        raise _refused("extra_mm_inputs", "at most one entry per modality is allowed")
    for given in batches:
        num_items = len(given.placeholders)
        if num_items == 0:
            raise _refused(
                "mm_placeholders", f"{given.modality}: at least one placeholder is needed"
            )
        if len(given.hashes) != num_items:
            raise _refused(
                "mm_hashes",
                f"{given.modality}: one hash is needed for each of {num_items} placeholders, got "
                f"{len(given.hashes)}",
            )
        for name in given.hashes:
            check_text("mm_hashes", name)
            if not 1 <= len(name) <= MAX_HASH_CHARS:
                raise _refused(
                    "mm_hashes",
                    f"each hash must have 1 to {MAX_HASH_CHARS} characters, got {len(name)}",
                )
        for name, tensor in given.tensors.items():
            check_length(name, tensor)
            _check_rows(name, tensor, given)


def _check_rows(name: str, tensor: Tensor, given: MediaTensors) -> None:
    """Raises `BadRequest` unless the tensor's first dimension has the number of rows that the items need."""
    num_items = len(given.placeholders)
    if name in given.batched:
        num_rows = num_items
    elif name in given.flat:
        num_rows = _num_rows(given, given.flat[name])
    else:
        return
    if tensor.shape[:1] != (num_rows,):
        raise _refused(
            name,
            f"the first size must be {num_rows} for {num_items} items, got the shape {list(tensor.shape)}",
        )


def _num_rows(given: MediaTensors, name: str) -> int:
    sizes = given.tensors.get(name)
    if sizes is None or sizes.dtype not in _SIZES:
        raise _refused("flat_keys", f"{name!r} must be a tensor of {', '.join(_SIZES)}")
    if math.prod(sizes.shape) != len(given.placeholders):
        raise _refused(name, f"must have one size for each of {len(given.placeholders)} items")
    check_length(name, sizes)
    rows = memoryview(sizes.data).cast(_SIZES[sizes.dtype]).tolist()
    if min(rows) < 0:
        raise _refused(name, f"sizes must not be negative, got {min(rows)}")
    return sum(rows)


def check_placeholders(batches: Sequence[MediaTensors], token_ids: Sequence[int]) -> None:
    """Raises `BadRequest` for placeholders that lie outside the prompt or overlap each other."""
    end_of_last = 0
    for start, length, token_id in sorted(_placeholders(batches), key=lambda one: one[:2]):
        where = f"the placeholder of {length} tokens at token {start}"
        if length < 1 or start + length > len(token_ids):
            raise _refused(
                "mm_placeholders",
                f"{where} is outside the prompt, which has {len(token_ids)} tokens",
            )
        if start < end_of_last:
            raise _refused("mm_placeholders", f"{where} overlaps another placeholder")
        end_of_last = start + length
        if token_id is not None and token_id not in token_ids[start:end_of_last]:
            raise _refused("im_token_id", f"{where} must contain the token {token_id}")


def _placeholders(
    batches: Sequence[MediaTensors],
) -> Iterator[tuple[int, int, int | None]]:
    for given in batches:
        for start, length in given.placeholders:
            yield start, length, given.embed_token_id


def _refused(name: str, words: str) -> BadRequest:
    return BadRequest(TENSORS, f"{TENSORS}: {name}: {words}")
