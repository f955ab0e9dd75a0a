"""Families that transformers has under another name alone: the same weights, with the config that their files have."""

import json

import numpy as np
import pytest
import torch

from tests.compute.families import SIZES, make_model, save
from tests.compute.runners import load_runner
from tests.compute.steps import run_at_random
from weft.model.open import open_model

HIDDEN, LAYERS = SIZES["hidden_size"], SIZES["num_hidden_layers"]
MULTIPLIED = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 1.4 / LAYERS**0.5,
    "attention_multiplier": (HIDDEN / SIZES["num_attention_heads"]) ** -0.5,
    "logits_scaling": HIDDEN / 16,
    "tie_word_embeddings": True,
}
CASES = {
    "minicpm": (
        "granite",
        MULTIPLIED,
        {
            "architectures": ["MiniCPMForCausalLM"],
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 16,
        },
    ),
    "mimo": ("qwen2", {}, {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("compute", ["reference", "native"])
def test_logits_are_those_of_the_family_that_computes_the_same(name, compute, tmp_path):
    """Every logit is within 1e-4."""
    model_type, settings, own = CASES[name]
    model = make_model(model_type, settings)
    save(model, tmp_path)
    file = tmp_path / "config.json"
    written = {k: v for k, v in json.loads(file.read_text()).items() if k not in settings}
    kept = {"tie_word_embeddings": settings.get("tie_word_embeddings", False)}
    file.write_text(json.dumps({**written, **kept, **own, "model_type": name}))
    ids = np.random.default_rng(3).integers(0, 320, 90).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].numpy()

    runner = load_runner(open_model(str(tmp_path)), max_model_len=100, compute=compute)
    logits = run_at_random(runner, [ids], np.random.default_rng(4), max_chunk=40)
    assert np.abs(logits[0] - expected).max() <= 1e-4
    assert expected.std() > 0.5
