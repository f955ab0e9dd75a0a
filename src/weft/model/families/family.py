"""Row types of the table of families. `weft.model.families.decoders` reads configs by these rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from weft.model.families.names import LLAMA, DecoderNames
from weft.model.families.rope import RopeRules
from weft.model.families.tower import TowerRow
from weft.model.fields import Fields
from weft.model.spec import NormPlacement, QkNorm
from weft.model.switches import Norm

# True or False, or the key of the config that says whether linear layers have biases.
Bias = Literal[
    "never",
    "always",
    "attention_bias",
    "attention_out_bias",
    "mlp_bias",
    "enable_bias",
    "qkv_bias",
    "use_bias",
    "use_qkv_bias",
]
_COUNTS = ("num_experts", "num_local_experts")
GROUP_KEYS = (
    *("n_shared_experts", "first_k_dense_replace", "routed_scaling_factor"),
    *("n_group", "topk_group"),
)
Windows = Literal["none", "every_layer", "layer_types", "chunks"]
# Instead of attention, in some layers; "beside": Mamba-2 beside attention, in all layers; "blocks": a list of
# Nemotron-H's kinds, of which two make a layer; "mamba": Mamba-2, and "mamba1": the first Mamba.
Recurrence = Literal["none", "convolution", "mamba", "mamba1", "delta", "beside", "blocks"]

# Values of missing keys that most families share.
COMMON: Mapping[str, object] = MappingProxyType(
    {
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsRule:
    """Rule by which a family's config describes its experts and the layers with experts.

    `count`, `inner_size` and `shared_size` are keys of the config; or `num_shared` is the key of the number of experts
    that the shared expert is as large as. With `is_optional`, a count of 0 leaves only the
    shared expert, as an MLP. If `is_normalized` is None, the key norm_topk_prob decides. With `has_steps`,
    decoder_sparse_step and mlp_only_layers say which layers have an MLP instead; otherwise every layer has experts.
    With `has_groups`, shared experts and router have DeepSeek's form and keys; the router is DeepSeek-V3's with
    `is_sigmoid`, otherwise DeepSeek-V2's. `switch` is a key that must be true for a model with experts. `kinds`
    is a key that may list, for each layer, sparse (experts) or dense. `listed` is a key that may list the numbers of
    layers with experts, and `steps` the key that says otherwise that every so many layers have some. `span` are keys:
    the distance of layers with experts, the first and the last of them.
    """

    count: str
    inner_size: str = "intermediate_size"
    is_normalized: bool | None = None
    has_steps: bool = False
    shared_size: str | None = None
    num_shared: str | None = None
    has_shared_gate: bool = True
    is_optional: bool = False
    has_bias: bool = False
    has_groups: bool = False
    is_sigmoid: bool = False
    has_correction: bool = False  # as in `ExpertsSpec`
    weighs_inputs: bool = False  # as in `ExpertsSpec`
    epsilon: float = 1e-20  # as in `ExpertsSpec`
    has_norms: bool = False  # as in `ExpertsSpec`
    switch: str | None = None
    kinds: str | None = None
    listed: str | None = None
    steps: str | None = None
    span: tuple[str, str, str] | None = None
    has_blocks: bool = False  # the blocks of Nemotron-H say which layers have experts

    @property
    def other_count(self) -> str | None:
        """Key for the number of experts in other files of the family."""
        others = [key for key in _COUNTS if key != self.count]
        return others[0] if len(others) == 1 else None

    @property
    def keys(self) -> frozenset[str]:
        """Keys that this rule reads from a config; families without experts refuse these keys."""
        if self.has_groups:
            return frozenset({self.count, *GROUP_KEYS})
        steps = {"decoder_sparse_step", "mlp_only_layers"} if self.has_steps else set()
        return frozenset({*_COUNTS, *steps})


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Fixed properties of a model type, and the config keys that determine the rest.

    `aliases` maps other names of keys to the usual names. `reads` has the keys that change the computation in this
    family; other families refuse these keys unless their value has no effect. `defaults` has the values of missing
    keys; an explicit null overrides them.
    """

    architecture: str
    also_saved_as: tuple[str, ...] = ()  # further architecture names in files of this model type
    defaults: Mapping[str, object]
    aliases: Mapping[str, str] = field(default_factory=dict)
    names: DecoderNames = LLAMA
    qkv_bias: Bias = "attention_bias"
    o_bias: Bias = "attention_bias"
    has_key_bias: bool = True  # where the other linear layers of attention have biases
    mlp_bias: Bias = "never"
    is_gated: bool = True
    may_be_xielu: bool = False  # files may name xIELU as activation
    norm: Norm = Norm.RMS
    norm_bias: bool = True  # layer norms have biases
    head_bias: bool = False
    qk_norm: QkNorm = QkNorm.NONE
    has_qk_weights: bool = True  # as in `ModelSpec`
    recurrence: Recurrence = "none"
    has_attention: bool = True  # False: every layer has a recurrence, and no layer has an MLP
    is_by_key_head: bool = False  # for delta nets; see `DeltaSpec`
    has_sinks: bool = False
    has_latent: bool = False  # latent attention, with DeepSeek's keys
    has_layer_sizes: bool = False  # sizes and inputs of layers, with Gemma 4's keys
    norm_placement: NormPlacement = NormPlacement.BEFORE
    norm_offset: float = 0.0
    windows: Windows = "none"
    window_switch: bool = False  # windows apply only if use_sliding_window is true
    rope_needs_window: Literal["never", "if_any", "always"] = "never"  # "if_any" layer has a window
    window_alternates: bool = False  # every second layer below max_window_layers has a window
    rope: RopeRules = field(default_factory=RopeRules)
    position_offset: int | None = None  # positions are learned and begin at this offset; no rope
    scales_embeddings: bool = False  # multiplied by the square root of the hidden size
    experts: ExpertsRule | None = None
    reads: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ("model.",)
    # The text model is in text_config; other parts of the model are not used.
    is_nested: bool = False
    # Of pictures or sounds. The text model is in the config's text_config, or in the file itself
    tower: TowerRow | None = None
    text_types: tuple[str, ...] = ()  # model_type of text_config; empty: not checked
    # Rows for files with these values of model_type in vision_config and in text_config, instead of this row.
    variants: Mapping[tuple[str, str], "Family"] = field(default_factory=dict)
    sees_items_whole: bool = False  # as in `ModelSpec`
    ignored_tensors: tuple[str, ...] = ()  # prefixes of tensors that text generation does not use

    def variant(self, top: Fields) -> "Family":
        """Returns the row for the kinds of tower and text model that a file names; this row for other kinds."""
        parts = (top.object(part) for part in ("vision_config", "text_config") if self.variants)
        kinds = tuple(None if part is None else part.values.get("model_type") for part in parts)
        return next((row for own, row in self.variants.items() if own == kinds), self)
