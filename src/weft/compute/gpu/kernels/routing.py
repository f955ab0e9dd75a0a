"""Experts of rows: their choice, the pairs of a row and an expert sorted by expert, and the sum of their results."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _of_best_groups(
    keys,
    e,
    E: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    IS_SUM_OF_TWO: tl.constexpr,
):
    """Returns the keys of experts in the TOP_GROUPS best groups, -inf for all others.

    A group is ranked by its highest key, or by the sum of its two highest.
    """
    own = e // (E // GROUPS)
    ranks = keys
    for group in tl.static_range(GROUPS):
        of_group = tl.where(own == group, keys, -float("inf"))
        rank = tl.max(of_group, 0)
        if IS_SUM_OF_TWO:
            first = tl.argmax(of_group, 0, tie_break_left=True)
            rank += tl.max(tl.where(e == first, -float("inf"), of_group), 0)
        ranks = tl.where(own == group, tl.maximum(rank, -3.0e38), ranks)
    ranks = tl.where(e < E, ranks, -float("inf"))
    is_left = e < 0
    for _ in tl.static_range(TOP_GROUPS):
        best = tl.argmax(tl.where(is_left, -float("inf"), ranks), 0, tie_break_left=True)
        is_left = is_left | (own == best // (E // GROUPS))
    return tl.where(is_left, keys, -float("inf"))


@triton.jit
def choose_experts(
    LOGITS,
    CORRECTION,
    CHOSEN,
    WEIGHTS,
    logits_stride,
    scale,
    epsilon,
    E: tl.constexpr,
    TOP: tl.constexpr,
    IS_NORMALIZED: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    HAS_CORRECTION: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes CHOSEN [rows, TOP], the experts of each row in order of their numbers, and their WEIGHTS.

    The formulas are those of `weft.compute.reference.experts`. NaN counts as the lowest logit.
    """
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    is_real = e < E
    logits = tl.load(LOGITS + row * logits_stride + e, mask=is_real, other=-float("inf"))
    if IS_SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    else:
        scores = tl.where(is_real, tl.exp(logits - tl.max(logits, 0)), 0.0)
        if HAS_CORRECTION:
            scores = scores / tl.sum(scores, 0)
    keys = logits
    if HAS_CORRECTION:
        keys = scores + tl.load(CORRECTION + e, mask=is_real, other=0.0)
    keys = tl.where(is_real & (keys == keys), keys, -3.0e38)  # noqa: PLR0124 - NaN is not equal to itself
    keys = tl.where(is_real, tl.maximum(keys, -3.0e38), -float("inf"))
    if TOP_GROUPS < GROUPS:
        keys = _of_best_groups(keys, e, E, GROUPS, TOP_GROUPS, IS_SIGMOID)
    is_chosen = e < 0
    for _ in tl.static_range(TOP):
        best = tl.argmax(tl.where(is_chosen, -float("inf"), keys), 0, tie_break_left=True)
        is_chosen = is_chosen | (e == best)
    own = tl.where(is_chosen, scores, 0.0)
    if IS_SIGMOID:
        divisor = tl.sum(own, 0) + epsilon if IS_NORMALIZED else 1.0
    elif HAS_CORRECTION:
        divisor = tl.maximum(tl.sum(own, 0), epsilon) if IS_NORMALIZED else 1.0
    else:
        divisor = tl.sum(own if IS_NORMALIZED else scores, 0)
    place = row * TOP + tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    if PDL:
        gdc_launch_dependents()
    tl.store(CHOSEN + place, e, mask=is_chosen)
    tl.store(WEIGHTS + place, own / divisor * scale, mask=is_chosen)


@triton.jit(do_not_specialize=["num_pairs"])
def count_pairs(CHOSEN, COUNTS, num_pairs, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Computes the number of pairs of each expert."""
    if PDL:
        gdc_wait()
    expert = tl.program_id(0)
    count = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, num_pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        count += (tl.load(CHOSEN + pair, mask=pair < num_pairs, other=-1) == expert).to(tl.int32)
    if PDL:
        gdc_launch_dependents()
    tl.store(COUNTS + expert, tl.sum(count, 0))


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def sort_pairs(
    CHOSEN,
    COUNTS,
    EXPERTS,
    PAIRS,
    num_pairs,
    num_tiles,
    E: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BM: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes the tiles of `stored_rows`: each expert has whole tiles of BM pairs, one expert after the other."""
    if PDL:
        gdc_wait()
    expert = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    tiles = (tl.load(COUNTS + e, mask=e < E, other=0) + BM - 1) // BM
    start = tl.sum(tl.where(e < expert, tiles, 0), 0)
    end = start + tl.sum(tl.where(e == expert, tiles, 0), 0)
    if PDL:
        gdc_launch_dependents()
    place = start * BM
    for first in range(0, num_pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        is_own = tl.load(CHOSEN + pair, mask=pair < num_pairs, other=-1) == expert
        count = is_own.to(tl.int32)
        tl.store(PAIRS + place + tl.cumsum(count, 0) - 1, pair, mask=is_own)
        place += tl.sum(count, 0)
    padding = place + tl.arange(0, BM)
    tl.store(PAIRS + padding, padding * 0 - 1, mask=padding < end * BM)
    last = (
        num_tiles if expert == E - 1 else end
    )  # the last expert also marks the tiles that stay empty
    for tile in range(start, last):
        tl.store(EXPERTS + tile, tl.where(tile < end, expert, -1))


@triton.jit
def weigh_inputs(
    ROWS,
    WEIGHTS,
    OUT,
    H,
    rows_stride,
    out_stride,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes OUT [pairs, H]: a pair's row times the pair's weight."""
    if PDL:
        gdc_wait()
    pair = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    is_real = c < H
    x = tl.load(ROWS + pair // TOP * rows_stride + c, mask=is_real, other=0.0).to(tl.float32)
    x *= tl.load(WEIGHTS + pair)
    if PDL:
        gdc_launch_dependents()
    tl.store(OUT + pair * out_stride + c, x.to(OUT.dtype.element_ty), mask=is_real)


@triton.jit(do_not_specialize=["M"])
def combine(
    RESULTS,
    BIAS,
    CHOSEN,
    WEIGHTS,
    SHARED,
    SHARED_BIAS,
    LOGITS,
    OUT,
    M,
    H,
    logits_stride,
    E: tl.constexpr,
    TOP: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SHARED_PARTS: tl.constexpr,
    HAS_SHARED_BIAS: tl.constexpr,
    WEIGHS_SHARED: tl.constexpr,
    WEIGHS_RESULTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes OUT [rows, H]: the weighted results of a row's experts, in order, plus the shared expert's result.

    RESULTS has PARTS parts of a row for each pair. SHARED may be the memory of OUT.
    """
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_real = c < H
    num_pairs = M.to(tl.int64) * TOP
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(TOP):
        pair = row * TOP + i
        t = tl.load(RESULTS + pair * H + c, mask=is_real, other=0.0)
        for s in tl.static_range(1, PARTS):
            t += tl.load(RESULTS + (s * num_pairs + pair) * H + c, mask=is_real, other=0.0)
        if HAS_BIAS:
            expert = tl.load(CHOSEN + pair).to(tl.int64)
            t += tl.load(BIAS + expert * H + c, mask=is_real, other=0.0)
        if WEIGHS_RESULTS:
            t *= tl.load(WEIGHTS + pair)
        total += t
    if SHARED_PARTS > 0:
        t = tl.load(SHARED + row * H + c, mask=is_real, other=0.0)
        for s in tl.static_range(1, SHARED_PARTS):
            t += tl.load(SHARED + (s * M.to(tl.int64) + row) * H + c, mask=is_real, other=0.0)
        if HAS_SHARED_BIAS:
            t += tl.load(SHARED_BIAS + c, mask=is_real, other=0.0)
        if WEIGHS_SHARED:
            t = t / (1.0 + tl.exp(-tl.load(LOGITS + row * logits_stride + E)))
        total += t
    if PDL:
        gdc_launch_dependents()
    tl.store(OUT + row * H + c, total, mask=is_real)
