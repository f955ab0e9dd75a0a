"""The C++ core. Today it tells what the CPU offers, by which its kernels will be chosen."""

from dataclasses import dataclass

from weft.compute.native import _core


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
