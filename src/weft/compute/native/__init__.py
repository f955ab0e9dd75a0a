"""The C++ core, seen from Python: a runner, and what the CPU offers it."""

from dataclasses import dataclass

from weft.compute.native import _core
from weft.compute.native.runner import NativeRunner, usable_paths
from weft.compute.native.sizes import ResidentBytes, resident_bytes

__all__ = ["Cpu", "NativeRunner", "ResidentBytes", "cpu", "resident_bytes", "usable_paths"]


@dataclass(frozen=True, slots=True)
class Cpu:
    """An architecture ("x86-64", "aarch64" or "other") and the vector extensions usable on it."""

    architecture: str
    features: tuple[str, ...]

    def describe(self) -> str:
        """One short phrase, such as "x86-64 with avx2, fma"."""
        if not self.features:
            return self.architecture
        return f"{self.architecture} with {', '.join(self.features)}"


def cpu() -> Cpu:
    """The CPU of this machine, as the operating system lets programs use it."""
    return Cpu(_core.cpu_architecture(), tuple(_core.cpu_features()))
