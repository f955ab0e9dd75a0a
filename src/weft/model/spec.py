"""`DecoderSpec`: one description, by switches, of every Llama-like decoder; `EchoSpec`: no decoder."""

from dataclasses import dataclass
from enum import StrEnum


class QkNorm(StrEnum):
    """Whether queries and keys are normalised before rope, and over what."""

    NONE = "none"
    HEAD = "head"  # each head by itself
    FULL = "full"  # all heads together, before they are split


class NormPlacement(StrEnum):
    """Where a layer normalises, around attention and around the MLP alike."""

    BEFORE = "before"
    AFTER = "after"
    BOTH = "both"


class Activation(StrEnum):
    """What the gate of the MLP goes through."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"


class RopeKind(StrEnum):
    """How rotary frequencies are stretched for long contexts."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of the first `dim` elements of a head; fields after `kind` belong to some kinds.

    `attention_factor` multiplies both cosine and sine.
    """

    dim: int
    theta: float
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    attention_factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What differs between layers. `window` counts the visible keys, the row's own included."""

    rope: RopeSpec | None
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder in full; the maths of each switch is in `weft.compute.reference`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    max_position_embeddings: int
    norm_eps: float
    norm_offset: float  # added to every norm weight: 1 where weights are stored around zero
    norm_placement: NormPlacement
    qk_norm: QkNorm
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    activation: Activation
    attention_scale: float
    attention_soft_cap: float | None
    final_soft_cap: float | None
    embedding_multiplier: float
    residual_multiplier: float
    logits_divisor: float
    tied_head: bool
    has_head: bool = True  # without one, rows come out as hidden states after the last norm

    @property
    def kv_size(self) -> int:
        """Elements of one token's keys (or values) in one layer."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class EchoSpec:
    """A model without maths: repeats the prompt, then `eos_token_id`, at a set pace."""

    vocab_size: int
    eos_token_id: int
    ttft_s: float
    itl_s: float
