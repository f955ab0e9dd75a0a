"""`Matrix`: a matrix on the card, and the launches that multiply rows by it.

The number of parts of the depth follows only from the matrix's shape. Tiles, stages, and whether parts are computed in
parallel do not change the result's bits.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from weft.compute.gpu import launches
from weft.compute.gpu.formats import padded_depth
from weft.compute.gpu.kernels import products

_DEPTH = padded_depth(1)
_FEW = 128  # maximum rows of one tile of `few_rows`


@dataclass(frozen=True, slots=True)
class Ending:
    """Conversion of a product's sums before they are stored; `kernels.products` explains `kind`."""

    kind: str = "parts"
    activation: str = ""
    limit: float = 0.0
    alpha: float = 1.0
    divisor: float = 1.0
    cap: float = 0.0


PARTS = Ending()


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """The shape of a matrix of `num_rows` rows, for "gated" products twice as many as outputs, and of a padded `depth`.

    Its `bias` is for the code that adds the parts.
    """

    num_rows: int
    depth: int
    ending: Ending = PARTS
    bias: torch.Tensor | None = None

    @property
    def num_outputs(self) -> int:
        """Number of values in a row of the result."""
        return self.num_rows // (2 if self.ending.kind == "gated" else 1)

    @property
    def num_parts(self) -> int:
        """Number of parts of the depth; 1 if the ending needs whole sums."""
        return num_parts_of(self.num_rows, self.depth) if self.ending.kind == "parts" else 1

    def is_serial(self, num_rows: int) -> bool:
        """True if the parts for so many rows are computed one after the other, into one."""
        return num_rows > launches.tuning().serial_above or self.num_parts == 1

    @property
    def part_depth(self) -> int:
        """Number of columns of a part."""
        return self.depth // self.num_parts

    @property
    def adds_bias(self) -> bool:
        """True if the product's kernel adds the bias."""
        return self.bias is not None and self.ending.kind != "parts"

    def stride(self, out: torch.Tensor) -> int:
        """Returns the distance between two rows of a result."""
        return out.stride(0) if out.dim() == 2 else self.num_outputs

    def constants(self) -> dict[str, Any]:
        """Returns the arguments of kernels that follow from the ending."""
        end = self.ending
        return {
            "KIND": end.kind,
            "HAS_BIAS": self.adds_bias,
            "ACTIVATION": end.activation,
            "LIMIT": end.limit,
            "ALPHA": end.alpha,
            "DIVISOR": end.divisor,
            "CAP": end.cap,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix(Factor, ABC):
    """A matrix that multiplies the rows of a step."""

    @abstractmethod
    def __call__(self, rows: torch.Tensor, out: torch.Tensor) -> int:
        """Multiplies `rows` [rows, depth] into `out` [parts, rows, outputs]; returns the number of parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WideMatrix(Matrix):
    """A matrix with `weights` [rows, depth] in the type of the model."""

    weights: torch.Tensor

    @classmethod
    def of(
        cls, weights: torch.Tensor, ending: Ending = PARTS, bias: torch.Tensor | None = None
    ) -> "WideMatrix":
        """Returns the matrix with these weights."""
        num_rows, depth = weights.shape
        return cls(num_rows=num_rows, depth=depth, weights=weights, ending=ending, bias=bias)

    def __call__(self, rows: torch.Tensor, out: torch.Tensor) -> int:
        if len(rows) <= launches.tuning().few_rows:
            self._multiply_few(rows, out)
            return self.num_parts
        is_serial = self.is_serial(len(rows))
        self._multiply_many(rows, out, is_serial)
        return 1 if is_serial else self.num_parts

    def _multiply_few(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        num_rows, outputs = len(rows), self.num_outputs
        height = min(_FEW, max(16, launches.power_of_two(num_rows)))
        tile = launches.tuning().few(height, self.part_depth, self.ending.kind)
        grid = (-(-outputs // tile.outputs), self.num_parts, -(-num_rows // height))
        products.few_rows[grid](
            *self._arguments(rows, out),
            **self.constants(),
            BM=height,
            BN=tile.outputs,
            BK=tile.depth,
            EVEN=outputs % tile.outputs == 0,
            **tile.options(),
        )

    def _multiply_many(self, rows: torch.Tensor, out: torch.Tensor, is_serial: bool) -> None:
        outputs = self.num_outputs
        tile = launches.tuning().many(len(rows), outputs, self.ending.kind)
        tiles = -(-len(rows) // tile.rows) * -(-outputs // tile.outputs)
        products.many_rows[(tiles, 1 if is_serial else self.num_parts)](
            *self._arguments(rows, out),
            **self.constants(),
            BM=tile.rows,
            BN=tile.outputs,
            BK=tile.depth,
            EVEN=outputs % tile.outputs == 0,
            PARTS=self.num_parts,
            IS_SERIAL=is_serial,
            **tile.options(),
        )

    def _arguments(self, rows: torch.Tensor, out: torch.Tensor) -> tuple[Any, ...]:
        bias = self.bias if self.adds_bias and self.bias is not None else self.weights
        counts = (len(rows), self.num_outputs, self.depth, self.part_depth)
        return (rows, self.weights, out, bias, *counts, rows.stride(0), self.stride(out))


def num_parts_of(outputs: int, depth: int) -> int:
    """Returns the number of parts of a matrix: enough for two programs on each of 100 multiprocessors, in tiles of
    64 rows.
    """
    parts = 1
    while (
        -(-outputs // 64) * parts < 128
        and depth % (parts * 2 * _DEPTH) == 0
        and depth // parts > 256
    ):
        parts *= 2
    return parts
