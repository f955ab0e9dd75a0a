"""Layers that store a state per sequence instead of keys and values: their kinds and sizes.

For every kind "conv" is the matrix of a short convolution [conv_size, conv_width]; the other tensors besides the linear
layers are vectors, or matrices that are kept as vectors because they are never quantized and take no adapters.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    """Sizes of a gated delta net; `weft.compute.arithmetic.delta` explains its computation.

    Its linear layers make queries and keys of `num_key_heads`, and values and gates of `num_value_heads`; each key head
    belongs to the same number of adjacent value heads. Queries, keys and values first go through a short convolution
    over `conv_width` rows. `is_by_key_head`: rows of the first linear layer are ordered by key head, each with all that
    belongs to it; otherwise all queries come first, then all keys, and so on.
    """

    num_key_heads: int
    num_value_heads: int
    key_size: int
    value_size: int
    conv_width: int
    is_by_key_head: bool
    has_conv_bias: ClassVar[bool] = False
    has_bias: ClassVar[bool] = False  # the linear layers before and after have no biases

    @property
    def keys_size(self) -> int:
        """Number of elements of all keys, which equals that of all queries."""
        return self.num_key_heads * self.key_size

    @property
    def inner_size(self) -> int:
        """Number of elements of all values, which equals that of all gates."""
        return self.num_value_heads * self.value_size

    @property
    def conv_size(self) -> int:
        """Number of channels of the convolution: queries, keys and values."""
        return 2 * self.keys_size + self.inner_size

    @property
    def products(self) -> Mapping[str, int]:
        """The first linear layers in order, with their output sizes: channels and gates, then b and a of each value
        head.
        """
        if self.is_by_key_head:
            return {
                "delta_qkvz": self.conv_size + self.inner_size,
                "delta_ba": 2 * self.num_value_heads,
            }
        heads = self.num_value_heads
        return {
            "delta_qkv": self.conv_size,
            "delta_z": self.inner_size,
            "delta_b": heads,
            "delta_a": heads,
        }

    @property
    def rounded(self) -> tuple[str, ...]:
        """Linear layers that are quantized; b and a are not, because the whole state depends on them."""
        return ("delta_qkvz",) if self.is_by_key_head else ("delta_qkv", "delta_z")

    @property
    def vectors(self) -> Mapping[str, tuple[int, ...]]:
        """Vectors with their shapes: vectors with one number per head, and the vector that scales a head's outputs."""
        heads = (self.num_value_heads,)
        return {"a_log": heads, "step_bias": heads, "output_scale": (self.value_size,)}

    @property
    def out(self) -> str:
        """Name of the linear layer after the recurrence."""
        return "delta_out"

    @property
    def state_size(self) -> int:
        """Number of floats of state per sequence.

        First come the previous rows of channels for the convolution, oldest first, then a matrix [key_size, value_size]
        per value head.
        """
        matrices = self.num_value_heads * self.key_size * self.value_size
        return (self.conv_width - 1) * self.conv_size + matrices


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """Sizes of a Mamba-2 layer: from each row "mamba_in" makes a gate, x, B, C and a time step per head.

    x, B and C go through a short convolution over `conv_width` rows, channel by channel, and SiLU. A time step dt is
    softplus(dt + its bias), clamped to `min_step` and `max_step`. A head has a matrix of `state_dim` x `head_dim`, and
    uses B and C of its group. For each row the matrix is multiplied by exp(-exp(A_log) dt), and the outer product of dt
    B and x is added; the head's output is C times the matrix, plus D x. The outputs of all heads are multiplied by SiLU
    of the gate, normed by group, and go through "mamba_out"; with `is_gated_first` False they are normed first, and
    with `is_normed` False not at all.

    A sequence's state is the heads' matrices, and the previous rows for the convolution.
    """

    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int
    conv_width: int
    has_conv_bias: bool = True
    has_bias: bool = False  # of the linear layers before and after
    min_step: float = 0.0
    max_step: float = math.inf
    is_normed: bool = True
    is_gated_first: bool = True

    @property
    def inner_size(self) -> int:
        """Number of elements of x, of the gate and of the outputs of all heads."""
        return self.num_heads * self.head_dim

    @property
    def conv_size(self) -> int:
        """Number of channels of the convolution: x, and B and C of each group."""
        return self.inner_size + 2 * self.num_groups * self.state_dim

    @property
    def in_size(self) -> int:
        """Number of elements that "mamba_in" makes: gate, x, B, C, time steps."""
        return self.inner_size + self.conv_size + self.num_heads

    @property
    def products(self) -> Mapping[str, int]:
        """The first linear layer, with its output size."""
        return {"mamba_in": self.in_size}

    @property
    def rounded(self) -> tuple[str, ...]:
        """Linear layers that are quantized."""
        return ("mamba_in",)

    @property
    def vectors(self) -> Mapping[str, tuple[int, ...]]:
        """Vectors with their shapes: vectors with one number per head ("skip" is D), and the vector that scales all
        outputs.
        """
        of_heads = dict.fromkeys(("a_log", "step_bias", "skip"), (self.num_heads,))
        return of_heads | ({"output_scale": (self.inner_size,)} if self.is_normed else {})

    @property
    def out(self) -> str:
        """Name of the linear layer after the recurrence."""
        return "mamba_out"

    @property
    def state_size(self) -> int:
        """Number of elements of state per sequence: [conv_width - 1, conv_size], then [num_heads, state_dim,
        head_dim].
        """
        return (self.conv_width - 1) * self.conv_size + self.inner_size * self.state_dim


_BLOCK = 32  # most channels of a block


@dataclass(frozen=True, slots=True)
class Mamba1Spec:
    """Sizes of a layer of the first Mamba: from each row "mamba_in" makes `inner_size` channels and as many gates.

    The channels go through a short convolution over `conv_width` rows and SiLU; the result is x. The matrix "step_in"
    makes `step_rank` numbers of x, and B and C with `state_dim` numbers each; with `has_norms` each of the three is
    brought to a mean square of 1, with `step_eps`. The matrix "step_out" makes a time step of each channel from the
    first numbers, to which softplus is applied after a bias. Each channel has a vector of `state_dim` numbers: for each
    row it is multiplied by exp(-exp(A_log) dt), and dt B x is added. The channel's output is the sum of C times the
    vector, plus D x, and is multiplied by SiLU of the gate.

    Both matrices are computed in float32 by every backend. A sequence's state is the vectors of all channels, by blocks
    of `head_dim` channels, and the previous rows for the convolution.
    """

    inner_size: int
    state_dim: int
    step_rank: int
    conv_width: int
    has_norms: bool = False
    step_eps: float = 0.0
    has_conv_bias: bool = True
    has_bias: bool = False  # of the linear layers before and after

    @property
    def head_dim(self) -> int:
        """Number of channels of a block."""
        return math.gcd(self.inner_size, _BLOCK)

    @property
    def num_heads(self) -> int:
        """Number of blocks."""
        return self.inner_size // self.head_dim

    @property
    def conv_size(self) -> int:
        """Number of channels of the convolution: all."""
        return self.inner_size

    @property
    def made_size(self) -> int:
        """Number of elements that "step_in" makes: for time steps, B, C."""
        return self.step_rank + 2 * self.state_dim

    @property
    def products(self) -> Mapping[str, int]:
        """The first linear layer, with its output size: channels and gates."""
        return {"mamba_in": 2 * self.inner_size}

    @property
    def rounded(self) -> tuple[str, ...]:
        """Linear layers that are quantized."""
        return ("mamba_in",)

    @property
    def vectors(self) -> Mapping[str, tuple[int, ...]]:
        """Vectors with their shapes in a checkpoint ("skip" is D)."""
        return {
            "a_log": (self.inner_size, self.state_dim),
            "step_bias": (self.inner_size,),
            "skip": (self.inner_size,),
            "step_in": (self.made_size, self.inner_size),
            "step_out": (self.inner_size, self.step_rank),
        }

    @property
    def out(self) -> str:
        """Name of the linear layer after the recurrence."""
        return "mamba_out"

    @property
    def state_size(self) -> int:
        """Number of elements of state per sequence: [conv_width - 1, conv_size], then [blocks, state_dim, head_dim]."""
        return (self.conv_width - 1) * self.conv_size + self.inner_size * self.state_dim


Recurrence: TypeAlias = DeltaSpec | Mamba2Spec | Mamba1Spec
