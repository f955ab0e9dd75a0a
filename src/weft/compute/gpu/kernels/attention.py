"""Paged attention: the keys are divided into parts of a fixed length, each with its own softmax, merged in order.

`lone_rows` computes sequences with one row in the step, `tiles_of_rows` several rows of a sequence. Both process a part
in the same tiles of keys. Keys that a row does not attend to change no bit of its result.
"""

import triton
import triton.language as tl

from weft.compute.gpu.kernels.products import tanh


@triton.jit
def add_keys(
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
    HK: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BS: tl.constexpr,
    BN: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_CAP: tl.constexpr,
    IS_SEEN: tl.constexpr,
):
    """Adds a tile of keys, from `first` on, to the running softmax; keys from `stop` on are not read.

    `IS_SEEN`: all rows attend to all keys of the tile.
    """
    c = tl.arange(0, BLOCK_D)
    keys = first + tl.arange(0, BN)
    is_there = keys < (first + BN if IS_SEEN else stop)
    is_real = c < D
    blocks = tl.load(table + keys // BS, mask=is_there, other=0).to(tl.int64)
    places = ((blocks * HK + kv_head) * BS + keys % BS) * D
    k = tl.load(
        KEYS + places[None, :] + c[:, None], mask=is_there[None, :] & is_real[:, None], other=0.0
    )
    s = tl.dot(q, k) * scale
    if HAS_CAP:
        s = tanh(s / cap) * (cap * 1.4426950408889634)
    if not IS_SEEN:
        is_seen = keys[None, :] <= positions[:, None]
        if WINDOW > 0:
            is_seen &= keys[None, :] > positions[:, None] - WINDOW
        if CHUNK > 0:
            is_seen &= keys[None, :] >= (positions // CHUNK * CHUNK)[:, None]
        s = tl.where(is_seen, s, float("-inf"))
    highest = tl.maximum(m, tl.max(s, 1))
    base = tl.where(highest == float("-inf"), 0.0, highest)
    p = tl.exp2(s - base[:, None])
    fade = tl.exp2(m - base)
    total = tl.fma(total, fade, tl.sum(p, 1))
    v = tl.load(
        VALUES + places[:, None] + c[None, :], mask=is_there[:, None] & is_real[None, :], other=0.0
    )
    acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
    return highest, total, acc


@triton.jit
def merge(m, total, acc, m2, total2, acc2):
    """Merges the softmax states of two parts; a part without keys changes nothing."""
    highest = tl.maximum(m, m2)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    a = tl.exp2(m - base)
    b = tl.exp2(m2 - base)
    return highest, tl.fma(total, a, total2 * b), tl.fma(acc, a[:, None], acc2 * b[:, None])


@triton.jit
def weighed(m, total, acc, SINKS, head, is_real, HAS_SINKS: tl.constexpr):
    """Returns the weighted mean of the values, with the head's sink among the weights."""
    if HAS_SINKS:
        sink = tl.load(SINKS + head, mask=is_real, other=0.0) * 1.4426950408889634
        highest = tl.maximum(m, sink)
        fade = tl.exp2(m - highest)
        total = tl.fma(total, fade, tl.exp2(sink - highest))
        acc = acc * fade[:, None]
    return acc / total[:, None]


@triton.jit
def first_key(position, WINDOW: tl.constexpr, CHUNK: tl.constexpr):
    """Returns the position of the first key that a row attends to."""
    first = position * 0
    if WINDOW > 0:
        first = tl.maximum(first, position - (WINDOW - 1))
    if CHUNK > 0:
        first = tl.maximum(first, position // CHUNK * CHUNK)
    return first
