"""Cases of families whose routers are their own: Llama 4 and ERNIE 4.5 with experts."""

LLAMA4 = {"intermediate_size_mlp": 56, "head_dim": 16, "num_local_experts": 5, "floor_scale": 7}
ERNIE = {
    "moe_num_experts": 6,
    "moe_k": 2,
    "moe_intermediate_size": 24,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
}
ROUTER_CASES = {
    "llama4_text": (
        "llama4_text",
        {**LLAMA4, "attention_chunk_size": 37, "interleave_moe_layer_step": 2},
    ),
    "llama4_text, two experts a token, listed layers, no norms, no temperature": (
        "llama4_text",
        {
            **LLAMA4,
            "num_experts_per_tok": 2,
            "moe_layers": [0, 1, 3],
            "no_rope_layers": [1, 0, 1, 1],
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "attention_chunk_size": None,
            "attention_bias": True,
        },
    ),
    "ernie4_5_moe": ("ernie4_5_moe", ERNIE),
    "ernie4_5_moe, every second layer, up to the third, no shared experts": (
        "ernie4_5_moe",
        {
            **ERNIE,
            "moe_num_shared_experts": 0,
            "moe_layer_interval": 2,
            "moe_layer_end_index": 2,
            "tie_word_embeddings": False,
        },
    ),
}
