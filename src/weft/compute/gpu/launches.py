"""Launch parameters of kernels on this card: tiles, stages and warps. They do not change the bits of a result."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from weft.compute.gpu.card import is_interpreted


def device() -> torch.device:
    """Returns the device of all tensors."""
    return torch.device("cpu") if is_interpreted() else torch.device("cuda")


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is at least `count`."""
    return 1 << max(0, count - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile of a product: its size, and the launch parameters of its kernel; `depth` 0 if the format determines it."""

    rows: int
    outputs: int
    depth: int
    warps: int
    stages: int

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments of the launch."""
        return {"num_warps": self.warps, "num_stages": self.stages, **exact()}


@dataclass(frozen=True, slots=True)
class Tuning:
    """Launch parameters for one kind of card; the times in the comments were measured on an H100 (docs/gpu.md)."""

    # With at most this many rows, the parts of a product are computed in parallel, for every matrix.
    few_rows: int = 256
    serial_above: int = 512  # number of rows above which parts are computed one after the other
    most_expert_rows: int = 128
    keys: int = 64  # keys per tile of attention
    # Keys per part of attention: 512 → 256 takes 6.2 → 5.9 ms a step (Llama 8B, one sequence).
    part: int = 256
    lone_tile: int = 64  # adjacent heads that share keys, for tensor cores of 64 rows
    lone_stages: int = 5  # 3 → 5: 14.8 → 14.4 ms (Llama 8B, 128 sequences)
    # Rows per tile for sequences with several rows; 64: 1.75 → 2.13 ms a layer (8,192 rows).
    tile: int = 128
    tile_stages: int = 2  # 3: 1.75 → 2.02 ms

    def few(self, height: int, part: int, kind: str) -> Tile:
        """Returns the tile for a step of few rows and a matrix with parts of depth `part`."""
        if kind == "gated":  # two tiles of weights per tile of rows
            return Tile(height, 64, 64, 4, 4 if height <= 64 else 3)
        if kind == "head":
            return Tile(height, 128, 64, 8 if height > 64 else 4, 4)
        if (
            height <= 32 and part % 256 == 0
        ):  # 128 → 256: 2,853 → 2,911 GB/s (4096 × 14336, one row)
            return Tile(height, 64, 256, 4, 3)
        return Tile(height, 64, 128 if height <= 64 and part % 128 == 0 else 64, 4, 4)

    def many(self, rows: int, outputs: int, kind: str) -> Tile:
        """Returns the tile for a step of many rows."""
        if kind == "gated":
            return Tile(128, 128, 64, 8, 4)  # stages 3 → 4: 603 → 620 TFLOP/s (28672 × 4096)
        is_wide = -(-rows // 128) * -(-outputs // 256) >= 132
        return Tile(128, 256 if is_wide else 128, 64, 8, 3)

    def stored(self, rows: int, kind: str) -> Tile:
        """Returns the tile for a matrix in few bits; these tiles have not been measured on a card yet."""
        height = min(128, max(16, power_of_two(rows)))
        if height < 128:
            return Tile(height, 64, 0, 4, 5)
        return Tile(128, 64, 0, 4, 3) if kind == "gated" else Tile(128, 128, 0, 8, 3)

    def expert_rows(self, rows: int) -> int:
        """Returns the height of tiles for experts with so many rows each on average."""
        return min(self.most_expert_rows, max(16, power_of_two(rows)))

    def experts(self, height: int, kind: str) -> Tile:
        """Returns the tile for an expert's matrix; these tiles have not been measured on a card yet."""
        return self.stored(height, kind)


@dataclass(frozen=True, slots=True)
class InterpretedTuning(Tuning):
    """Small tiles for the interpreter, with one fixed depth, which determines the order of its sums."""

    few_rows: int = 32
    serial_above: int = 64
    most_expert_rows: int = 16
    keys: int = 16
    part: int = 32
    lone_tile: int = 16
    tile: int = 16

    def few(self, height: int, part: int, kind: str) -> Tile:
        return Tile(height, 512, 64, 4, 1)

    def many(self, rows: int, outputs: int, kind: str) -> Tile:
        return Tile(64, 512, 64, 4, 1)

    def stored(self, rows: int, kind: str) -> Tile:
        return Tile(min(64, max(16, power_of_two(rows))), 512, 0, 4, 1)


@cache
def tuning() -> Tuning:
    """Returns the launch parameters for this card."""
    return InterpretedTuning() if is_interpreted() else Tuning()


@cache
def exact() -> dict[str, Any]:
    """Returns options of every launch.

    Products and sums are not fused, so that kernels with the same formula give the same bits. A kernel may start before
    the previous kernel ends (compute capability 9.0 or later), and waits for its results: 1.52 → 1.37 ms a step
    (Qwen3-0.6B, one sequence).
    """
    if is_interpreted():
        return {"PDL": False}
    has_chains = torch.cuda.get_device_capability() >= (9, 0)
    chained = {"launch_pdl": True} if has_chains else {}
    return {"enable_fp_fusion": False, "PDL": has_chains, **chained}
