"""`ModelSpec`: one description, by switches, of Llama's and BERT's descendants; `EchoSpec`: no weights."""

from dataclasses import dataclass
from enum import StrEnum

from weft.model.recurrence import Recurrence

MAX_CONV_WIDTH = 64  # of any short convolution


class QkNorm(StrEnum):
    """Whether queries and keys are normalised before rope, and over what."""

    NONE = "none"
    HEAD = "head"  # each head by itself
    FULL = "full"  # all heads together, before they are split


class Norm(StrEnum):
    """What a norm brings a row to."""

    RMS = "rms"  # mean square 1
    LAYER = "layer"  # mean 0 and variance 1; may have a bias


class NormPlacement(StrEnum):
    """What a layer normalises, around attention and around the MLP alike."""

    BEFORE = "before"  # the input of either
    AFTER = "after"  # what comes out
    BOTH = "both"
    SUM = "sum"  # the sum of the two, which replaces it; then nothing is normalised behind the last layer


class Activation(StrEnum):
    """What the gate of the MLP goes through, or all of it where there is no gate; and a classifier's dense part."""

    SILU = "silu"
    GELU = "gelu"  # exact, by the error function
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    TANH = "tanh"


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
class ExpertsSpec:
    """A layer's experts: each token goes through those `per_token` whose router logits are the highest.

    Of equal logits the lower number goes first. The router is computed in float32, whatever the model's type.
    A token's experts are added up by the softmax of the logits: of its own where `is_normalized`, so that the
    weights add up to 1, else of all. `scale` multiplies the weights.

    `is_sigmoid`: weights are sigmoids of logits instead, brought to 1 where `is_normalized`; and those experts
    are chosen for which the sigmoid and a learned correction add up to the most. Only the experts of
    `groups_per_token` of `num_groups` are chosen from: of sigmoids the groups whose best two make the largest
    sum, else those whose best one is the highest. What sigmoids are divided by to be brought to 1 is `epsilon` more
    than their sum.

    `shared_size` is of an expert that every token goes through beside them, weighed by the sigmoid of a logit
    of its own, or where not `has_shared_gate` by 1; 0: there is none. `has_bias` is of the router and experts.
    """

    count: int
    per_token: int
    inner_size: int
    shared_size: int = 0
    has_shared_gate: bool = True
    is_normalized: bool = False
    is_sigmoid: bool = False
    num_groups: int = 1
    groups_per_token: int = 1
    scale: float = 1.0
    epsilon: float = 1e-20
    has_bias: bool = False

    @property
    def weighs_shared(self) -> bool:
        """Whether there is a shared expert with a logit of its own."""
        return self.shared_size > 0 and self.has_shared_gate


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Latent attention: what is kept of a token is one vector for all heads, from which each makes its own.

    The vector has `rank` elements, normed, and `rope_size` behind them, which carry the rope. A head's key is
    `key_size` elements made of the first, with the second behind them; its value, `value_size` elements, is made of
    the first alone. What makes a head's own is multiplied into its query, and into what its attention gives:
    so all heads attend to the vectors themselves.

    Queries come from the hidden state or, where there is a `query_rank`, from a normed vector of so many elements
    that is made of it. `is_interleaved`: element 2i turns with 2i + 1.
    """

    rank: int
    rope_size: int
    key_size: int
    value_size: int
    query_rank: int | None = None
    is_interleaved: bool = True
    norm_eps: float = 1e-6  # of the norms of both vectors, whatever the model's other norms have

    @property
    def query_size(self) -> int:
        """Elements of a head's query as it is made."""
        return self.key_size + self.rope_size


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What differs between layers.

    With a `conv_width` a layer has a short convolution in place of attention: of each row "conv_in" makes three
    parts, B, C and x; the products B * x of so many rows, the last its own, are weighed channel by channel and
    added up; C times the sum goes through "conv_out". What it keeps from step to step are those products of the
    rows before. A `recurrence` in place of attention keeps a state for each sequence.

    `window` counts the keys that a row sees before it, and after it where the model is not causal, its own
    included; None: all. `has_attention_norm` is False where the norm before attention is left out.
    """

    rope: RopeSpec | None = None
    window: int | None = None
    has_attention_norm: bool = True
    conv_width: int = 0
    recurrence: Recurrence | None = None
    experts: ExpertsSpec | None = None  # in place of the MLP

    def mixing(self, attention: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
        """The products into and out of what mixes tokens; of attention the first are as given."""
        if self.recurrence is not None:
            return self.recurrence.rounded, self.recurrence.out
        return (("conv_in",), "conv_out") if self.conv_width else (attention, "o")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model in full: a decoder if `is_causal`, else an encoder, whose rows see all of their sequence.

    The maths of each switch is in `weft.compute.reference.runner` and `weft.compute.reference.encoder`.
    `num_positions` 0 is none learned; row i takes position embedding `i + position_offset`.
    `embed_size` is the width of a tied embedding that is stored narrower than the hidden state: what leads
    from it and back to it is multiplied into embedding and head as they are read, which computes the same.
    `has_sinks`: each head has a learned logit that takes part in the softmax of attention and has no value.
    `has_output_gate`: beside each head's query "q" makes as many elements, by whose sigmoids what the head's attention
    gives is multiplied.
    With a `swiglu_limit` the MLP joins gate and up so: the gate is cut at the limit from above, up from both
    sides, and gate * sigmoid(`swiglu_alpha` * gate) is multiplied by up + 1; `activation` is not used.
    `joins_hidden`: rows begin with a pair of the batch's, a token's embedding and a hidden state, each normed; side by
    side they go through "join". There is no table of embeddings then.
    With a `latent`, all heads have one key and value: the latent vector, `head_dim` elements of it.
    """

    vocab_size: int
    hidden_size: int
    embed_size: int | None = None
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    max_position_embeddings: int
    is_causal: bool = True
    num_positions: int = 0
    position_offset: int = 0
    num_token_types: int = 0
    norm: Norm = Norm.RMS
    norm_bias: bool = False
    norm_eps: float
    norm_offset: float = 0.0  # added to every norm weight: 1 where weights are stored around zero
    norm_placement: NormPlacement
    has_embed_norm: bool = False
    qk_norm: QkNorm = QkNorm.NONE
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    is_gated: bool = True
    activation: Activation
    attention_scale: float
    attention_soft_cap: float | None = None
    has_sinks: bool = False
    has_output_gate: bool = False
    conv_bias: bool = False  # of all three parts of a short convolution
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.0
    final_soft_cap: float | None = None
    latent: LatentSpec | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    joins_hidden: bool = False
    tied_head: bool = False
    has_head: bool = True  # without one, rows come out as hidden states after the last norm

    @property
    def kv_size(self) -> int:
        """Elements of one token's keys (or values) in one layer."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_parts(self) -> int:
        """Keys and values; of latent attention, where they are the same, one."""
        return 1 if self.latent else 2

    @property
    def output_size(self) -> int:
        """Elements of one token that attention hands on, of all heads."""
        return self.num_heads * (self.latent.value_size if self.latent else self.head_dim)

    @property
    def num_attention_layers(self) -> int:
        """Those that keep keys and values."""
        return sum(not (layer.conv_width or layer.recurrence) for layer in self.layers)

    @property
    def slot_size(self) -> int:
        """Elements that layers with a recurrence keep for each sequence."""
        return sum(layer.recurrence.state_size for layer in self.layers if layer.recurrence)

    @property
    def state_size(self) -> int:
        """Elements that the other layers keep for each block: what a sequence goes on from at its end."""
        return sum(self.hidden_size * max(layer.conv_width - 1, 0) for layer in self.layers)

    def mlp_size(self, layer: LayerSpec) -> int:
        """The width of what every token of a layer goes through: the MLP, or the shared expert; 0: neither."""
        return self.intermediate_size if layer.experts is None else layer.experts.shared_size

    @property
    def num_idle_parameters(self) -> int:
        """Those of experts that a token does not go through."""
        each = (3 if self.is_gated else 2) * self.hidden_size
        return sum(
            each * layer.experts.inner_size * (layer.experts.count - layer.experts.per_token)
            for layer in self.layers
            if layer.experts is not None
        )


@dataclass(frozen=True, slots=True)
class EchoSpec:
    """A model without maths: repeats the prompt, then `eos_token_id`, at a set pace."""

    vocab_size: int
    eos_token_id: int
    ttft_s: float
    itl_s: float
