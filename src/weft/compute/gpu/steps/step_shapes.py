"""The sizes that steps are padded to: so few that each captured graph is used repeatedly."""

from bisect import bisect_left

from weft.compute.gpu.launches import power_of_two
from weft.compute.gpu.steps.step import Layout, StepShape
from weft.compute.protocols.runner import Batch

# Padded numbers of rows for steps with one row per sequence; neighbours differ by at most one tile.
_LONE_ROWS = (
    1,
    2,
    4,
    8,
    16,
    24,
    32,
    48,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    320,
    384,
    448,
    512,
)
_MIXED_ROWS = (64, 128, 256, 512, 768, 1024, 1536, 2048)
_SEQUENCES = (16, 64, 256, 512)


def exact_shape(batch: Batch, layout: Layout, part: int) -> StepShape:
    """Returns the shape of a step without padding."""
    return StepShape(
        num_rows=len(batch.token_ids),
        num_wanted=len(batch.logit_rows),
        num_lone=len(layout.lone_rows),
        num_tiles=len(layout.tile_rows),
        num_attention_parts=_num_parts(batch, layout, part),
    )


def padded_shape(batch: Batch, layout: Layout, part: int) -> StepShape | None:
    """Returns the next larger padded shape; None for a step so large, or so rare, that a graph is not worth its
    capture.
    """
    rows, wanted, lone = len(batch.token_ids), len(batch.logit_rows), len(layout.lone_rows)
    parts = power_of_two(_num_parts(batch, layout, part))
    if lone == rows:
        size = _next(_LONE_ROWS, rows)
        return None if size is None else StepShape(size, size, size, 0, parts)
    size = _next(_MIXED_ROWS, rows)
    sequences = _next(_SEQUENCES, max(wanted, lone))
    if size is None or sequences is None:
        return None
    tiles = power_of_two(len(layout.tile_rows))
    return StepShape(size, sequences, sequences if lone else 0, max(16, tiles), parts)


def _num_parts(batch: Batch, layout: Layout, part: int) -> int:
    """Returns the number of parts of keys of the longest sequence with one row."""
    if not len(layout.lone_rows):
        return 1
    return int(batch.positions[layout.lone_rows].max()) // part + 1


def _next(sizes: tuple[int, ...], count: int) -> int | None:
    place = bisect_left(sizes, count)
    return sizes[place] if place < len(sizes) else None
