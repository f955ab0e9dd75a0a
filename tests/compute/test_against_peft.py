"""Adapters that Hugging Face's PEFT makes and saves give what PEFT computes with them."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch

from tests.compute.families import (
    DELTA,
    GRANITE,
    MAMBA,
    is_recurrent,
    make_model,
    save,
)
from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from weft.model.lora import AdapterTargets, read_adapter
from weft.model.open import open_model

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TIED = {"tie_word_embeddings": True}
CASES = {
    "llama": ("llama", {}, {"target_modules": [*LINEAR, "embed_tokens", "lm_head"]}),
    "gemma4_text, keys as values": (
        "gemma4_text",
        {
            "num_hidden_layers": 6,
            "head_dim": 16,
            "global_head_dim": 24,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "num_kv_shared_layers": 2,
            "layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2,
            "hidden_size_per_layer_input": 12,
            "vocab_size_per_layer_input": 320,
        },
        {"target_modules": LINEAR},
    ),
    "llama, patterns": (
        "llama",
        {"attention_bias": True},
        {
            "target_modules": LINEAR,
            "use_rslora": True,
            "rank_pattern": {"q_proj": 2},
            "alpha_pattern": {"layers.1.mlp.up_proj": 3},
            "layers_to_transform": [0, 1],
        },
    ),
    "llama, saved modules": (
        "llama",
        {},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    ),
    "phi3": ("phi3", {}, {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]}),
    "qwen3": ("qwen3", {"head_dim": 16}, {"target_modules": "all-linear"}),
    "tied, embedding": ("llama", TIED, {"target_modules": ["q_proj", "embed_tokens"]}),
    "tied, head": ("llama", TIED, {"target_modules": ["q_proj", "lm_head"]}),
    "tied, both": ("llama", TIED, {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "tied, saved embedding": (
        "llama",
        TIED,
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    ),
    "tied, saved head": (
        "llama",
        TIED,
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ),
    "tied, trained together": (
        "llama",
        TIED,
        {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True},
    ),
    "tied, trained together by the head": (
        "llama",
        TIED,
        {"target_modules": ["q_proj", "lm_head"], "ensure_weight_tying": True},
    ),
    "tied, saved together": (
        "llama",
        TIED,
        {
            "target_modules": ["q_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
    "gemma2": ("gemma2", {"head_dim": 16}, {"target_modules": LINEAR}),
    "lfm2": (
        "lfm2",
        {"full_attn_idxs": [1, 2], "conv_bias": True},
        {"target_modules": ["q_proj", "v_proj", "in_proj", "out_proj", "w1", "w2", "w3"]},
    ),
    "qwen3_5_text": (
        "qwen3_5_text",
        DELTA,
        {
            "target_modules": (
                "q_proj k_proj in_proj_qkv in_proj_z in_proj_a in_proj_b out_proj down_proj".split()
            )
        },
    ),
    "granitemoehybrid": (
        "granitemoehybrid",
        {**MAMBA, **GRANITE, "layer_types": ["mamba", "attention"] * 2, "num_local_experts": 0},
        {
            "target_modules": (
                "q_proj k_proj o_proj in_proj out_proj input_linear output_linear".split()
            )
        },
    ),
    "glm4": (
        "glm4",
        {"head_dim": 16},
        {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj"]},
    ),
    "gpt_neox": (
        "gpt_neox",
        {"num_attention_heads": 3, "num_key_value_heads": 3},
        {"target_modules": ["query_key_value", "dense", "dense_h_to_4h"]},
    ),
    "phi": (
        "phi",
        {"num_key_value_heads": 4},
        {"target_modules": ["q_proj", "k_proj", "dense", "fc1", "fc2"]},
    ),
    "opt": (
        "opt",
        {"ffn_dim": 80, "num_key_value_heads": 4},
        {"target_modules": ["q_proj", "out_proj", "fc1", "fc2", "embed_tokens", "lm_head"]},
    ),
    "gpt2": ("gpt2", {"num_key_value_heads": 4}, {"target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "gpt2, saved embedding": (
        "gpt2",
        {"num_key_value_heads": 4},
        {"target_modules": ["c_attn", "wte"], "modules_to_save": ["lm_head"]},
    ),
    "gpt2, saved embedding alone": (
        "gpt2",
        {"num_key_value_heads": 4},
        {"target_modules": ["c_fc"], "modules_to_save": ["wte"]},
    ),
}


RUNS = [(case, compute) for case in CASES for compute in ("reference", "native")]


@pytest.mark.slow  # importing PEFT alone takes seconds
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("case", "compute"), RUNS)
def test_logits_agree_with_peft(case, compute, tmp_path):
    """Every logit is within 1e-4, or 2e-5 of the largest, with the files as PEFT writes them.

    Of gated delta nets 2e-3: see `test_logits_agree_with_transformers`.
    """
    peft = import_module("peft")  # here: it takes seconds
    model_type, settings, lora = CASES[case]
    model = make_model(model_type, settings)
    name = save(model, tmp_path / "model")
    config = peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **lora)
    adapted = peft.get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    adapted.save_pretrained(tmp_path / "adapter")
    ids = np.random.default_rng(3).integers(0, 320, 60).tolist()
    with torch.no_grad():
        expected = adapted(torch.tensor([ids])).logits[0].numpy()

    checkpoint = open_model(name)
    targets = AdapterTargets.of(checkpoint.spec, checkpoint.card.model_type)
    runner = load_runner(checkpoint, max_model_len=64, compute=compute)
    runner.allocate_kv(num_blocks=8, block_size=8, num_state_slots=1)
    plain = runner.forward(step([Part(ids, 60, list(range(8)), 0, 60)], 8))
    runner.add_adapter(1, read_adapter(tmp_path / "adapter", targets, max_rank=8))
    with_adapter = replace(
        step([Part(ids, 60, list(range(8)), 0, 60)], 8), adapter_ids=np.array([1], np.int32)
    )
    logits = runner.forward(with_adapter)

    allowed = (
        2e-3 if is_recurrent(model_type, settings) else max(1e-4, 2e-5 * np.abs(expected).max())
    )
    assert np.abs(logits - expected).max() <= allowed
    assert np.abs(logits - plain).max() > 0.1
