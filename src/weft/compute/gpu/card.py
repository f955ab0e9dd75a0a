"""The NVIDIA cards of this machine, as the driver's library reports them, without torch or a CUDA context."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from weft.compute.memory import free_memory_bytes

_LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96
_HIDDEN = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Card:
    """An NVIDIA card. `capability` is its compute capability, such as (9, 0)."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def is_interpreted() -> bool:
    """True if Triton's interpreter runs the kernels on the CPU, in float32; used by tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def find_card(library_name: str = _LIBRARY) -> Card | None:
    """Returns the first card that this process may use; None without a card or a driver."""
    if is_interpreted():
        free = free_memory_bytes()
        return Card("Triton's interpreter", (9, 0), free, free)
    try:
        with _library(library_name) as library:
            handle = _first_visible(library)
            return None if handle is None else _read(library, handle)
    except OSError:  # the library is missing or refuses the call
        return None


@contextmanager
def _library(name: str) -> Iterator[ctypes.CDLL]:
    library = ctypes.CDLL(name)
    _check(library.nvmlInit_v2())
    try:
        yield library
    finally:
        library.nvmlShutdown()


def _first_visible(library: ctypes.CDLL) -> ctypes.c_void_p | None:
    """Returns the card that CUDA would choose: the first one in the environment variable, by number or identifier."""
    named = os.environ.get(_HIDDEN)
    first = "0" if named is None else named.split(",")[0].strip()
    handle = ctypes.c_void_p()
    if first.isdigit():
        count = ctypes.c_uint()
        _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        if int(first) >= count.value:
            return None
        _check(library.nvmlDeviceGetHandleByIndex_v2(int(first), ctypes.byref(handle)))
        return handle
    if not first.startswith("GPU-"):
        return None
    _check(library.nvmlDeviceGetHandleByUUID(first.encode(), ctypes.byref(handle)))
    return handle


def _read(library: ctypes.CDLL, handle: ctypes.c_void_p) -> Card:
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _check(library.nvmlDeviceGetName(handle, name, _NAME_BYTES))
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(
        library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    )
    memory = _Memory()
    _check(library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)))
    return Card(name.value.decode(), (major.value, minor.value), memory.total, memory.free)


def _check(status: int) -> None:
    if status:
        raise OSError(status, f"{_LIBRARY} answered {status}")
