"""Cases of dense families with switches of their own."""


def rope(**settings) -> dict:
    return {"rope_parameters": {"rope_theta": 10000.0, **settings}}


DENSE_CASES = {
    "seed_oss": ("seed_oss", {"head_dim": 16}),
    "seed_oss, biases elsewhere": (
        "seed_oss",
        {
            "head_dim": 12,
            "attention_bias": False,
            "attention_out_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "internlm3": ("internlm3", {"head_dim": 16}),
    "internlm3 with biases, dynamic rope": (
        "internlm3",
        {"attention_bias": True, "mlp_bias": True, **rope(rope_type="dynamic", factor=6.0)},
    ),
    "arcee": ("arcee", {}),
    "arcee with biases, yarn": (
        "arcee",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 16,
            **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
        },
    ),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {"head_dim": 16}),
    "hunyuan_v1_dense with biases, tied": (
        "hunyuan_v1_dense",
        {
            "head_dim": 12,
            "attention_bias": True,
            "tie_word_embeddings": True,
            **rope(
                rope_type="dynamic",
                alpha=1000.0,
                factor=1.0,
                beta_fast=32,
                beta_slow=1,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "olmo3": ("olmo3", {"sliding_window": 25}),
    "olmo3, listed windows, biases, yarn in full attention": (
        "olmo3",
        {
            "sliding_window": 40,
            "attention_bias": True,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 128,
                    "attention_factor": 1.2,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "exaone": ("exaone", {"head_dim": 16, "tie_word_embeddings": True}),
    "exaone4": ("exaone4", {"sliding_window": 25, "head_dim": 12}),
    "exaone4 without windows, tied": (
        "exaone4",
        {
            "sliding_window": None,
            "layer_types": ["full_attention"] * 4,
            "head_dim": 16,
            "tie_word_embeddings": True,
        },
    ),
    "glm": ("glm", {"head_dim": 16}),
    "glm4": ("glm4", {"head_dim": 16}),
    "glm4 without biases, whole rope": (
        "glm4",
        {
            "head_dim": 12,
            "attention_bias": False,
            **rope(rope_type="default", partial_rotary_factor=1.0),
        },
    ),
    "ernie4_5": ("ernie4_5", {"head_dim": 16}),
    "ernie4_5 with biases, untied": (
        "ernie4_5",
        {"head_dim": 12, "use_bias": True, "tie_word_embeddings": False},
    ),
    "helium": ("helium", {"head_dim": 12}),
    "helium with biases": ("helium", {"head_dim": 12, "attention_bias": True, "mlp_bias": True}),
    "starcoder2": ("starcoder2", {}),
    "starcoder2 without biases, window, untied": (
        "starcoder2",
        {"use_bias": False, "sliding_window": 30, "tie_word_embeddings": False},
    ),
    "stablelm": ("stablelm", {"num_attention_heads": 3, "num_key_value_heads": 3}),
    "stablelm with biases, side by side": (
        "stablelm",
        {
            "use_qkv_bias": True,
            "use_parallel_residual": True,
            **rope(rope_type="default", partial_rotary_factor=0.5),
        },
    ),
    "nemotron": ("nemotron", {"head_dim": 16}),
    "nemotron with biases": (
        "nemotron",
        {"head_dim": 12, "attention_bias": True, "mlp_bias": True, "hidden_act": "relu"},
    ),
    "cohere": ("cohere", {"logit_scale": 0.25}),
    "cohere with biases, untied": (
        "cohere",
        {"attention_bias": True, "tie_word_embeddings": False, "logit_scale": 0.7},
    ),
    "cohere, norms of queries and keys": ("cohere", {"use_qk_norm": True, "logit_scale": 0.25}),
    "apertus": ("apertus", {}),
    "cohere2": ("cohere2", {"sliding_window": 25, "logit_scale": 0.25}),
    "cohere2, listed windows": (
        "cohere2",
        {
            "sliding_window": 40,
            "logit_scale": 1.5,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
    "phi": ("phi", {}),
    "phi, whole rope": ("phi", rope(rope_type="default", partial_rotary_factor=1.0)),
    "gpt_neox": (
        "gpt_neox",
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            **rope(rope_type="default", partial_rotary_factor=0.25),
        },
    ),
    "gpt_neox, one after the other, without biases, tied": (
        "gpt_neox",
        {
            "num_key_value_heads": 4,
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
            **rope(rope_type="default", partial_rotary_factor=0.5),
        },
    ),
    "opt": ("opt", {"ffn_dim": 72, "num_key_value_heads": 4}),
    "opt without biases, gelu, untied": (
        "opt",
        {
            "ffn_dim": 80,
            "num_key_value_heads": 4,
            "enable_bias": False,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
        },
    ),
    "opt, norms after, narrow embedding": (
        "opt",
        {
            "ffn_dim": 80,
            "num_key_value_heads": 4,
            "do_layer_norm_before": False,
            "word_embed_proj_dim": 20,
        },
    ),
    "gpt2": ("gpt2", {"num_key_value_heads": 4}),
    "gpt2, narrow, untied": (
        "gpt2",
        {"n_inner": 56, "num_key_value_heads": 4, "tie_word_embeddings": False},
    ),
}
