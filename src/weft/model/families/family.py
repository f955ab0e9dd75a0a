"""What a row of the table of families says; `weft.model.families.decoders` reads a config by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weft.model.families.names import LLAMA, DecoderNames
from weft.model.families.rope import RopeRules
from weft.model.spec import Norm, NormPlacement, QkNorm

# Whether products have biases; where neither, the key that says so.
Bias = Literal["never", "always", "attention_bias", "mlp_bias", "enable_bias", "qkv_bias"]
_COUNTS = ("num_experts", "num_local_experts")
GROUP_KEYS = (
    *("n_shared_experts", "first_k_dense_replace", "routed_scaling_factor"),
    *("n_group", "topk_group"),
)
Windows = Literal["none", "every_layer", "layer_types"]
Recurrence = Literal[
    "none", "convolution", "mamba", "delta"
]  # in place of attention, in some layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsRule:
    """How a family says which layers have experts, and what they are like.

    `count`, `inner_size` and `shared_size` are keys; where the experts are `is_optional`, a count of 0 leaves the
    shared one alone, as an MLP. `is_normalized` None: the key norm_topk_prob says it. Where `has_steps`,
    decoder_sparse_step and mlp_only_layers say which layers have an MLP instead; else none has. `has_groups`:
    what is beside the experts is as DeepSeek has it, by its keys; and so is the router, which is that of its V3
    where `is_sigmoid`, else that of V2.
    """

    count: str
    inner_size: str = "intermediate_size"
    is_normalized: bool | None = None
    has_steps: bool = False
    shared_size: str | None = None
    has_shared_gate: bool = True
    is_optional: bool = False
    has_bias: bool = False
    has_groups: bool = False
    is_sigmoid: bool = False
    epsilon: float = 1e-20  # as in `ExpertsSpec`

    @property
    def other_count(self) -> str | None:
        """What some files call the count instead."""
        others = [key for key in _COUNTS if key != self.count]
        return others[0] if len(others) == 1 else None

    @property
    def keys(self) -> frozenset[str]:
        """Those that are read of a config, and are refused elsewhere."""
        if self.has_groups:
            return frozenset({self.count, *GROUP_KEYS})
        steps = {"decoder_sparse_step", "mlp_only_layers"} if self.has_steps else set()
        return frozenset({*_COUNTS, *steps})


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is fixed for a model type, and which keys of its config decide the rest.

    `aliases` are other spellings of a key, by the usual one.
    `reads` names keys that change the maths in this family and are refused, unless neutral, elsewhere.
    `defaults` says what a missing key means; an explicit null overrides it.
    """

    architecture: str
    defaults: Mapping[str, object]
    aliases: Mapping[str, str] = field(default_factory=dict)
    names: DecoderNames = LLAMA
    qkv_bias: Bias = "attention_bias"
    o_bias: Bias = "attention_bias"
    mlp_bias: Bias = "never"
    is_gated: bool = True
    norm: Norm = Norm.RMS
    qk_norm: QkNorm = QkNorm.NONE
    recurrence: Recurrence = "none"
    is_by_key_head: bool = False  # of delta nets: see `DeltaSpec`
    has_sinks: bool = False
    has_latent: bool = False  # its attention is DeepSeek's, by the keys that it has for it
    norm_placement: NormPlacement = NormPlacement.BEFORE
    norm_offset: float = 0.0
    windows: Windows = "none"
    window_switch: bool = False  # windows count only under use_sliding_window
    window_alternates: bool = False  # every second layer has one, below max_window_layers
    rope: RopeRules = field(default_factory=RopeRules)
    position_offset: int | None = None  # positions are learned, and begin there: there is no rope
    scales_embeddings: bool = False  # by the square root of the hidden size
    experts: ExpertsRule | None = None
    reads: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ("model.",)
    ignored_tensors: tuple[str, ...] = ()  # prefixes of tensors that serve no text
