"""Checkpoints of packed weights, written from what the formats publish; slow and plain, to be read."""

import re
from dataclasses import dataclass

import numpy as np

from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from weft.model.open import open_model

WORD = 2**32
IDS = [5, 99, 7, 250, 3, 3, 8, 120]


@dataclass(frozen=True)
class Rounded:
    """A matrix [out, in] of numbers without sign; zeros and scales [out, groups]; each column's group."""

    numbers: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    columns: np.ndarray

    @property
    def meant(self):
        """The values, in float32."""
        zeros = self.zeros[:, self.columns].astype(np.float32)
        scales = self.scales[:, self.columns].astype(np.float32)
        return (self.numbers.astype(np.float32) - zeros) * scales


def rounded(values, bits=4, size=8, *, symmetric=False, shuffled=False, scale_dtype=np.float16):
    """`values` rounded to the nearest; groups of `size` columns (None: one), in or out of order."""
    depth = values.shape[1]
    columns = np.zeros(depth, int) if size is None else np.arange(depth) // size
    if shuffled:
        columns = np.random.default_rng(depth).permutation(columns)
    groups = range(columns.max() + 1)
    low = np.stack([values[:, columns == g].min(axis=1) for g in groups], 1).clip(max=0)
    high = np.stack([values[:, columns == g].max(axis=1) for g in groups], 1).clip(min=0)
    most = 2**bits - 1
    if symmetric:
        scales = (2 * np.maximum(-low, high) / most).astype(scale_dtype)
        zeros = np.full(scales.shape, 2 ** (bits - 1))
    else:
        scales = ((high - low) / most).astype(scale_dtype)
        zeros = np.rint(-low / scales).clip(0, most).astype(int)
    numbers = np.rint(values / scales[:, columns] + zeros[:, columns]).clip(0, most).astype(int)
    return Rounded(numbers, zeros, scales, columns)


def word(numbers, bits):
    """32 bits of numbers, the first of them lowest."""
    return sum(int(number) << (bits * place) for place, number in enumerate(numbers)) % WORD


def words(numbers, bits, order=None):
    """Each row's numbers as int32 words; `order` says which of a word's numbers comes at which place."""
    per_word = 32 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % per_word)))
    taken = padded.reshape(len(padded), -1, per_word)[:, :, order or range(per_word)]
    packed = [[word(one, bits) for one in row] for row in taken]
    return np.array(packed, np.uint32).view(np.int32)


def gptq(matrix, bits=4, *, version=1, with_order=True):
    """GPTQ's tensors. In the first version every word of zeros has lost a one in each of its numbers."""
    zeros = words(matrix.zeros.T, bits)
    if version == 1:
        ones = word([1] * (32 // bits), bits)
        zeros = (
            ((zeros.view(np.uint32).astype(np.int64) - ones) % WORD)
            .astype(np.uint32)
            .view(np.int32)
        )
    tensors = {
        "qweight": np.ascontiguousarray(words(matrix.numbers, bits).T),
        "qzeros": zeros,
        "scales": np.ascontiguousarray(matrix.scales.T),
    }
    return {**tensors, "g_idx": matrix.columns.astype(np.int32)} if with_order else tensors


def awq(matrix):
    """AWQ's tensors, as its gemm kernel reads them."""
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return {
        "qweight": words(matrix.numbers.T, 4, order),
        "qzeros": words(matrix.zeros.T, 4, order),
        "scales": np.ascontiguousarray(matrix.scales.T),
    }


def packed_tensors(pack, except_for=(), config=CONFIG):
    """A checkpoint's tensors with every linear layer packed, and the same as the floats that they mean.

    `pack` makes tensors and meant values of a matrix; modules with a name in `except_for` stay as they are.
    """
    stored, meant = {}, {}
    for name, values in tensors_of(config).items():
        module = name.removesuffix(".weight")
        is_linear = re.search(r"(_proj|\.w[123])\.weight$", name) is not None
        if not is_linear or module.endswith(tuple(except_for)):
            stored[name] = meant[name] = values
            continue
        parts, meant[name] = pack(values)
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    return stored, meant


def write(directory, scheme, tensors, config=CONFIG):
    """A checkpoint of these tensors."""
    return str(write_checkpoint(directory, {**config, "quantization_config": scheme}, tensors))


def logits_of(name, purpose="auto", dtype="auto", ids=IDS, **how):
    """Logits of a few tokens."""
    return logits_from(load_runner(open_model(name, runner=purpose, dtype=dtype), **how), ids)


def logits_from(runner, ids=IDS):
    """The same from a runner."""
    blocks = list(range(1, 2 + len(ids) // 16))
    runner.allocate_kv(num_blocks=1 + len(blocks), block_size=16, num_state_slots=1)
    return runner.forward(step([Part(ids, len(ids), blocks, 0, len(ids))], 16))


def assert_near(name, meant=None, within=0.05, logits_of=logits_of):
    """Computed in its own numbers it is near the reference, which multiplies the same.

    Near `meant` too, which are logits of the floats that the numbers mean, and not these.
    """
    native, reference = (
        logits_of(name, dtype="float32", compute=c) for c in ("native", "reference")
    )
    assert np.linalg.norm(native - reference) < 0.01 * np.linalg.norm(reference)
    if meant is not None:
        assert 1e-5 < np.linalg.norm(native - meant) / np.linalg.norm(meant) < within


def assert_same_model(directory, scheme, stored, meant, compute):
    """The packed checkpoint computes what its meaning does, bit for bit."""
    expected = write_checkpoint(directory / "meant", tensors=meant)
    packed = write(directory / "packed", scheme, stored)
    assert_same(packed, expected, {"quantization": "none"}, compute=compute)


def assert_same(name, expected, own=None, **how):
    """Both give the same logits, bit for bit; `own` is how the first one alone is computed."""
    got = logits_of(str(name), **how, **(own or {}))
    assert got.tobytes() == logits_of(str(expected), **how).tobytes()
