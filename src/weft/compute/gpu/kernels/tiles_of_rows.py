"""Attention of several rows of a sequence: the parts of their keys are computed one after the other."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.compute.gpu.kernels.attention import add_keys, first_key, merge, weighed


@triton.jit
def tiles_of_rows(
    Q,
    KEYS,
    VALUES,
    TABLES,
    STRIDE,
    TILE_SEQUENCES,
    TILE_ROWS,
    TILE_ENDS,
    POSITIONS,
    SINKS,
    OUT,
    out_stride,
    scale,
    cap,
    HQ: tl.constexpr,
    HK: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PART: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes OUT of the rows [TILE_ROWS[i], TILE_ENDS[i]), together for all heads that share keys."""
    if PDL:
        gdc_wait()
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # tiles with the most keys start first
    kv_head = tl.program_id(0)
    GROUP: tl.constexpr = HQ // HK
    ROWS: tl.constexpr = BM // GROUP
    end = tl.load(TILE_ENDS + tile)
    first_row = tl.load(TILE_ROWS + tile)
    if first_row >= end:
        return
    i = tl.arange(0, BM)
    c = tl.arange(0, BLOCK_D)
    rows = first_row + i // GROUP
    head = kv_head * GROUP + i % GROUP
    is_real = (i < ROWS * GROUP) & (rows < end)
    rows = rows.to(tl.int64)
    is_stored = is_real[:, None] & (c < D)[None, :]
    q = tl.load(Q + (rows * HQ + head)[:, None] * D + c[None, :], mask=is_stored, other=0.0)
    positions = tl.load(POSITIONS + rows, mask=is_real, other=-1)
    stop = tl.max(positions, 0) + 1
    # Positions of a sequence's rows ascend.
    seen = first_key(tl.load(POSITIONS + first_row), WINDOW, CHUNK)
    table = TABLES + tl.load(TILE_SEQUENCES + tile).to(tl.int64) * tl.load(STRIDE)
    m = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BLOCK_D), tl.float32)
    # All rows attend to the keys from `clear` to `full`; both are multiples of a tile.
    clear = (first_key(stop - 1, WINDOW, CHUNK) + BN - 1) // BN * BN
    full = (tl.load(POSITIONS + first_row) + 1) // BN * BN
    for start in range(seen // PART * PART, stop, PART):
        m2 = tl.full((BM,), float("-inf"), tl.float32)
        total2 = tl.zeros((BM,), tl.float32)
        acc2 = tl.zeros((BM, BLOCK_D), tl.float32)
        end_part = tl.minimum(start + PART, stop)
        begin = tl.maximum(start, seen // BN * BN)
        if WINDOW > 0 or CHUNK > 0:
            for first in range(begin, tl.minimum(clear, end_part), BN):
                m2, total2, acc2 = add_keys(
                    q,
                    KEYS,
                    VALUES,
                    table,
                    first,
                    stop,
                    positions,
                    kv_head,
                    scale,
                    cap,
                    m2,
                    total2,
                    acc2,
                    HK,
                    D,
                    BLOCK_D,
                    BS,
                    BN,
                    WINDOW,
                    CHUNK,
                    HAS_CAP,
                    False,
                )
            begin = tl.maximum(begin, clear)
        for first in range(begin, tl.minimum(full, end_part), BN):
            m2, total2, acc2 = add_keys(
                q,
                KEYS,
                VALUES,
                table,
                first,
                stop,
                positions,
                kv_head,
                scale,
                cap,
                m2,
                total2,
                acc2,
                HK,
                D,
                BLOCK_D,
                BS,
                BN,
                WINDOW,
                CHUNK,
                HAS_CAP,
                True,
            )
        for first in range(tl.maximum(begin, full), end_part, BN):
            m2, total2, acc2 = add_keys(
                q,
                KEYS,
                VALUES,
                table,
                first,
                stop,
                positions,
                kv_head,
                scale,
                cap,
                m2,
                total2,
                acc2,
                HK,
                D,
                BLOCK_D,
                BS,
                BN,
                WINDOW,
                CHUNK,
                HAS_CAP,
                False,
            )
        m, total, acc = merge(m, total, acc, m2, total2, acc2)
    if PDL:
        gdc_launch_dependents()
    y = weighed(m, total, acc, SINKS, head, is_real, HAS_SINKS)
    tl.store(
        OUT + rows[:, None] * out_stride + head[:, None] * D + c[None, :],
        y.to(OUT.dtype.element_ty),
        mask=is_stored,
    )
