"""Products of rows and a matrix: the depth is divided into parts by a fixed rule, each summed from its first column on.

`few_rows` computes the parts of a product in parallel, `many_rows` in parallel or one after the other; kernels that
read parts add them in order. So a row's numbers depend only on the matrix. In `few_rows` the tensor cores take tiles of
the matrix on their side of 64 rows, so that one row of a step costs no more than reading the matrix.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def tanh(x):
    """Returns tanh in float32, computed with the exponential function: the interpreter has no tanh."""
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))


@triton.jit
def _erf(x):
    """Returns the error function, by the formula of `weft.compute.arithmetic.activations`."""
    x = tl.minimum(tl.maximum(x, -3.92), 3.92)
    q = x * x
    above = (
        (((2.03474161e-06 * q + 0.000287477558) * q + 0.00386826398) * q + 0.0530602906) * q
        + 0.192762631
    ) * q
    below = (
        (((3.8070612e-05 * q + 0.00118809886) * q + 0.0151721718) * q + 0.115084027) * q
        + 0.504163102
    ) * q
    return x * (above + 1.12837902) / (below + 1.0)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Returns the `Activation` of each element, in float32."""
    if ACTIVATION == "silu":
        y = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        y = (_erf(x * 0.7071067811865476) + 1.0) * x * 0.5
    elif ACTIVATION == "gelu_tanh":
        y = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "relu":
        y = tl.maximum(x, 0.0)
    elif ACTIVATION == "relu_squared":
        y = tl.maximum(x, 0.0)
        y = y * y
    else:
        y = tanh(x)
    return y


@triton.jit
def middle(gate, up, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, ALPHA: tl.constexpr):
    """Returns the activation of a gated MLP from its gate and up products."""
    if LIMIT > 0:
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
        return gate / (1.0 + tl.exp(-ALPHA * gate)) * (up + 1.0)
    return activate(gate, ACTIVATION) * up


@triton.jit
def finish(
    acc,
    other,
    BIAS,
    rn,
    is_out,
    N,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    DIVISOR: tl.constexpr,
    CAP: tl.constexpr,
    IS_TURNED: tl.constexpr,
):
    """Returns the values to store of a tile's sums; `KIND` is "parts", "gated", "plain" (an MLP without gate) or
    "head".
    """
    if HAS_BIAS:
        bias = tl.load(BIAS + rn, mask=is_out, other=0.0)
        acc += bias[:, None] if IS_TURNED else bias[None, :]
    if KIND == "gated":
        if HAS_BIAS:
            bias = tl.load(BIAS + N + rn, mask=is_out, other=0.0)
            other += bias[:, None] if IS_TURNED else bias[None, :]
        acc = middle(acc, other, ACTIVATION, LIMIT, ALPHA)
    elif KIND == "plain":
        acc = activate(acc, ACTIVATION)
    elif KIND == "head":
        if DIVISOR != 1.0:
            acc = acc / DIVISOR
        if CAP > 0:
            acc = tanh(acc / CAP) * CAP
    return acc


@triton.jit(do_not_specialize=["M"])
def few_rows(
    X,
    W,
    OUT,
    BIAS,
    M,
    N,
    K,
    KS,
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
    BK: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes OUT [parts, M, N]: rows X [M, K] times W [N, K], each part of KS columns separately.

    For "gated", W has the N rows of the gate, then N more rows. For all kinds but "parts", OUT is one part in the type
    of rows, or for "head" in float32.
    """
    part = tl.program_id(1)
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rm = tl.program_id(2) * BM + tl.arange(0, BM)
    rk = part * KS + tl.arange(0, BK)
    is_out = rn < N
    is_row = rm < M
    w = W + rn[:, None].to(tl.int64) * K + rk[None, :]
    x = X + rm[None, :].to(tl.int64) * x_stride + rk[:, None]
    if PDL:
        gdc_wait()
    acc = tl.zeros((BN, BM), tl.float32)
    other = acc
    for k in range(0, KS, BK):
        rows = tl.load(x + k, mask=is_row[None, :], other=0.0)
        tile = tl.load(w + k) if EVEN else tl.load(w + k, mask=is_out[:, None], other=0.0)
        acc = tl.dot(tile, rows, acc)
        if KIND == "gated":
            u = w + N.to(tl.int64) * K + k
            tile = tl.load(u) if EVEN else tl.load(u, mask=is_out[:, None], other=0.0)
            other = tl.dot(tile, rows, other)
    if PDL:
        gdc_launch_dependents()
    acc = finish(
        acc,
        other,
        BIAS,
        rn,
        is_out,
        N,
        KIND,
        HAS_BIAS,
        ACTIVATION,
        LIMIT,
        ALPHA,
        DIVISOR,
        CAP,
        True,
    )
    out = OUT + (part.to(tl.int64) * M + rm[None, :]) * out_stride + rn[:, None]
    tl.store(out, acc.to(OUT.dtype.element_ty), mask=is_out[:, None] & is_row[None, :])


@triton.jit
def tile_of(place, num_m, num_n, GROUP: tl.constexpr):
    """Returns the tile that a program computes: neighbouring programs share rows of the matrix, and of the step."""
    of_group = GROUP * num_n
    first = place // of_group * GROUP
    size = tl.minimum(num_m - first, GROUP)
    return first + (place % of_group) % size, (place % of_group) // size


@triton.jit
def _add_to(
    OUT,
    first_row,
    first_column,
    sums,
    M,
    N,
    out_stride,
    is_more,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Stores the sums of a tile, added to the earlier sums if `is_more`; in two halves, to save registers."""
    HALF: tl.constexpr = BN // 2
    left, right = tl.split(tl.permute(tl.reshape(sums, (BM, 2, HALF)), (0, 2, 1)))
    rows = first_row + tl.arange(0, BM)[:, None]
    columns = first_column + tl.arange(0, HALF)[None, :]
    out = OUT + rows.to(tl.int64) * out_stride + columns
    for half in tl.static_range(2):
        is_real = (rows < M) & (columns + half * HALF < N)
        before = tl.load(out + half * HALF, mask=is_real & is_more, other=0.0)
        tl.store(out + half * HALF, before + (right if half else left), mask=is_real)


@triton.jit(do_not_specialize=["M"])
def many_rows(
    X,
    W,
    OUT,
    BIAS,
    M,
    N,
    K,
    KS,
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
    BK: tl.constexpr,
    EVEN: tl.constexpr,
    PARTS: tl.constexpr,
    IS_SERIAL: tl.constexpr,
    PDL: tl.constexpr,
):
    """Computes the product for steps of many rows; with `IS_SERIAL` the parts are added in order, and OUT has one
    part.
    """
    pm, pn = tile_of(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), 8)
    rm = pm * BM + tl.arange(0, BM)
    rn = pn * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    is_row = rm < M
    is_out = rn < N
    x = X + rm[:, None].to(tl.int64) * x_stride + rk[None, :]
    w = W + rn[None, :].to(tl.int64) * K + rk[:, None]
    if PDL:
        gdc_wait()
    own = tl.program_id(1)  # 0 if the parts are computed one after the other
    out = OUT + (own.to(tl.int64) * M + rm[:, None]) * out_stride + rn[None, :]
    is_tile = is_row[:, None] & is_out[None, :]
    for turn in range(PARTS if IS_SERIAL else 1):
        first = (turn if IS_SERIAL else own) * KS
        acc = tl.zeros((BM, BN), tl.float32)
        other = acc
        for k in range(0, KS, BK):
            rows = tl.load(x + first + k, mask=is_row[:, None], other=0.0)
            tile = (
                tl.load(w + first + k)
                if EVEN
                else tl.load(w + first + k, mask=is_out[None, :], other=0.0)
            )
            acc = tl.dot(rows, tile, acc)
            if KIND == "gated":
                u = w + N.to(tl.int64) * K + first + k
                tile = tl.load(u) if EVEN else tl.load(u, mask=is_out[None, :], other=0.0)
                other = tl.dot(rows, tile, other)
        if PDL and (turn == PARTS - 1 or not IS_SERIAL):
            gdc_launch_dependents()
        if PARTS > 1 and IS_SERIAL:
            tl.debug_barrier()  # partial sums are in memory, because registers cannot hold both
            _add_to(OUT, pm * BM, pn * BN, acc, M, N, out_stride, turn > 0, BM, BN)
        else:
            acc = finish(
                acc,
                other,
                BIAS,
                rn,
                is_out,
                N,
                KIND,
                HAS_BIAS,
                ACTIVATION,
                LIMIT,
                ALPHA,
                DIVISOR,
                CAP,
                False,
            )
            tl.store(out, acc.to(OUT.dtype.element_ty), mask=is_tile)
