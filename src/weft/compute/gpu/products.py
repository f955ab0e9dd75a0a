"""`Matrix`: a matrix on the card, and the launches that multiply rows by it.

The number of parts of the depth follows only from the matrix's shape. Tiles, stages, and whether parts are computed in
parallel do not change the result's bits.
"""

from dataclasses import dataclass
from typing import Any

import torch

from weft.compute.gpu import launches
from weft.compute.gpu.kernels import products

DEPTH = 64  # depth of tiles; the depth of a matrix is padded to a multiple
SERIAL_ABOVE = 512  # number of rows above which parts are computed one after the other
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


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights [out, depth], for "gated" products with twice as many rows; and a `bias` for the code that adds the
    parts.
    """

    weights: torch.Tensor
    num_parts: int
    ending: Ending = PARTS
    bias: torch.Tensor | None = None

    @classmethod
    def of(
        cls, weights: torch.Tensor, ending: Ending = PARTS, bias: torch.Tensor | None = None
    ) -> "Matrix":
        """Returns a matrix; its product is in parts if the ending allows parts."""
        num_parts = num_parts_of(*weights.shape) if ending.kind == "parts" else 1
        return cls(weights, num_parts, ending, bias)

    @property
    def num_outputs(self) -> int:
        """Number of values in a row of the result."""
        return int(self.weights.shape[0]) // (2 if self.ending.kind == "gated" else 1)

    def __call__(self, rows: torch.Tensor, out: torch.Tensor) -> int:
        """Multiplies `rows` [rows, depth] into `out` [parts, rows, outputs]; returns the number of parts."""
        if len(rows) <= launches.tuning().few_rows:
            self._multiply_few(rows, out)
            return self.num_parts
        is_serial = len(rows) > SERIAL_ABOVE or self.num_parts == 1
        self._multiply_many(rows, out, is_serial)
        return 1 if is_serial else self.num_parts

    def _multiply_few(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        num_rows, outputs, part = len(rows), self.num_outputs, self._part_depth
        height = min(_FEW, max(16, launches.power_of_two(num_rows)))
        tile = launches.tuning().few(height, part, self.ending.kind)
        grid = (-(-outputs // tile.outputs), self.num_parts, -(-num_rows // height))
        products.few_rows[grid](
            *self._arguments(rows, out),
            **self._constants(tile),
            BM=height,
            EVEN=outputs % tile.outputs == 0,
            **tile.options(),
        )

    def _multiply_many(self, rows: torch.Tensor, out: torch.Tensor, is_serial: bool) -> None:
        outputs = self.num_outputs
        tile = launches.tuning().many(len(rows), outputs, self.ending.kind)
        tiles = -(-len(rows) // tile.rows) * -(-outputs // tile.outputs)
        products.many_rows[(tiles, 1 if is_serial else self.num_parts)](
            *self._arguments(rows, out),
            **self._constants(tile),
            BM=tile.rows,
            EVEN=outputs % tile.outputs == 0,
            PARTS=self.num_parts,
            IS_SERIAL=is_serial,
            **tile.options(),
        )

    @property
    def _adds_bias(self) -> bool:
        return self.bias is not None and self.ending.kind != "parts"

    @property
    def _part_depth(self) -> int:
        return int(self.weights.shape[1]) // self.num_parts

    def _arguments(self, rows: torch.Tensor, out: torch.Tensor) -> tuple[Any, ...]:
        stride = out.stride(0) if out.dim() == 2 else self.num_outputs
        bias = self.bias if self._adds_bias and self.bias is not None else self.weights
        depth = self.weights.shape[1]
        counts = (len(rows), self.num_outputs, depth, self._part_depth)
        return (rows, self.weights, out, bias, *counts, rows.stride(0), stride)

    def _constants(self, tile: launches.Tile) -> dict[str, Any]:
        end = self.ending
        return {
            "KIND": end.kind,
            "HAS_BIAS": self._adds_bias,
            "ACTIVATION": end.activation,
            "LIMIT": end.limit,
            "ALPHA": end.alpha,
            "DIVISOR": end.divisor,
            "CAP": end.cap,
            "BN": tile.outputs,
            "BK": tile.depth,
        }


def num_parts_of(outputs: int, depth: int) -> int:
    """Returns the number of parts of a matrix: enough for two programs on each of 100 multiprocessors, in tiles of
    64 rows.
    """
    parts = 1
    while (
        -(-outputs // 64) * parts < 128
        and depth % (parts * 2 * DEPTH) == 0
        and depth // parts > 256
    ):
        parts *= 2
    return parts
