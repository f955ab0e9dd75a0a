"""Cases of families with Mamba or Mamba-2 in every layer, alone or beside attention."""

MAMBA2 = {
    "num_heads": 6,
    "head_dim": 16,
    "state_size": 12,
    "n_groups": 2,
    "expand": 2,
    "layer_norm_epsilon": 1e-5,
}
MAMBA1 = {
    "state_size": 12,
    "time_step_rank": 5,
    "intermediate_size": 96,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
FALCON = {
    "mamba_d_ssm": 72,
    "mamba_n_heads": 6,
    "mamba_d_head": "auto",
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
}
FACTORS = {
    "embedding_multiplier": 1.5,
    "lm_head_multiplier": 0.7,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.1,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.7,
    "mlp_multipliers": [0.9, 1.3],
    "ssm_multipliers": [0.8, 0.9, 1.1, 1.2, 1.3],
}
_M, _A, _D, _E = "linear_attention", "full_attention", "mlp", "moe"
NEMOTRON = {
    "head_dim": 16,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "ssm_state_size": 12,
    "n_groups": 2,
    "layer_norm_epsilon": 1e-5,
    "time_step_min": 0.1,
}
STATE_CASES = {
    "mamba2": ("mamba2", MAMBA2),
    "mamba2, one group, biases, tied, limits": (
        "mamba2",
        {
            **MAMBA2,
            "n_groups": 1,
            "conv_kernel": 3,
            "use_bias": True,
            "use_conv_bias": False,
            "time_step_limit": (0.2, 1.5),
            "tie_word_embeddings": True,
        },
    ),
    "mamba": ("mamba", MAMBA1),
    "mamba, biases, not tied, automatic rank": (
        "mamba",
        {
            **MAMBA1,
            "conv_kernel": 3,
            "use_bias": True,
            "use_conv_bias": False,
            "time_step_rank": "auto",
            "tie_word_embeddings": False,
        },
    ),
    "falcon_mamba": (
        "falcon_mamba",
        {**MAMBA1, "intermediate_size": 72, "mixer_rms_eps": 0.01},
    ),
    "falcon_h1": ("falcon_h1", FALCON),
    "falcon_h1, a norm after the gate, factors, tied": (
        "falcon_h1",
        {
            **FALCON,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "mamba_d_ssm": None,
            "head_dim": 16,
            "rms_norm_eps": 0.01,
            "tie_word_embeddings": True,
            **FACTORS,
        },
    ),
    "falcon_h1, a norm before the gate, biases": (
        "falcon_h1",
        {
            **FALCON,
            "mamba_rms_norm": True,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "rms_norm_eps": 0.1,  # a group that is nearly nothing would be brought to 1, errors and all
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        {**NEMOTRON, "layers_block_type": [_M, _D, _M, _A, _D, _M]},
    ),
    "nemotron_h, experts in groups, biases": (
        "nemotron_h",
        {
            **NEMOTRON,
            "layers_block_type": [_M, _D, _A, _M, _M, _E],
            "use_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
        },
    ),
}
