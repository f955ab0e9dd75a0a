"""Row type of the table of GGUF architectures, and what readers of single architectures share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from weft.core.errors import ConfigError
from weft.model.families.layers import FULL, SLIDING
from weft.model.families.names import DecoderNames
from weft.model.fields import shown
from weft.model.gguf.names import TENSORS

CLIP = "clip"  # the architecture that projector files name
NUM_GUESSING_LAYERS = "num_nextn_predict_layers"

# Values of `expert_gating_func`; the first and third are equal if weights sum to 1.
SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3
WINDOW = {"attention.sliding_window": "sliding_window"}
GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
}
# Settings of experts in DeepSeek's form.
GROUPED_EXPERTS: Mapping[str, str] = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": NUM_GUESSING_LAYERS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture of GGUF files. `keys` maps the architecture's own settings to keys of the family's config.

    `is_interleaved`: elements that are rotated together are adjacent rows of queries and keys. `adds_norm_offset`: norm
    weights in the file include the family's offset. `has_optional_windows`: without a window width no layer has a
    window, although the family has a default. `layers_of_largest`: number of layers of the model whose queries are
    scaled by hidden_size / num_attention_heads; other models scale by the head width, and the files do not say which.
    `model_type_with_experts`: model type for files with experts. `adds_up`: the weights of a token's experts sum to 1.
    `read_own` converts settings and tensors that the config has in another form. `truncates`: the frequencies at which
    yarn begins and ends are rounded to whole numbers.
    """

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)
    names: DecoderNames = TENSORS
    is_interleaved: bool = False
    adds_norm_offset: bool = False
    has_optional_windows: bool = False
    layers_of_largest: int | None = None
    model_type_with_experts: str | None = None
    adds_up: bool = True
    truncates: bool = True
    # False: every layer has experts, and files may leave out the size of an MLP.
    has_mlp: bool = True
    has_tiled_heads: bool = False  # see `weft.model.gguf.head_order`
    has_own_layers: bool = False  # sizes of single layers, as Gemma 4 has them
    read_own: Callable[["Metadata"], None] | None = None


@dataclass(frozen=True, slots=True)
class Metadata:
    """Data for the reader of one architecture: the unfinished `config`, and the unread settings `said`.

    A reader removes the settings that it reads from `said`. `rope` has the reader's additions to the config of scaled
    frequencies. `tensors` are shapes by name; `where` begins error messages about a key.
    """

    config: dict[str, object]
    said: dict[str, object]
    rope: dict[str, object]
    tensors: Mapping[str, tuple[int, ...]]
    where: str


def need(said: dict[str, object], key: str, expected: object, where: str) -> None:
    """Removes a setting that must have the expected value if it is there."""
    value = said.pop(key, expected)
    if value != expected:
        raise ConfigError(f"{where}{key} is {shown(value)}; {expected} is implemented")


def pass_over_mtp(config: dict[str, object]) -> None:
    """Subtracts the layers for multi-token prediction, which the metadata counts as ordinary layers."""
    layers, guessing = config["num_hidden_layers"], config.setdefault(NUM_GUESSING_LAYERS, 0)
    if isinstance(layers, int) and isinstance(guessing, int) and 0 <= guessing < layers:
        config["num_hidden_layers"] = layers - guessing


def read_windows(config: dict[str, object], said: dict[str, object]) -> None:
    """Reads which layers have windows: a list with a truth value for each layer, or the distance of layers without."""
    pattern = said.pop("attention.sliding_window_pattern", None)
    if isinstance(pattern, list):
        config["layer_types"] = [SLIDING if has_window else FULL for has_window in pattern]
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern


def read_layers_without_keys(file: Metadata, kind: str) -> None:
    """Reads which layers have no KV heads: they have `kind` instead of attention."""
    config, key = file.config, "num_key_value_heads"
    heads = config[key]
    if not isinstance(heads, list):
        return
    counts = [count for count in heads if count != 0]
    if not counts or type(counts[0]) is not int or counts != counts[:1] * len(counts):
        raise ConfigError(
            f"{file.where}attention.head_count_kv is {shown(heads)}; one number for all layers of attention "
            "is implemented, and 0 for other layers"
        )
    config[key] = counts[0]
    config["layer_types"] = [kind if count == 0 else FULL for count in heads]
