"""Products of rows and matrices in the form that they are stored in: numbers of four or eight bits, or a layer's experts.

A tile of numbers becomes values in the type of rows just before it is multiplied, so the matrix is never wide in
memory. The matrix is always on the tensor cores' side of 64 rows; parts of the depth are computed in parallel, or one
after the other, with the same sums as in `kernels.products`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from weft.compute.gpu.kernels.products import finish, tile_of


@triton.jit
def values_of(numbers, scales, offsets, BITS: tl.constexpr, OFFSET: tl.constexpr):
    """Returns the float32 values of numbers [outputs, columns] with a scale and an offset for each output.

    Whole numbers become floats by their bits: 2 ** 23 plus a number, minus 2 ** 23, is exact.
    """
    scale = scales.to(tl.float32)[:, None]
    if OFFSET == "e2m1":
        code = numbers.to(tl.int16)
        bits = ((code & 7) << 9) | ((code & 8) << 12)
        values = bits.to(tl.float16, bitcast=True).to(tl.float32) * 32768.0 * scale
    else:
        whole = (numbers.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True)
        if OFFSET == "minimums":
            values = (whole - 8388608.0) * scale + offsets.to(tl.float32)[:, None]
        elif OFFSET == "zeros":
            values = (whole - (8388608.0 + offsets.to(tl.float32))[:, None]) * scale
        else:
            MIDDLE: tl.constexpr = 1 << (BITS - 1)
            values = (whole - (8388608.0 + MIDDLE)) * scale
    return values


@triton.jit
def _piece(
    W,
    SCALES,
    OFFSETS,
    rn,
    is_out,
    first,
    ROWS,
    K,
    half: tl.constexpr,
    TYPE: tl.constexpr,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
    OFFSET: tl.constexpr,
    PIECE: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Returns PIECE columns of the matrix for the outputs `rn`, in `TYPE`: those from `first + half * PIECE` on.

    W is [depth / PIECE, ROWS, PIECE] for eight bits; for four bits a byte has columns of two adjacent pieces.
    """
    c = tl.arange(0, PIECE)[None, :]
    is_stored = is_out[:, None]
    if OFFSET == "wide":
        w = W + rn[:, None].to(tl.int64) * K + first + half * PIECE + c
        return tl.load(w) if EVEN else tl.load(w, mask=is_stored, other=0.0)
    run = first // (2 * PIECE) if BITS == 4 else first // PIECE + half
    w = W + ROWS.to(tl.int64) * PIECE * run + rn[:, None] * PIECE + c
    numbers = tl.load(w) if EVEN else tl.load(w, mask=is_stored, other=0)
    if BITS == 4:
        numbers = (numbers >> (4 * half)) & 15
    group = (first + half * PIECE) // SIZE if SIZE else 0
    place = ROWS.to(tl.int64) * group + rn
    scales = tl.load(SCALES + place, mask=is_out, other=0.0)
    offsets = scales
    if OFFSET == "zeros" or OFFSET == "minimums":  # noqa: PLR1714 - the language has no sets
        offsets = tl.load(OFFSETS + place, mask=is_out, other=0)
    return values_of(numbers, scales, offsets, BITS, OFFSET).to(TYPE)


@triton.jit
def _sums(
    x,
    is_row,
    W,
    SCALES,
    OFFSETS,
    rn,
    is_out,
    begin,
    N,
    K,
    KS,
    ROWS,
    TYPE: tl.constexpr,
    KIND: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
    OFFSET: tl.constexpr,
    PIECE: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Returns the sums of one part of the depth, and for "gated" those of the outputs N further on."""
    acc = tl.zeros((BN, BM), tl.float32)
    other = acc
    for k in range(0, KS, 2 * PIECE):
        for half in tl.static_range(2):
            first = begin + k
            rows = tl.load(x + first + half * PIECE, mask=is_row[None, :], other=0.0)
            tile = _piece(
                W,
                SCALES,
                OFFSETS,
                rn,
                is_out,
                first,
                ROWS,
                K,
                half,
                TYPE,
                BITS,
                SIZE,
                OFFSET,
                PIECE,
                EVEN,
            )
            acc = tl.dot(tile, rows, acc)
            if KIND == "gated":
                tile = _piece(
                    W,
                    SCALES,
                    OFFSETS,
                    N + rn,
                    is_out,
                    first,
                    ROWS,
                    K,
                    half,
                    TYPE,
                    BITS,
                    SIZE,
                    OFFSET,
                    PIECE,
                    EVEN,
                )
                other = tl.dot(tile, rows, other)
    return acc, other


@triton.jit(do_not_specialize=["M"])
def stored_rows(
    X,
    W,
    SCALES,
    OFFSETS,
    OUT,
    BIAS,
    EXPERTS,
    PAIRS,
    M,
    N,
    K,
    KS,
    ROWS,
    groups,
    x_stride,
    out_stride,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    DIVISOR: tl.constexpr,
    CAP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
    OFFSET: tl.constexpr,
    PIECE: tl.constexpr,
    EVEN: tl.constexpr,
    PARTS: tl.constexpr,
    IS_SERIAL: tl.constexpr,
    SHARED_BY: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes OUT [parts, M, N], as `few_rows` does, from a matrix of ROWS rows that `_piece` reads.

    With `SHARED_BY` above 0 there is a matrix for each expert. Tile i multiplies the pairs PAIRS[i * BM + ...] of a row
    and an expert by the matrix of EXPERTS[i]; -1 stands for no pair and for an empty tile. OUT has a row for each pair,
    and X a row for every `SHARED_BY` pairs.
    """
    own = tl.program_id(1)  # 0 if the parts are computed one after the other
    if PDL:
        gdc_wait()
    if SHARED_BY:
        pm = tl.program_id(2)
        pn = tl.program_id(0)
        expert = tl.load(EXPERTS + pm).to(tl.int64)
        if expert < 0:
            return
        rm = tl.load(PAIRS + pm * BM + tl.arange(0, BM))
        is_row = rm >= 0
        x_row = rm // SHARED_BY
        of_expert = ROWS.to(tl.int64) * expert
        W += of_expert * K // 2 if BITS == 4 else of_expert * K
        SCALES += of_expert * groups
        OFFSETS += of_expert * groups
        BIAS += of_expert
    else:
        pm, pn = tile_of(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), 8)
        rm = pm * BM + tl.arange(0, BM)
        is_row = rm < M
        x_row = rm
    rn = pn * BN + tl.arange(0, BN)
    is_out = rn < N
    TYPE: tl.constexpr = X.dtype.element_ty
    x = X + x_row[None, :].to(tl.int64) * x_stride + tl.arange(0, PIECE)[:, None]
    begin = 0 if IS_SERIAL else own * KS
    total, other = _sums(
        x, is_row, W, SCALES, OFFSETS, rn, is_out, begin, N, K, KS, ROWS,
        TYPE, KIND, BM, BN, BITS, SIZE, OFFSET, PIECE, EVEN,
    )  # fmt: skip
    if IS_SERIAL:
        for turn in range(1, PARTS):
            acc, _ = _sums(
                x, is_row, W, SCALES, OFFSETS, rn, is_out, turn * KS, N, K, KS, ROWS,
                TYPE, KIND, BM, BN, BITS, SIZE, OFFSET, PIECE, EVEN,
            )  # fmt: skip
            total += acc
    if PDL:
        gdc_launch_dependents()
    total = finish(
        total, other, BIAS, rn, is_out, N, KIND, HAS_BIAS, ACTIVATION, LIMIT, ALPHA, DIVISOR, CAP, True
    )  # fmt: skip
    out = OUT + (own.to(tl.int64) * M + rm[None, :]) * out_stride + rn[:, None]
    tl.store(out, total.to(OUT.dtype.element_ty), mask=is_out[:, None] & is_row[None, :])
