"""LoRA adapters on the rows of a step: each row uses the adapter of its sequence, or none.

Rows with the same adapter are computed together, in products of the same shape however many rows there are (`tiles`):
so a row's bits do not depend on other rows with the same adapter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic import tiles
from weft.compute.protocols.runner import Batch, FloatArray, IntArray
from weft.model.lora import Adapter, LowRank

# Names of matrices that are computed together, each with its first column in the result.
Parts = Sequence[tuple[str, int]]

_EMBED, _HEAD = "embed", "head"


class AdapterSet:
    """The adapters of one runner, by id. Ids begin at 1; the id 0 stands for the model without an adapter."""

    def __init__(self) -> None:
        self._by_id: dict[int, Adapter] = {}

    def add(self, adapter_id: int, adapter: Adapter) -> None:
        """Adds an adapter."""
        assert adapter_id not in self._by_id
        low_rank = {
            name: _without_inner_edges(delta, is_embed=name == _EMBED)
            for name, delta in adapter.low_rank.items()
        }
        self._by_id[adapter_id] = Adapter(low_rank, adapter.whole)

    def remove(self, adapter_id: int) -> None:
        """Removes an adapter that no row of a later step uses."""
        del self._by_id[adapter_id]

    def of_rows(self, batch: Batch) -> "AdapterRows":
        """Returns the rows of a step, grouped by adapter."""
        if batch.adapter_ids is None:
            return AdapterRows(())
        lengths = np.diff(batch.query_starts)
        return self._grouped(np.repeat(batch.adapter_ids, lengths))

    def of_logits(self, batch: Batch) -> "AdapterRows":
        """Returns the rows with logits, grouped by adapter."""
        if batch.adapter_ids is None:
            return AdapterRows(())
        owners = np.searchsorted(batch.query_starts, batch.logit_rows, side="right") - 1
        return self._grouped(batch.adapter_ids[owners])

    def _grouped(self, adapter_ids: IntArray) -> "AdapterRows":
        present = [int(adapter_id) for adapter_id in np.unique(adapter_ids) if adapter_id]
        return AdapterRows(
            tuple(
                _Group(self._by_id[adapter_id], np.flatnonzero(adapter_ids == adapter_id))
                for adapter_id in present
            )
        )


@dataclass(frozen=True, slots=True)
class _Group:
    """An adapter and the rows that use it."""

    adapter: Adapter
    rows: np.ndarray[tuple[int], np.dtype[np.intp]]


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The rows of a step that use adapters."""

    groups: tuple[_Group, ...]

    def add(self, result: FloatArray, rows: FloatArray, prefix: str, parts: Parts) -> FloatArray:
        """Adds the adapters' results for `rows` to `result` in place.

        The matrices have the names `prefix` + name, for each name in `parts`.
        """
        for group in self.groups:
            found = _found(group.adapter.low_rank, prefix, parts)
            if not found:
                continue
            taken = tiles.pad_rows(rows[group.rows])
            for start, delta in found:
                added = tiles.matmul(tiles.matmul(taken, delta.a), delta.b)
                result[group.rows, start : start + len(delta.b)] += added[: len(group.rows)]
        return result

    def embed(self, result: FloatArray, token_ids: IntArray) -> FloatArray:
        """Adds the adapters' parts to the embeddings of a step in place."""
        for group in self.groups:
            ids = token_ids[group.rows]
            whole = group.adapter.whole.get(_EMBED)
            if whole is not None:
                result[group.rows] = whole[ids]
            delta = group.adapter.low_rank.get(_EMBED)
            if delta is not None:
                taken = tiles.pad_rows(delta.a[ids])
                result[group.rows] += tiles.matmul(taken, delta.b)[: len(ids)]
        return result

    def head(self, result: FloatArray, rows: FloatArray) -> FloatArray:
        """Adds the adapters' parts to the head's result for `rows` in place."""
        for group in self.groups:
            whole = group.adapter.whole.get(_HEAD)
            if whole is not None:
                taken = tiles.pad_rows(rows[group.rows])
                result[group.rows] = tiles.matmul(taken, whole)[: len(group.rows)]
        return self.add(result, rows, "", ((_HEAD, 0),))


def _found(low_rank: Mapping[str, LowRank], prefix: str, parts: Parts) -> list[tuple[int, LowRank]]:
    return [(start, low_rank[prefix + name]) for name, start in parts if prefix + name in low_rank]


def _without_inner_edges(delta: LowRank, *, is_embed: bool) -> LowRank:
    """Returns the same low-rank matrices with their rank padded to whole tiles.

    BLAS uses other kernels for vectors and for incomplete tiles. The padding is zeros, and adding zeros does not change
    the bits of a float32 sum. An embedding's `a` is transposed, so that a token is a row of it.
    """
    rank = len(delta.a)
    missing = tiles.padded_length(rank) - rank
    a = np.pad(delta.a, ((0, missing), (0, 0)))
    b = np.pad(delta.b, ((0, 0), (0, missing)))
    return LowRank(np.ascontiguousarray(a.T) if is_embed else a, b)
