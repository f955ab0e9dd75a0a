"""DeepSeek's config: defaults of missing keys, and the `LatentSpec` of its latent attention."""

import math

from weft.model.fields import Fields
from weft.model.spec import LatentSpec, RopeKind, RopeSpec

# Each part of a packed head is padded to whole lanes.
LANES = 16
_MAX_WIDTH = 2**16

DEEPSEEK_V2 = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "head_dim": 64,  # present in every file, but not read
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
    "topk_method": "greedy",
}
DEEPSEEK_V3 = {
    **DEEPSEEK_V2,
    "max_position_embeddings": 4096,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "topk_method": "noaux_tc",
    "rope_interleave": True,
}


def read_latent(fields: Fields) -> LatentSpec:
    """Returns the sizes of latent attention; raises `ConfigError` for sizes that Weft cannot compute with."""
    rank, key_size = (
        fields.integer(key, high=_MAX_WIDTH) for key in ("kv_lora_rank", "qk_nope_head_dim")
    )
    for key, size in (("kv_lora_rank", rank), ("qk_nope_head_dim", key_size)):
        if size % LANES:
            fields.refuse(key, f"a multiple of {LANES}")
    rope_size = fields.integer("qk_rope_head_dim", low=2, high=_MAX_WIDTH)
    if rope_size % 2:
        fields.refuse("qk_rope_head_dim", "an even number")
    heads = fields.integer("num_attention_heads", high=2**16)
    if fields.integer_or("num_key_value_heads", heads, high=2**16) != heads:
        fields.refuse("num_key_value_heads", f"num_attention_heads ({heads}), or left out")
    query_rank = None
    if fields.has("q_lora_rank"):
        query_rank = fields.integer("q_lora_rank", high=2**24)
    return LatentSpec(
        rank=rank,
        rope_size=rope_size,
        key_size=key_size,
        value_size=fields.integer("v_head_dim", high=_MAX_WIDTH),
        query_rank=query_rank,
        is_interleaved=fields.flag_or("rope_interleave", True),
    )


def attention_scale(fields: Fields, latent: LatentSpec, rope: RopeSpec) -> float:
    """Returns the attention scale, from the size of a head's key; yarn's mscale_all_dim increases the scale."""
    scale = float(latent.query_size**-0.5)
    old, new = fields.object("rope_scaling"), fields.object("rope_parameters")
    settings = old if old is not None and old.values else new
    if rope.kind is not RopeKind.YARN or settings is None or not settings.has("mscale_all_dim"):
        return scale
    mscale = settings.number("mscale_all_dim", low=1e-3, high=1e3)
    stretch = 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0
    return scale * stretch * stretch


def has_expert_groups(fields: Fields, *, is_sigmoid: bool) -> bool:
    """True if experts are chosen in groups; raises `ConfigError` for a way of choosing that differs from the
    family's.
    """
    methods = ("noaux_tc",) if is_sigmoid else ("greedy", "group_limited_greedy")
    scoring = "sigmoid" if is_sigmoid else "softmax"
    if fields.has("topk_method") and fields.text("topk_method") not in methods:
        fields.refuse("topk_method", " or ".join(methods))
    if fields.has("scoring_func") and fields.text("scoring_func") != scoring:
        fields.refuse("scoring_func", scoring)
    if fields.integer_or("moe_layer_freq", 1) != 1:
        fields.refuse("moe_layer_freq", "1: every layer from first_k_dense_replace on has experts")
    if not is_sigmoid and fields.flag_or("norm_topk_prob", False):
        fields.refuse("norm_topk_prob", "false if scores are a softmax")
    return is_sigmoid or fields.text("topk_method") == "group_limited_greedy"
