"""Reads prompts that are embeddings: from arrays of Python callers, or from base64 files that contain one tensor.

A file is safetensors, or as torch saves a tensor: a zip in which a pickle says where the numbers lie. The pickle is
never executed: its instructions are read as data, and every instruction that one plain tensor does not need is refused.
"""

import binascii
import hashlib
import io
import pickletools
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from weft.core.checks.validate import Limits, check_prompt_length
from weft.core.errors import BadRequest
from weft.core.panics import panics_as
from weft.core.values.prompts import EmbeddedTokens, EmbedsPart
from weft.model.weights import BYTES_PER_ELEMENT, STORAGE, Tensor

FIELD = "prompt_embeds"
# The embeddings are sent to the engine's process in one message.
MAX_BYTES = 128 << 20
# For one tensor; headers written by torch and safetensors have some hundred bytes.
_MAX_HEADER_BYTES = 4096
_MAX_ZIP_ENTRIES = 64
_ZIP = b"PK\x03\x04"
_ZIP_ENTRY = b"PK\x01\x02"
_SAFETENSORS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_STORAGES = {
    "torch FloatStorage": "float32",
    "torch BFloat16Storage": "bfloat16",
    "torch HalfStorage": "float16",
}
_REBUILD = "torch._utils _rebuild_tensor_v2"
_MARK = object()
_PUSHED = frozenset("GLOBAL BINUNICODE BININT BININT1 BININT2 LONG1".split())
_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None, "EMPTY_TUPLE": (), "MARK": _MARK}
# Instructions that are skipped: a storage is represented by the tuple that describes it.
_IDLE = ("PROTO", "BINPERSID")


@dataclass(frozen=True, slots=True)
class _Called:
    """A call that a pickle describes: the function's name and its arguments. The call is never executed."""

    function: Any
    arguments: Any


def read_array(given: object) -> EmbedsPart:
    """Reads an array of floats, [tokens, hidden], from Python; `BadRequest` for anything else."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise _bad(
            f"is no array of numbers ({error}); one of torch's bfloat16 needs .float()"
        ) from None
    if array.dtype not in (np.float32, np.float16):
        raise _bad(f"must be of float32 or float16, got {array.dtype}")
    return _part(_shape(array.shape), array.astype(np.float32, copy=False))


def read_base64(text: str, limits: Limits) -> EmbedsPart:
    """Reads the tensor in a body's field; its size is checked before conversion, which takes some ms per megabyte."""
    check_enabled(limits)
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise _bad(f"is not base64: {error}") from None
    dtype, shape, raw = _of_torch(data) if data.startswith(_ZIP) else _of_safetensors(data)
    num_tokens, size = _shape(shape)
    _check_shape(num_tokens, size, limits)
    if len(raw) != num_tokens * size * BYTES_PER_ELEMENT[dtype]:
        raise _bad(f"has {len(raw)} bytes of {dtype} for a shape of [{num_tokens}, {size}]")
    values = np.frombuffer(raw, np.dtype(STORAGE[dtype]).newbyteorder("<"))
    return _part((num_tokens, size), Tensor(dtype, values).float32())


def check_enabled(limits: Limits) -> None:
    """Raises `BadRequest` if the engine accepts no embeddings."""
    if limits.prompt_embeds_size is None:
        raise _bad("is taken by an engine with --enable-prompt-embeds, and not over gRPC")


def check_part(part: EmbedsPart, limits: Limits) -> None:
    """Raises `BadRequest` unless the embeddings fit the model."""
    check_enabled(limits)
    if part.num_tokens == 0 or len(part.rows) % (4 * part.num_tokens):
        raise _bad("must have a row of float32 for each token, and at least one")
    _check_shape(part.num_tokens, len(part.rows) // (4 * part.num_tokens), limits)
    if not np.isfinite(np.frombuffer(part.rows, np.float32)).all():
        raise _bad("must hold numbers, and neither NaN nor infinity")


def check_together(embeds: Sequence[EmbeddedTokens]) -> None:
    """Raises `BadRequest` if the embeddings of a prompt exceed a message to the engine."""
    if sum(len(one.rows) for one in embeds) > MAX_BYTES:
        raise _bad(
            f"must have at most {MAX_BYTES} bytes as float32 in all parts of a prompt together"
        )


def salt_of(embeds: Sequence[EmbeddedTokens], cache_salt: str | None) -> str:
    """Returns a cache salt that separates the prompt's cached blocks from those of other embeddings and of token ids.

    Callers' salts have no line breaks.
    """
    digest = hashlib.sha256()
    for one in embeds:
        digest.update(struct.pack("<QQ", one.start, one.num_tokens) + one.rows)
    return f"{cache_salt or ''}\n{digest.hexdigest()}"


def _part(shape: tuple[int, int], array: NDArray[np.float32]) -> EmbedsPart:
    return EmbedsPart(rows=array.tobytes(), num_tokens=shape[0])


def _shape(shape: object) -> tuple[int, int]:
    """Returns two dimensions; vLLM's clients also send a batch of one."""
    if isinstance(shape, tuple | list) and all(type(size) is int for size in shape):
        sizes = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
        if len(sizes) == 2 and min(sizes) >= 0:
            return sizes[0], sizes[1]
    raise _bad("must have the shape [tokens, hidden size]")


def _check_shape(num_tokens: int, size: int, limits: Limits) -> None:
    if size != limits.prompt_embeds_size:
        raise _bad(f"must have rows of {limits.prompt_embeds_size} numbers, got {size}")
    check_prompt_length(num_tokens, limits)
    if num_tokens * size * 4 > MAX_BYTES:
        raise _bad(f"must have at most {MAX_BYTES} bytes as float32")


def _of_safetensors(data: bytes) -> tuple[str, Any, bytes]:
    """The single tensor of a safetensors file: type, shape and bytes."""
    if int.from_bytes(data[:8], "little") > _MAX_HEADER_BYTES:
        raise _bad("must be a file of safetensors, or of torch.save, with one tensor")
    try:
        with panics_as(SafetensorError):
            tensors: Any = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise _bad(f"is neither of safetensors nor of torch.save ({error})") from None
    if len(tensors) != 1:
        raise _bad(f"must hold one tensor, got {len(tensors)}")
    entry: Any = tensors[0][1]
    dtype = _SAFETENSORS.get(entry["dtype"])
    if dtype is None:
        raise _bad(f"must be of {', '.join(_SAFETENSORS)}, got {entry['dtype']}")
    return dtype, entry["shape"], entry["data"]


# Exceptions of the library for damaged files; the last three are for positions outside the file, and for names.
_ZIP_ERRORS = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, struct.error,
    OverflowError,
)  # fmt: skip


def _of_torch(data: bytes) -> tuple[str, Any, bytes]:
    """The tensor that `torch.save` wrote: type, shape and bytes."""
    if data.count(_ZIP_ENTRY) > _MAX_ZIP_ENTRIES:
        raise _bad("must hold one tensor, got a zip of many files")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            return _in_zip(file)
    except _ZIP_ERRORS as error:
        raise _bad(f"is no file of torch.save: {error}") from None


def _in_zip(file: zipfile.ZipFile) -> tuple[str, Any, bytes]:
    # Taken from the list of entries: a second entry of the same name could unpack to a thousand times its size.
    entries = {e.filename: e for e in file.infolist() if e.compress_type == zipfile.ZIP_STORED}
    pickles = [name for name in entries if name.endswith("/data.pkl")]
    if len(pickles) != 1 or entries[pickles[0]].file_size > _MAX_HEADER_BYTES:
        raise _bad("must hold one tensor, as torch.save(tensor, file) writes it")
    top = pickles[0].removesuffix("data.pkl")
    if f"{top}byteorder" in entries and file.read(entries[f"{top}byteorder"]) != b"little":
        raise _bad("must be little-endian")
    match _instructions(file.read(entries[pickles[0]])):
        case _Called(
            function=str(rebuild),
            arguments=(
                ("storage", str(storage), str(key), _, int(_)),
                int(start),
                shape,
                stride,
                *_,
            ),
        ) if rebuild == _REBUILD and storage in _STORAGES and f"{top}data/{key}" in entries:
            dtype = _STORAGES[storage]
        case _:
            raise _bad(f"must be one plain tensor of {', '.join(_STORAGES.values())}")
    rows, width = _shape(shape)
    if not isinstance(stride, tuple) or stride[-2:] != (width, 1):
        raise _bad("must be contiguous: save tensor.contiguous()")
    first, length = start * BYTES_PER_ELEMENT[dtype], rows * width * BYTES_PER_ELEMENT[dtype]
    return dtype, shape, file.read(entries[f"{top}data/{key}"])[first : first + length]


def _instructions(pickled: bytes) -> Any:
    """Returns the description of a tensor in a pickle, made of tuples, texts, numbers and `_Called`; imports and
    calls nothing.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    try:
        for code, argument, _ in pickletools.genops(pickled):
            if code.name == "STOP":
                return stack.pop()
            _follow(code.name, argument, stack, memo)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise _bad(f"holds a pickle that does not describe a plain tensor: {error}") from None
    raise _bad("holds a pickle without an end")


def _follow(name: str, argument: Any, stack: list[Any], memo: dict[Any, Any]) -> None:
    if name in _PUSHED:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in ("BINPUT", "LONG_BINPUT"):
        memo[argument] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(memo[argument])
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        _gather(stack, len(stack) - int(name[-1]))
    elif name == "TUPLE":
        mark = len(stack) - 1 - stack[::-1].index(_MARK)
        _gather(stack, mark + 1)
        del stack[mark]
    elif name == "REDUCE":
        arguments = stack.pop()
        stack.append(_Called(stack.pop(), arguments))
    elif name not in _IDLE:
        raise ValueError(f"the pickle opcode {name} is not supported")


def _gather(stack: list[Any], first: int) -> None:
    if first < 0:
        raise IndexError("too few values")
    stack[first:] = [tuple(stack[first:])]


def _bad(what: str) -> BadRequest:
    return BadRequest(FIELD, f"{FIELD} {what}")
