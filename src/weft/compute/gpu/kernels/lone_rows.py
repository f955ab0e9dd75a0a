"""Attention of sequences with one row in the step: the parts of their keys are computed in parallel."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.compute.gpu.kernels.attention import add_keys, first_key, merge, weighed


@triton.jit
def _merge_parts(
    own,
    row,
    kv_head,
    first_part,
    last_part,
    SINKS,
    PM,
    PL,
    PA,
    OUT,
    out_stride,
    HQ: tl.constexpr,
    HK: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Merges the parts of a row that `lone_rows` has written, and writes OUT for the heads that share keys."""
    GROUP: tl.constexpr = HQ // HK
    g = tl.arange(0, BLOCK_G)
    c = tl.arange(0, BLOCK_D)
    head = kv_head * GROUP + g
    is_real = g < GROUP
    is_stored = is_real[:, None] & (c < D)[None, :]
    place = (own.to(tl.int64) * HQ + head) * PARTS
    m = tl.full((BLOCK_G,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    for part in range(
        first_part, last_part + 1
    ):  # bypasses the L1 cache, because other programs wrote the values
        m2 = tl.load(PM + place + part, mask=is_real, other=0.0, cache_modifier=".cg")
        total2 = tl.load(PL + place + part, mask=is_real, other=1.0, cache_modifier=".cg")
        acc2 = tl.load(
            PA + (place + part)[:, None] * D + c[None, :],
            mask=is_stored,
            other=0.0,
            cache_modifier=".cg",
        )
        m, total, acc = merge(m, total, acc, m2, total2, acc2)
    y = weighed(m, total, acc, SINKS, head, is_real, HAS_SINKS)
    tl.store(
        OUT + row * out_stride + head[:, None] * D + c[None, :],
        y.to(OUT.dtype.element_ty),
        mask=is_stored,
    )


@triton.jit
def lone_rows(
    Q,
    KEYS,
    VALUES,
    TABLES,
    STRIDE,
    ROWS,
    SEQUENCES,
    POSITIONS,
    SINKS,
    PM,
    PL,
    PA,
    DONE,
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
    BLOCK_G: tl.constexpr,
    BN: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes OUT of row ROWS[i], for all heads that share keys.

    Each program computes one part, and the last program to finish merges all parts. DONE [lone rows, HK] counts
    finished parts; the last program resets it to 0.
    """
    if PDL:
        gdc_wait()
    own = tl.program_id(2)
    kv_head = tl.program_id(1)
    part = tl.program_id(0)
    GROUP: tl.constexpr = HQ // HK
    row = tl.load(ROWS + own)
    if row < 0:
        return
    row = row.to(tl.int64)
    position = tl.load(POSITIONS + row)
    seen = first_key(position, WINDOW, CHUNK)
    first_part = seen // PART
    last_part = position // PART
    if (part < first_part) | (part > last_part):
        return
    g = tl.arange(0, BM)
    c = tl.arange(0, BLOCK_D)
    is_real = g < GROUP
    head = kv_head * GROUP + g
    is_stored = is_real[:, None] & (c < D)[None, :]
    q = tl.load(Q + (row * HQ + head)[:, None] * D + c[None, :], mask=is_stored, other=0.0)
    table = TABLES + tl.load(SEQUENCES + own).to(tl.int64) * tl.load(STRIDE)
    positions = tl.where(is_real, position, -1)
    m = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BLOCK_D), tl.float32)
    stop = tl.minimum((part + 1) * PART, position + 1)
    for first in range(tl.maximum(part * PART, seen // BN * BN), stop, BN):
        m, total, acc = add_keys(
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
            m,
            total,
            acc,
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
    if PDL:
        gdc_launch_dependents()
    if PARTS > 1:
        if first_part != last_part:
            place = (own.to(tl.int64) * HQ + head) * PARTS + part
            tl.store(PM + place, m, mask=is_real)
            tl.store(PL + place, total, mask=is_real)
            tl.store(PA + place[:, None] * D + c[None, :], acc, mask=is_stored)
            tl.debug_barrier()
            num_done = tl.atomic_add(DONE + own * HK + kv_head, 1, sem="acq_rel")
            if num_done == last_part - first_part:
                tl.store(DONE + own * HK + kv_head, 0)
                _merge_parts(
                    own,
                    row,
                    kv_head,
                    first_part,
                    last_part,
                    SINKS,
                    PM,
                    PL,
                    PA,
                    OUT,
                    out_stride,
                    HQ,
                    HK,
                    D,
                    BLOCK_D,
                    BLOCK_G,
                    PARTS,
                    HAS_SINKS,
                )
            return
    y = weighed(m, total, acc, SINKS, head, is_real, HAS_SINKS)
    tl.store(
        OUT + row * out_stride + head[:, None] * D + c[None, :],
        y.to(OUT.dtype.element_ty),
        mask=is_stored,
    )
