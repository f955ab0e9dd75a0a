"""Kernels on whole rows: the beginning of a step, and the work between products on the residual stream."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def take_tokens(IDS, SOURCES, SAMPLED, M, BLOCK: tl.constexpr):
    """Sets the token ids of rows whose token the previous step has sampled; SOURCES has the token's index, or -1."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(SOURCES + row, mask=row < M, other=-1)
    tl.store(IDS + row, tl.load(SAMPLED + source, mask=source >= 0, other=0), mask=source >= 0)


@triton.jit
def enter(
    IDS,
    POSITIONS,
    EMBED,
    TABLE,
    R,
    H,
    embed_stride,
    offset,
    MULTIPLIER: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes R [rows, H] float32: the embedding of each token, plus that of its position if positions are learned."""
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    is_real = c < H
    token = tl.load(IDS + row).to(tl.int64)
    x = tl.load(EMBED + token * embed_stride + c, mask=is_real, other=0.0).to(tl.float32)
    if HAS_TABLE:
        place = tl.load(POSITIONS + row).to(tl.int64) + offset
        x += tl.load(TABLE + place * H + c, mask=is_real, other=0.0)
    if PDL:
        gdc_launch_dependents()
    tl.store(R + row * H + c, x * MULTIPLIER, mask=is_real)


@triton.jit
def norm_row(x, WEIGHT, BIAS, c, is_real, H, eps, IS_LAYER: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Returns a row scaled to mean square 1, or to mean 0 and variance 1, then multiplied by the weight."""
    if IS_LAYER:
        x = tl.where(is_real, x - tl.sum(x, 0) / H, 0.0)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / H + eps) * tl.load(WEIGHT + c, mask=is_real, other=0.0)
    if HAS_BIAS:
        y += tl.load(BIAS + c, mask=is_real, other=0.0)
    return y


@triton.jit(do_not_specialize=["M"])
def add_norm(
    P,
    P_BIAS,
    R,
    Y,
    ROWS,
    AFTER,
    AFTER_BIAS,
    SUM,
    SUM_BIAS,
    BEFORE,
    BEFORE_BIAS,
    M,
    H,
    y_stride,
    eps,
    MULTIPLIER: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_P_BIAS: tl.constexpr,
    HAS_AFTER: tl.constexpr,
    HAS_SUM: tl.constexpr,
    HAS_BEFORE: tl.constexpr,
    IS_LAYER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_PICKED: tl.constexpr,
    IS_PARALLEL: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Adds a product's parts P to the residual stream R, and writes Y, the normed input of the next product.

    The norms follow `NormPlacement`. With `IS_PICKED`, row i of Y is made from row ROWS[i], and R is unchanged. With
    `IS_PARALLEL`, Y is made from R without the product.
    """
    if PDL:
        gdc_wait()
    own = tl.program_id(0).to(tl.int64)
    row = own
    if IS_PICKED:
        row = tl.load(ROWS + own).to(tl.int64)
    c = tl.arange(0, BLOCK)
    is_real = c < H
    r = tl.load(R + row * H + c, mask=is_real, other=0.0)
    y = r
    if PARTS > 0:
        t = tl.load(P + row * H + c, mask=is_real, other=0.0)
        for s in tl.static_range(1, PARTS):
            t += tl.load(P + (s * M.to(tl.int64) + row) * H + c, mask=is_real, other=0.0)
        if HAS_P_BIAS:
            t += tl.load(P_BIAS + c, mask=is_real, other=0.0)
        if HAS_AFTER:
            t = norm_row(t, AFTER, AFTER_BIAS, c, is_real, H, eps, IS_LAYER, HAS_BIAS)
        r += t * MULTIPLIER
        if HAS_SUM:
            r = norm_row(r, SUM, SUM_BIAS, c, is_real, H, eps, IS_LAYER, HAS_BIAS)
        if not IS_PICKED:
            tl.store(R + row * H + c, r, mask=is_real)
    if PDL:
        gdc_launch_dependents()
    if not IS_PARALLEL:
        y = r
    if HAS_BEFORE:
        y = norm_row(y, BEFORE, BEFORE_BIAS, c, is_real, H, eps, IS_LAYER, HAS_BIAS)
    tl.store(Y + own * y_stride + c, y.to(Y.dtype.element_ty), mask=is_real)


@triton.jit(do_not_specialize=["M"])
def heads(
    P,
    BIAS,
    WEIGHT,
    COSINE,
    SINE,
    POSITIONS,
    SLOTS,
    Q,
    KEYS,
    VALUES,
    M,
    eps,
    HQ: tl.constexpr,
    HK: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PARTS: tl.constexpr,
    ROPE: tl.constexpr,
    NORM: tl.constexpr,
    IS_LAYER: tl.constexpr,
    INTERVAL: tl.constexpr,
    SLOPE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes Q [rows, HQ, D] and a slot of KEYS and VALUES from the parts P of the product of q, k and v.

    A pool is [blocks, HK, BS, D]. `NORM` is a `QkNorm`; WEIGHT [HQ + HK, D] has a row for each head. `INTERVAL` and
    `SLOPE` are those of a `Temperature`, 0 without one.
    """
    if PDL:
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    h = (tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H))[:, None]
    c = tl.arange(0, BLOCK_D)[None, :]
    is_real = (h < HQ + 2 * HK) & (c < D)
    is_turned = is_real & (h < HQ + HK)
    turn = c % (ROPE // 2) if ROPE else c
    partner = tl.where(c < ROPE // 2, c + ROPE // 2, tl.where(c < ROPE, c - ROPE // 2, c))
    N: tl.constexpr = (HQ + 2 * HK) * D
    x = tl.load(P + row * N + h * D + c, mask=is_real, other=0.0)
    other = tl.load(P + row * N + h * D + partner, mask=is_real, other=0.0)
    for s in tl.static_range(1, PARTS):
        part = P + (s * M.to(tl.int64) + row) * N + h * D
        x += tl.load(part + c, mask=is_real, other=0.0)
        other += tl.load(part + partner, mask=is_real, other=0.0)
    if HAS_BIAS:
        x += tl.load(BIAS + h * D + c, mask=is_real, other=0.0)
        other += tl.load(BIAS + h * D + partner, mask=is_real, other=0.0)
    if NORM == "head" or NORM == "full":  # noqa: PLR1714 - Triton has no "in"
        of_head = is_turned
        if IS_LAYER:
            mean = (tl.sum(x, 1) / D)[:, None]
            x = tl.where(is_turned, x - mean, x)  # values stay as they are
            other = tl.where(is_turned, other - mean, other)
        squares = (tl.sum(x * x, 1) / D)[:, None]
        if NORM == "full":
            q = tl.sum(tl.where(h < HQ, squares, 0.0), 0) / HQ
            k = tl.sum(tl.where((h >= HQ) & (h < HQ + HK), squares, 0.0), 0) / HK
            squares = tl.where(h < HQ, q[None, :], k[None, :])
        scale = tl.rsqrt(squares + eps)
        w = WEIGHT + h * D
        x = tl.where(is_turned, x * scale * tl.load(w + c, mask=of_head, other=1.0), x)
        other = tl.where(
            is_turned, other * scale * tl.load(w + partner, mask=of_head, other=1.0), other
        )
    if ROPE:
        place = tl.load(POSITIONS + row).to(tl.int64) * (ROPE // 2) + turn
        has_turn = is_turned & (c < ROPE)
        cosine = tl.load(COSINE + place, mask=has_turn, other=1.0)
        sine = tl.load(SINE + place, mask=has_turn, other=0.0)
        other = tl.where(c < ROPE // 2, -other, other)
        x = tl.where(has_turn, x * cosine + other * sine, x)
    if NORM == "head_after_rope":
        if IS_LAYER:
            x = tl.where(is_turned, x - (tl.sum(x, 1) / D)[:, None], x)
        scale = tl.rsqrt((tl.sum(x * x, 1) / D)[:, None] + eps)
        x = tl.where(
            is_turned, x * scale * tl.load(WEIGHT + h * D + c, mask=is_turned, other=1.0), x
        )
    if INTERVAL > 0:
        intervals = ((tl.load(POSITIONS + row) + 1) // INTERVAL).to(tl.float32)
        x = tl.where(h < HQ, x * (tl.log(1.0 + intervals) * SLOPE + 1.0), x)
    if PDL:
        gdc_launch_dependents()
    y = x.to(Q.dtype.element_ty)
    slot = tl.load(SLOTS + row).to(tl.int64)
    place = (slot // BS * HK * BS + slot % BS) * D + c
    tl.store(Q + (row * HQ + h) * D + c, y, mask=is_real & (h < HQ))
    tl.store(KEYS + place + (h - HQ) * BS * D, y, mask=is_turned & (h >= HQ))
    tl.store(VALUES + place + (h - HQ - HK) * BS * D, y, mask=is_real & (h >= HQ + HK))
