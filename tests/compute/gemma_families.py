"""Cases of the Gemma families."""

GEMMA4 = {
    "num_hidden_layers": 6,
    "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2,
    "head_dim": 16,
    "global_head_dim": 24,
    "sliding_window": 25,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 320,
}
GEMMA_CASES = {
    "gemma": ("gemma", {"head_dim": 16}),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": 25,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3_text": (
        "gemma3_text",
        {
            "num_hidden_layers": 7,
            "head_dim": 16,
            "sliding_window": 25,
            "query_pre_attn_scalar": 20,
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma4_text": ("gemma4_text", {**GEMMA4, "num_kv_shared_layers": 3}),
    "gemma4_text, keys as values, fewer of them, wide shared layers": (
        "gemma4_text",
        {
            **GEMMA4,
            "global_head_dim": 40,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 4.0,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4_text with experts": (
        "gemma4_text",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
}
