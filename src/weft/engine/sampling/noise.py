"""Sampling noise as a pure function of (seed, output position, token id).

Nothing is drawn from a stream, so a seeded answer does not depend on batching, chunking, preemption
or on which tokens were masked. The mixing function is the 64-bit finaliser of SplitMix64.
"""

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the increment of SplitMix64
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def noise_key(seed: int, position: int) -> int:
    """What tells the noise of one output position from that of all others; 64 bits."""
    return _mix_int(_mix_int(seed + _GAMMA) + position * _GAMMA)


def _mix_int(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)
