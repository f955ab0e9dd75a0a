"""Sampling from rows of logits: the same numbers as `tests.doubles.processed`, and the noise of decision 0003."""

import triton
import triton.language as tl


@triton.jit
def _order(x):
    """Returns integers in the same order as the floats; both zeros give the same integer."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(order):
    """Returns the float of an integer that `_order` has returned."""
    bits = order ^ ((order >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _measure(row, vocab, lowest, temperature, best, IS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the number of logits whose order is at least `lowest`, or the sum of their weights, in float64."""
    total = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, vocab, BLOCK):
        token = first + tl.arange(0, BLOCK)
        x = tl.load(row + token, mask=token < vocab, other=float("-inf"))
        counts = (token < vocab) & (_order(x).to(tl.int64) >= lowest)
        if IS_WEIGHT:
            total += tl.where(counts, tl.exp(x.to(tl.float64) / temperature - best), 0.0)
        else:
            total += tl.where(counts, 1.0, 0.0)
    return tl.sum(total, 0)


@triton.jit
def _lowest(
    row, vocab, goal, floor, temperature, best, IS_WEIGHT: tl.constexpr, BLOCK: tl.constexpr
):
    """Returns the highest order, at least `floor`, above which there are as many logits, or as much weight, as
    `goal`.
    """
    lowest = tl.full((), -2147483648, tl.int64)
    for turn in range(32):
        tried = lowest + (tl.full((), 2147483648, tl.int64) >> turn)
        if (
            _measure(row, vocab, tl.maximum(tried, floor), temperature, best, IS_WEIGHT, BLOCK)
            >= goal
        ):
            lowest = tried
    return tl.maximum(lowest, floor)


@triton.jit
def find_bounds(
    LOGITS,
    ROWS,
    TEMPERATURES,
    MIN_P,
    TOP_K,
    TOP_P,
    BOUNDS,
    LAST,
    vocab,
    stride,
    BLOCK: tl.constexpr,
):
    """Finds the tokens that min-p, top-k and top-p allow: logits above BOUNDS, and logits equal to it up to token
    LAST.
    """
    own = tl.program_id(0)
    temperature = tl.load(TEMPERATURES + own)
    min_p = tl.load(MIN_P + own)
    top_k = tl.load(TOP_K + own)
    top_p = tl.load(TOP_P + own)
    tl.store(BOUNDS + own, float("-inf"))
    tl.store(LAST + own, vocab)
    if temperature == 0.0:
        return
    row = LOGITS + tl.load(ROWS + own) * stride
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, vocab, BLOCK):
        token = first + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(row + token, mask=token < vocab, other=float("-inf")))
    best = tl.max(highest, 0).to(tl.float64) / temperature
    floor = tl.full((), -2147483648, tl.int64)
    if min_p > 0:
        least = best + tl.log(min_p)
        for turn in range(32):
            tried = floor + (tl.full((), 2147483648, tl.int64) >> turn)
            if not (_value(tried.to(tl.int32)).to(tl.float64) / temperature >= least):
                floor = tried
        floor += 1
    if (top_k > 0) & (top_k < vocab):
        floor = _lowest(row, vocab, top_k.to(tl.float64), floor, temperature, best, False, BLOCK)
    last = vocab
    if top_p < 1.0:
        goal = top_p * _measure(row, vocab, floor, temperature, best, True, BLOCK)
        floor = _lowest(row, vocab, goal, floor, temperature, best, True, BLOCK)
        above = _measure(row, vocab, floor + 1, temperature, best, True, BLOCK)
        weight = tl.exp(_value(floor.to(tl.int32)).to(tl.float64) / temperature - best)
        # Number of allowed tokens among those equal to the bound.
        wanted = tl.maximum(tl.ceil((goal - above) / weight), 1.0)
        found = tl.full((), 0, tl.int32)
        for first in range(0, vocab, BLOCK):
            token = first + tl.arange(0, BLOCK)
            x = tl.load(row + token, mask=token < vocab, other=float("-inf"))
            is_equal = ((token < vocab) & (_order(x).to(tl.int64) == floor)).to(tl.int32)
            place = found + tl.cumsum(is_equal, 0)
            is_last = (is_equal > 0) & (place.to(tl.float64) == wanted)
            last = tl.minimum(last, tl.min(tl.where(is_last, token, vocab), 0))
            found += tl.sum(is_equal, 0)
    tl.store(BOUNDS + own, _value(floor.to(tl.int32)) if floor > -2147483648 else float("-inf"))
    tl.store(LAST + own, last)


@triton.jit
def _noise(key, token):
    """Returns standard Gumbel noise of each token in float64, from SplitMix64's finaliser of a counter."""
    bits = key + (token.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    bits = bits ^ (bits >> 31)
    uniform = ((bits >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16
    return -tl.log(-tl.log(uniform))


@triton.jit
def draw_blocks(
    LOGITS,
    ROWS,
    TEMPERATURES,
    KEYS,
    BOUNDS,
    LAST,
    BEST,
    TOKENS,
    HIGHEST,
    vocab,
    stride,
    HAS_BOUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Finds the best token of each block of a row, with noise if the temperature is not 0.

    Writes BEST and TOKENS [choices, blocks]. HIGHEST is the largest logit of a block, or NaN if the block contains NaN.
    """
    own = tl.program_id(1)
    block = tl.program_id(0)
    place = own * tl.num_programs(0) + block
    temperature = tl.load(TEMPERATURES + own)
    token = block * BLOCK + tl.arange(0, BLOCK)
    is_token = token < vocab
    x = tl.load(LOGITS + tl.load(ROWS + own) * stride + token, mask=is_token, other=float("-inf"))
    is_none = tl.max((x != x).to(tl.int32), 0) > 0  # noqa: PLR0124 - whether it is NaN
    tl.store(HIGHEST + place, tl.where(is_none, float("nan"), tl.max(x, 0)))
    if HAS_BOUNDS:
        bound = tl.load(BOUNDS + own)
        x = tl.where(
            (x > bound) | ((x == bound) & (token <= tl.load(LAST + own))), x, float("-inf")
        )
    score = x.to(tl.float64)
    if temperature != 0.0:
        score = score / temperature + _noise(tl.load(KEYS + own), token)
    best = tl.max(score, 0)
    tl.store(BEST + place, best)
    tl.store(
        TOKENS + place, tl.minimum(tl.min(tl.where(score == best, token, vocab), 0), vocab - 1)
    )


@triton.jit
def draw(
    BEST,
    TOKENS,
    HIGHEST,
    IS_FINITE,
    OUT,
    num_choices,
    num_blocks,
    vocab,
    HAS_FLAGS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Computes OUT [2, choices]: the token of each choice, the first one of equal tokens, and whether its row is
    valid.
    """
    own = tl.program_id(0)
    block = tl.arange(0, BLOCK)
    is_block = block < num_blocks
    place = own * num_blocks + block
    score = tl.load(BEST + place, mask=is_block, other=float("-inf"))
    token = tl.load(TOKENS + place, mask=is_block, other=2147483647)
    best = tl.max(score, 0)
    token = tl.min(tl.where(is_block & (score == best), token, 2147483647), 0)
    if HAS_FLAGS:
        is_finite = tl.load(IS_FINITE + own).to(tl.int32)
    else:
        highest = tl.load(HIGHEST + place, mask=is_block, other=float("-inf"))
        is_none = tl.max((highest != highest).to(tl.int32), 0) > 0  # noqa: PLR0124 - likewise
        top = tl.max(highest, 0)
        is_finite = ((not is_none) & (top < float("inf")) & (top > float("-inf"))).to(tl.int32)
    tl.store(
        OUT + own, tl.minimum(token, vocab - 1)
    )  # a valid token id, which the next step may read, whatever the row contains
    tl.store(OUT + num_choices + own, is_finite)


@triton.jit
def find_best(VALUES, TOKENS, FOUND, num_best, vocab, BLOCK: tl.constexpr):
    """Finds the `num_best` largest values of each row of VALUES, best first, of equal values the smaller id first.

    Writes TOKENS and FOUND [rows, num_best].
    """
    own = tl.program_id(0).to(tl.int64)
    row = VALUES + own * vocab
    before = tl.full((), float("inf"), tl.float32)
    behind = tl.full((), -1, tl.int32)
    for turn in range(num_best):
        best = tl.full((BLOCK,), float("-inf"), tl.float32)
        where = tl.full((BLOCK,), 2147483647, tl.int32)
        for first in range(0, vocab, BLOCK):
            token = first + tl.arange(0, BLOCK)
            x = tl.load(row + token, mask=token < vocab, other=float("-inf"))
            is_left = (token < vocab) & ((x < before) | ((x == before) & (token > behind)))
            is_better = is_left & ((x > best) | (where == 2147483647))
            best = tl.where(is_better, x, best)
            where = tl.where(is_better, token, where)
        before = tl.max(best, 0)
        behind = tl.min(tl.where(best == before, where, 2147483647), 0)
        tl.store(TOKENS + own * num_best + turn, behind)
        tl.store(FOUND + own * num_best + turn, before)
