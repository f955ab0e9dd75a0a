"""Python interface of the C++ core: its runners and sampler, and the features of the CPU."""

from dataclasses import dataclass

from weft.compute.native import _core
from weft.compute.native.core_spec import Rounding
from weft.compute.native.runner import (
    MAX_THREADS,
    Machine,
    NativeEncoder,
    NativeRunner,
    ResidentBytes,
    available_cpus,
    resident_bytes,
    trim_heap,
    usable_paths,
)
from weft.compute.native.sampler import NativeSampler

__all__ = [
    "MAX_THREADS",
    "Cpu",
    "Machine",
    "NativeEncoder",
    "NativeRunner",
    "NativeSampler",
    "ResidentBytes",
    "Roofline",
    "Rounding",
    "available_cpus",
    "cpu",
    "measure_roofline",
    "resident_bytes",
    "trim_heap",
    "usable_paths",
]


@dataclass(frozen=True, slots=True)
class Cpu:
    """A CPU's architecture ("x86-64", "aarch64" or "other") and its usable vector extensions."""

    architecture: str
    features: tuple[str, ...]

    def describe(self) -> str:
        """Returns a short phrase, such as "x86-64 with avx2, fma"."""
        if not self.features:
            return self.architecture
        return f"{self.architecture} with {', '.join(self.features)}"


@dataclass(frozen=True, slots=True)
class Roofline:
    """Best measured throughput of this machine's memory and of its arithmetic."""

    bytes_per_s: float
    operations_per_s: float


def measure_roofline(
    dtype: str, num_threads: int | None = None, quantization: str | None = None
) -> Roofline:
    """Measures memory bandwidth and arithmetic throughput for some tens of milliseconds; for benchmarks."""
    element = "bfloat16" if dtype == "bfloat16" else "float32"
    threads = _core.available_cpus() if num_threads is None else num_threads
    return Roofline(
        *_core.measure_limits(
            usable_paths()[0], element, "none" if quantization is None else "int8", threads
        )
    )


def cpu() -> Cpu:
    """Returns the CPU of this machine, with the features that the operating system lets programs use."""
    return Cpu(_core.cpu_architecture(), tuple(_core.cpu_features()))
