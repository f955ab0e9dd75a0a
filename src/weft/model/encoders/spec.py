"""`EncoderSpec`: one description, by switches, of every BERT-like encoder."""

from dataclasses import dataclass
from enum import StrEnum

from weft.model.spec import RopeSpec


class EncoderActivation(StrEnum):
    """What goes between the two products of an MLP, and between those of a head."""

    GELU = "gelu"  # exact, by the error function
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    SILU = "silu"
    TANH = "tanh"


@dataclass(frozen=True, slots=True)
class EncoderLayerSpec:
    """What differs between layers. A row sees keys at most `reach` places away; None: all of them.

    `has_attention_norm` is False where a layer that normalises before attention leaves it out.
    """

    rope: RopeSpec | None = None
    reach: int | None = None
    has_attention_norm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """An encoder in full; the maths of each switch is in `weft.compute.encoder`.

    `num_positions` 0 is none learned; row i takes position embedding `i + position_offset`.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    layers: tuple[EncoderLayerSpec, ...]
    max_position_embeddings: int
    num_positions: int
    position_offset: int
    num_token_types: int
    norm_eps: float
    norm_bias: bool
    norm_before: bool  # each part normalises its input, and the last layer is followed by a norm
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    is_gated: bool
    activation: EncoderActivation

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return self.hidden_size // self.num_heads
