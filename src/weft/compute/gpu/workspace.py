"""`Workspace`: memory for intermediate results of a step, allocated once."""

from dataclasses import dataclass
from typing import Self

import torch

from weft.compute.gpu import launches
from weft.compute.gpu.formats import padded_depth
from weft.compute.gpu.matrices.products import Matrix
from weft.compute.gpu.matrices.routed_experts import RoutingSpace
from weft.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory for a step of `max_rows` rows. Columns beyond a row's width stay zero, for matrices with padded depth."""

    max_rows: int
    max_wanted: int
    max_lone_parts: int  # maximum of the number of lone rows times the number of parts of attention
    residual: torch.Tensor  # [rows, hidden] float32
    hidden: torch.Tensor  # [rows, hidden]
    wanted: torch.Tensor  # [wanted rows, hidden]
    parts: torch.Tensor  # partial sums of any product, float32
    queries: torch.Tensor  # [rows, heads, head_dim]
    attended: torch.Tensor  # [rows, heads * head_dim]
    middles: dict[int, torch.Tensor]  # by the size of an MLP, [rows, padded size]
    highest: torch.Tensor  # [lone rows, heads, parts of attention]
    totals: torch.Tensor
    sums: torch.Tensor  # like `highest`, with head_dim numbers each
    parts_done: torch.Tensor  # [lone rows, kv heads], zeros between launches
    routing: RoutingSpace | None = None  # for layers with experts

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        matrices: list[Matrix],
        dtype: torch.dtype,
        *,
        max_rows: int,
        max_wanted: int,
        max_lone_parts: int,
    ) -> Self:
        """Allocates the workspace of a model."""

        def zeros(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=launches.device())

        def activations(count: int, width: int) -> torch.Tensor:
            return zeros(count, padded_depth(width), kind=dtype)

        of_heads = max_lone_parts * spec.num_heads
        # Each size has its own memory: what pads a row is never written, and stays 0.
        sizes = set(map(spec.mlp_size, spec.layers))
        return cls(
            max_rows=max_rows,
            max_wanted=max_wanted,
            max_lone_parts=max_lone_parts,
            residual=zeros(max_rows, spec.hidden_size),
            hidden=activations(max_rows, spec.hidden_size),
            wanted=activations(max_wanted, spec.hidden_size),
            parts=zeros(
                max(
                    max_rows * spec.hidden_size,
                    *(most_parts(matrix, max_rows) for matrix in matrices),
                )
            ),
            queries=zeros(max_rows, spec.num_heads, spec.head_dim, kind=dtype),
            attended=activations(max_rows, spec.output_size),
            middles={size: activations(max_rows, size) for size in sizes},
            highest=zeros(of_heads),
            totals=zeros(of_heads),
            sums=zeros(of_heads, spec.head_dim),
            parts_done=zeros(max_lone_parts * spec.num_kv_heads, kind=torch.int32),
        )

    def has_room(self, num_rows: int, num_wanted: int, num_lone_parts: int) -> bool:
        """True if the workspace is large enough for a step of this size."""
        return (
            num_rows <= self.max_rows
            and num_wanted <= self.max_wanted
            and num_lone_parts <= self.max_lone_parts
        )


def most_parts(matrix: Matrix, max_rows: int) -> int:
    """Returns the maximum number of values that a product writes, in parts or as a whole."""
    if matrix.ending.kind != "parts":
        return 1
    in_parts = min(max_rows, launches.tuning().serial_above)
    return matrix.num_outputs * max(max_rows, matrix.num_parts * in_parts)
