"""`ModelSpec`: one description, by switches, of models like Llama and BERT; `EchoSpec`: a model without weights."""

from dataclasses import dataclass, replace
from enum import StrEnum

from weft.model.recurrence import Recurrence
from weft.model.switches import Activation, Norm
from weft.model.towers.spec import TowerSpec

MAX_CONV_WIDTH = 64  # of every short convolution


class QkNorm(StrEnum):
    """Normalisation of queries and keys; before rope, except for HEAD_AFTER_ROPE."""

    NONE = "none"
    HEAD = "head"  # each head separately
    FULL = "full"  # all heads together, before they are split
    HEAD_AFTER_ROPE = "head_after_rope"  # each head separately, after its rotation
    HEAD_LAYER = "head_layer"  # a layer norm of each head, with weights of its own


class NormPlacement(StrEnum):
    """Placement of norms in a layer, the same for attention and for the MLP."""

    BEFORE = "before"  # on the input of each
    AFTER = "after"  # on the output of each
    BOTH = "both"
    PARALLEL = "parallel"  # the input of either, which for the MLP too is the layer's input
    SUM = "sum"  # the sum of input and output, in place of the sum; then there is no norm after the last layer


class RopeKind(StrEnum):
    """Scaling of rotary frequencies for long contexts."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    LONGROPE = "longrope"
    # Frequencies as if all pairs turned, but only the first `num_turned` do.
    PROPORTIONAL = "proportional"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of the first `dim` elements of a head; each field after `kind` belongs to some kinds only.

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
    num_turned: int = 0


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """Experts of a layer: each token uses the `per_token` experts with the highest router logits.

    Of equal logits the lower number comes first. The router is computed in float32, whatever the model's type. The
    outputs of a token's experts are summed with weights from the softmax of the logits: over its own experts with
    `is_normalized`, so that the weights sum to 1, otherwise over all experts. `scale` multiplies the weights.

    `is_sigmoid`: weights are sigmoids of logits instead, normalised to sum to 1 with `is_normalized`.
    `has_correction`: the experts with the highest sum of weight (before it is normalised) and a learned correction are
    chosen. Experts are chosen only from `groups_per_token` of `num_groups` groups: for sigmoids the groups with the
    highest sum of their best two, otherwise the groups with the highest best one. The divisor that normalises sigmoids
    is their sum plus `epsilon`; the divisor of a softmax with a correction is at least `epsilon`. `weighs_inputs`: an
    expert's weight multiplies its input, not its result.

    `shared_size` is the size of an expert that every token uses in addition, weighted by the sigmoid of a logit of
    its own, or by 1 without `has_shared_gate`; 0: no shared expert. `has_bias` applies to router and experts.

    With `has_norms`, router and experts read the hidden state by norms of their own, beside the shared expert, which
    reads the MLP's norm. Both results are normed before they are added, and a learned scale of each expert multiplies
    its weights.
    """

    count: int
    per_token: int
    inner_size: int
    shared_size: int = 0
    has_shared_gate: bool = True
    is_normalized: bool = False
    is_sigmoid: bool = False
    has_correction: bool = False
    weighs_inputs: bool = False
    num_groups: int = 1
    groups_per_token: int = 1
    scale: float = 1.0
    epsilon: float = 1e-20
    has_bias: bool = False
    has_norms: bool = False

    @property
    def weighs_shared(self) -> bool:
        """True if there is a shared expert with a logit of its own."""
        return self.shared_size > 0 and self.has_shared_gate


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Latent attention: a token stores one vector for all heads, from which each head computes its own key and value.

    The vector has `rank` normed elements, followed by `rope_size` elements that are rotated (rope). A head's key is
    `key_size` elements computed from the first part, followed by the second part; its value of `value_size` elements is
    computed only from the first part. The matrices for a head's key and value are multiplied into its query and into
    its attention output instead, so that all heads attend to the vectors themselves.

    Queries are computed from the hidden state or, with a `query_rank`, from a normed vector of this size that is
    computed from the hidden state. `is_interleaved`: element 2i is rotated with 2i + 1.
    """

    rank: int
    rope_size: int
    key_size: int
    value_size: int
    query_rank: int | None = None
    is_interleaved: bool = True
    norm_eps: float = 1e-6  # for the norms of both vectors, whatever the model's other norms use

    @property
    def query_size(self) -> int:
        """Number of elements of a head's query before the key matrix is multiplied in."""
        return self.key_size + self.rope_size


@dataclass(frozen=True, slots=True)
class Temperature:
    """Factor of a row's queries: 1 + `slope` * log(1 + floor((position + 1) / `interval`))."""

    interval: int
    slope: float


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Properties that differ between layers.

    With a `conv_width` a layer has a short convolution instead of attention. From each row "conv_in" makes three parts,
    B, C and x. The products B * x of `conv_width` rows, the last being the row's own, are weighted channel by channel
    and summed; C times the sum goes through "conv_out". The layer stores the products of the previous rows from step to
    step. A `recurrence` instead of attention stores a state per sequence; `is_beside` the attention, it reads the same
    rows, and both results are added. Without `has_mlp` the layer ends there.

    `window` is the number of keys that a row attends to, up to and including its own; also in the other direction if
    the model is not causal; None: all. With a `chunk`, positions are divided into chunks of this many, and a row
    attends only to keys of its own chunk. `has_attention_norm` is False if there is no norm before attention,
    `has_qk_norm` if the layer has no norm of queries and keys, whatever the model's `qk_norm` says.

    `num_kv_heads`, `head_dim` and `intermediate_size` are set where they differ from the model's. A layer with a
    `kv_layer` makes only queries: it attends to the keys and values of that earlier layer. Without
    `has_value_matrix`, "v" is the matrix "k".
    """

    rope: RopeSpec | None = None
    window: int | None = None
    chunk: int | None = None
    temperature: Temperature | None = None
    has_attention_norm: bool = True
    has_qk_norm: bool = True
    conv_width: int = 0
    recurrence: Recurrence | None = None
    is_beside: bool = False
    has_mlp: bool = True
    experts: ExpertsSpec | None = None  # instead of the MLP
    num_kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    kv_layer: int | None = None
    has_value_matrix: bool = True

    @property
    def has_attention(self) -> bool:
        """True if the layer attends to keys and values."""
        return not self.conv_width and (self.recurrence is None or self.is_beside)

    @property
    def stores_kv(self) -> bool:
        """True if the layer makes keys and values, which the KV cache stores."""
        return self.has_attention and self.kv_layer is None

    def mixing(self, attention: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
        """Returns the names of the linear layers before and after the layer's token mixing.

        For attention, `attention` are the names of the layers before it. A recurrence beside it is left out.
        """
        if self.recurrence is not None and not self.is_beside:
            return self.recurrence.rounded, self.recurrence.out
        if self.kv_layer is not None:
            return ("q",), "o"
        return (("conv_in",), "conv_out") if self.conv_width else (attention, "o")


@dataclass(frozen=True, slots=True)
class Multiplier:
    """Factors of the rows of a layer's linear layer `name`, and of its bias: runs of rows, each with its factor."""

    name: str
    runs: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A complete model: a decoder if `is_causal`, otherwise an encoder, whose rows attend to their whole sequence.

    The computation of each switch is in `weft.compute.reference.runner` and, for encoders, in
    `weft.compute.reference.encoder`. `num_positions` 0 means no learned positions; row i takes position embedding `i +
    position_offset`. `embed_size` is the width of a tied embedding that is stored narrower than the hidden state: the
    matrices from it and back to it are multiplied into embedding and head at loading, which gives the same result.
    `has_sinks`: each head has a learned logit in the softmax of attention that has no value. `has_output_gate`: beside
    each head's query "q" makes as many elements again, and their sigmoids multiply the head's attention output.

    With a `swiglu_limit` the MLP joins gate and up differently: the gate is clamped from above at the limit, up from
    both sides, and gate * sigmoid(`swiglu_alpha` * gate) is multiplied by up + 1; `activation` is not used.
    `joins_hidden`: rows begin with a pair from the batch, a token's embedding and a hidden state, each normed;
    concatenated they go through "join". Such a model has no embedding table. With a `latent`, all heads share one key
    and value: the latent vector, whose size is `head_dim`.

    With `num_cross_keys` each layer has cross-attention between attention and MLP: all rows of a sequence attend to as
    many keys, which the `tower` makes of the sequence's sound. `has_key_bias` False: "k" has no bias, whatever
    `qkv_bias` says.

    Another `tower` turns pictures into rows of the input. With `rope_sections` the three positions of a row
    (`rope_positions` of the batch: frame, row, column) share the rotary pairs: the sections say how many pairs follow
    each. In sections the pairs of one position are adjacent; with `has_interleaved_sections` the positions take turns,
    and the pairs that remain follow the first. `sees_items_whole`: the rows of an item see each other in both
    directions.

    `has_qk_weights` False: norms of queries and keys have no weights.
    `has_value_norm`: each head of the values is normed, without weights. With a `per_layer_size` each layer has an
    input of this size of its own: the sum of a second embedding of the token and of a normed projection of its first
    one. The input, times the activation of "input.gate" of the hidden state, goes through "input.down" and is added at
    the end of the layer. `has_layer_scales`: a learned number multiplies the hidden state that leaves a layer.
    `multipliers` are left out of a checkpoint's weights, and are multiplied into them where they are read.
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
    has_qk_weights: bool = True
    qkv_bias: bool
    has_key_bias: bool = True
    has_value_norm: bool = False
    per_layer_size: int = 0
    has_layer_scales: bool = False
    o_bias: bool
    mlp_bias: bool
    is_gated: bool = True
    activation: Activation
    attention_scale: float
    attention_soft_cap: float | None = None
    has_sinks: bool = False
    has_output_gate: bool = False
    conv_bias: bool = False  # for all three parts of a short convolution
    swiglu_limit: float | None = None
    swiglu_alpha: float = 1.0
    final_soft_cap: float | None = None
    latent: LatentSpec | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    joins_hidden: bool = False
    tied_head: bool = False
    head_bias: bool = False
    has_head: bool = True  # without a head, the outputs are hidden states after the last norm
    rope_sections: tuple[int, int, int] | None = None
    has_interleaved_sections: bool = False
    sees_items_whole: bool = False
    tower: TowerSpec | None = None
    num_cross_keys: int = 0
    multipliers: tuple[Multiplier, ...] = ()

    def heads_of(self, layer: LayerSpec) -> tuple[int, int]:
        """Returns the layer's number of KV heads, and the size of its heads."""
        return layer.num_kv_heads or self.num_kv_heads, layer.head_dim or self.head_dim

    @property
    def kv_size(self) -> int:
        """Number of elements of one token's keys (or values) in a layer without sizes of its own."""
        return self.num_kv_heads * self.head_dim

    def kv_size_of(self, layer: LayerSpec) -> int:
        """Returns the number of elements of one token's keys (or values) in a layer."""
        kv_heads, size = self.heads_of(layer)
        return kv_heads * size

    def at(self, layer: LayerSpec) -> "ModelSpec":
        """Returns the spec with the layer's number and size of heads as those of the model."""
        kv_heads, size = self.heads_of(layer)
        if (kv_heads, size) == (self.num_kv_heads, self.head_dim):
            return self
        return replace(self, num_kv_heads=kv_heads, head_dim=size)

    @property
    def has_like_layers(self) -> bool:
        """True if no layer has heads, keys or inputs of its own."""
        sizes = ("num_kv_heads", "head_dim", "kv_layer")
        own = any(getattr(layer, size) is not None for layer in self.layers for size in sizes)
        return not own and not self.per_layer_size

    @property
    def kv_parts(self) -> int:
        """2 for keys and values; 1 for latent attention, where they are the same."""
        return 1 if self.latent else 2

    @property
    def output_size(self) -> int:
        """Number of elements of one token's attention output, over all heads, in a layer without sizes of its own."""
        return self.num_heads * (self.latent.value_size if self.latent else self.head_dim)

    def output_size_of(self, layer: LayerSpec) -> int:
        """Returns the number of elements of one token's attention output in a layer, over all heads."""
        size = self.latent.value_size if self.latent else self.heads_of(layer)[1]
        return self.num_heads * size

    @property
    def num_attention_layers(self) -> int:
        """Number of layers that store keys and values."""
        return sum(layer.stores_kv for layer in self.layers)

    @property
    def kv_elements(self) -> int:
        """Number of elements of one token's keys and values in all layers."""
        stored = sum(self.kv_size_of(layer) for layer in self.layers if layer.stores_kv)
        return self.kv_parts * stored

    @property
    def slot_size(self) -> int:
        """Number of elements of state that recurrent layers store per sequence."""
        return sum(layer.recurrence.state_size for layer in self.layers if layer.recurrence)

    @property
    def state_size(self) -> int:
        """Number of elements that convolution layers store per block: the state at the block's end, to continue
        from.
        """
        return sum(self.hidden_size * max(layer.conv_width - 1, 0) for layer in self.layers)

    def mlp_size(self, layer: LayerSpec) -> int:
        """Returns the width of the layer's MLP or shared expert, which every token uses; 0 without either."""
        if layer.experts is not None:
            return layer.experts.shared_size
        return (layer.intermediate_size or self.intermediate_size) if layer.has_mlp else 0

    @property
    def num_idle_parameters(self) -> int:
        """Number of parameters of the experts that a token does not use."""
        each = (3 if self.is_gated else 2) * self.hidden_size
        return sum(
            each * layer.experts.inner_size * (layer.experts.count - layer.experts.per_token)
            for layer in self.layers
            if layer.experts is not None
        )


@dataclass(frozen=True, slots=True)
class EchoSpec:
    """A model without weights: repeats the prompt, then `eos_token_id`, at a fixed rate."""

    vocab_size: int
    eos_token_id: int
    ttft_s: float
    itl_s: float
