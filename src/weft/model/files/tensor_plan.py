"""`TensorPlan`: the tensors that a model has, with their shapes and the names in its files."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows of `count` heads with `size` rows each in a source; successive heads begin `step` rows apart.

    Among the first `turned` rows of a head, two rows that are rotated together are adjacent in the source. In Weft they
    are `turned` / 2 rows apart, as all kernels expect.
    """

    count: int
    size: int
    step: int
    turned: int = 0

    def index(self, start: int) -> NDArray[np.intp]:
        """Returns the source's row for each of the heads' rows; the first head begins at row `start` of the source."""
        rows = np.arange(self.size)
        rows[: self.turned] = rows[: self.turned].reshape(-1, 2).T.reshape(-1)
        heads = start + self.step * np.arange(self.count)
        return (heads[:, None] + rows).reshape(-1)


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor to read: `name` is rows [start, start + shape[0]) of the checkpoint's `source`, which has `rows` rows.

    `is_transposed`: the file has rows and columns exchanged. With a `factor` the tensor is the source times this
    matrix. `stack`: the file has this many matrices in one tensor of three dimensions, whose rows are numbered
    consecutively; every `step`th row is selected, from `start` on. `heads`: these rows are selected instead, from
    `start` on. `folded`: dimensions of a row in the file. `flattened`: dimensions of a vector in the file.
    `channels_last`: number of channels, which are last in a row of the file. `multipliers` are runs of rows, each with
    a factor of its values.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    start: int
    rows: int
    is_transposed: bool = False
    factor: "TensorPlan | None" = None
    stack: int | None = None
    step: int = 1
    heads: HeadRows | None = None
    folded: tuple[int, ...] | None = None
    flattened: tuple[int, ...] | None = None
    channels_last: int | None = None
    multipliers: tuple[tuple[int, float], ...] = ()

    @property
    def index(self) -> NDArray[np.intp] | None:
        """Rows of the source, one for each row of the tensor; None if the rows are consecutive from `start` on."""
        return None if self.heads is None else self.heads.index(self.start)

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Shape of the whole source tensor, as rows and columns."""
        shape = self.shape if self.factor is None else self.factor.shape[::-1]
        return (self.rows, *shape[1:])

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the whole source tensor as the file stores it."""
        if self.stack is not None:
            each = (self.rows // self.stack, *self.shape[1:])
            return (self.stack, *(each[::-1] if self.is_transposed else each))
        if self.flattened is not None:
            return self.flattened
        if self.folded is not None:
            return (self.rows, *self.folded)
        return self.source_shape[::-1] if self.is_transposed else self.source_shape

    @property
    def takes_adapters(self) -> bool:
        """True for a trained matrix of the embedding, or of a linear layer that every token uses."""
        is_table = self.name.startswith(("positions", "tower.", "inputs."))
        is_table = is_table or self.name.endswith(".conv") or ".input." in self.name
        is_matrix = len(self.shape) == 2 and not is_table and self.factor is None
        return is_matrix and not self.is_of_experts and not self.name.endswith(".kv_b")

    @property
    def is_of_experts(self) -> bool:
        """True if the tensor belongs to routed experts or to their router."""
        own = (".router", ".router.bias", ".router_correction", ".router_scales", ".shared_gate")
        return ".experts." in self.name or self.name.endswith(own)

    @property
    def may_be_grouped(self) -> bool:
        """True if kernels may compute with the tensor in its stored group-quantized format."""
        is_own = ".kv_b" in self.name or ".input." in self.name
        return self.name.startswith("layers.") and not is_own

    @property
    def lead(self) -> str:
        """Prefix of the names of the tensors that store the source in quantized form."""
        module = self.source.removesuffix(".weight")
        return f"{module}_" if module == self.source else f"{module}."
