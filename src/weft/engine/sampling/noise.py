"""Sampling noise as a pure function of (seed, output position, token id).

Nothing is drawn from a stream, so a seeded answer does not depend on batching, chunking, preemption
or on which tokens were masked. The mixing function is the 64-bit finaliser of SplitMix64.
"""

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the increment of SplitMix64
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def gumbel(seed: int, position: int, token_ids: NDArray[np.integer]) -> NDArray[np.float64]:
    """Standard Gumbel noise for each token id: adding it to log-probabilities and taking the largest
    draws from the distribution (the Gumbel-max trick)."""
    key = noise_key(seed, position)
    bits = _mix(np.uint64(key) + (token_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA))
    # 53 bits, centred in their cell: never 0 or 1, whose logarithms are infinite.
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def noise_key(seed: int, position: int) -> int:
    """What tells the noise of one output position from that of all others; 64 bits."""
    return _mix_int(_mix_int(seed + _GAMMA) + position * _GAMMA)


def _mix_int(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_M1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_M2)
    return values ^ (values >> np.uint64(31))
