"""Small random encoders of every family, made by Hugging Face transformers, and steps for them."""

from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

from weft.compute.protocols.runner import Batch, FloatArray, Runner
from weft.model.embedded.byte_tokenizer import tokenizer_files

VOCAB = 320
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 200,
    "pad_token_id": 0,
}
DISTILBERT = {
    "vocab_size": VOCAB,
    "dim": 48,
    "hidden_dim": 80,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 200,
    "pad_token_id": 0,
}
MODERNBERT = {
    **SIZES,
    "local_attention": 24,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
# Name of the case: the family's class without its task, and its config.
FAMILIES = {
    "bert": ("Bert", "bert", SIZES),
    "bert, tanh gelu": ("Bert", "bert", {**SIZES, "hidden_act": "gelu_new", "type_vocab_size": 1}),
    "roberta": ("Roberta", "roberta", {**SIZES, "pad_token_id": 1, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", "xlm-roberta", {**SIZES, "pad_token_id": 1}),
    "distilbert": ("DistilBert", "distilbert", DISTILBERT),
    "modernbert": ("ModernBert", "modernbert", MODERNBERT),
    "modernbert with biases": (
        "ModernBert",
        "modernbert",
        {
            **MODERNBERT,
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
            "classifier_bias": True,
            "classifier_pooling": "mean",
        },
    ),
    "nomic_bert": ("NomicBert", "nomic_bert", SIZES),
}


def make_model(family: str, task: str, **settings) -> PreTrainedModel:
    """A small model whose weights are all drawn, norms and biases too."""
    stem, model_type, config = FAMILIES[family]
    made = AutoConfig.for_model(model_type, **{**config, **settings})
    made._attn_implementation = "eager"
    model = getattr(transformers, stem + task)(made).float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.add_(noise * 0.2)
            else:
                weight.copy_(noise * 1.3 * weight.shape[1] ** -0.5)
    return model


def save(model: PreTrainedModel, directory: Path) -> str:
    """Write the model with a tokenizer; the result is the name to open it by."""
    model.save_pretrained(directory)
    for name, data in tokenizer_files(VOCAB, "<|endoftext|>").items():
        (directory / name).write_bytes(data)
    return str(directory)


def draw_prompts(lengths) -> list[list[int]]:
    """Token ids; none is special."""
    rng = np.random.default_rng(3)
    return [rng.integers(5, VOCAB, length).tolist() for length in lengths]


def packed(prompts: list[list[int]], token_types: list[list[int]] | None = None) -> Batch:
    """All prompts, whole, in one step that wants every row."""
    lengths = [len(prompt) for prompt in prompts]
    rows = np.arange(sum(lengths), dtype=np.int32)
    return Batch(
        token_ids=np.concatenate(prompts).astype(np.int32),
        positions=np.concatenate([np.arange(length) for length in lengths]).astype(np.int32),
        slots=rows,
        query_starts=np.cumsum([0, *lengths]).astype(np.int32),
        prompt_lens=np.array(lengths, np.int32),
        block_tables=np.zeros((len(prompts), 1), np.int32),
        logit_rows=rows,
        token_types=None if token_types is None else np.concatenate(token_types).astype(np.int32),
    )


def hidden_states(runner: Runner, prompts, token_types=None) -> list[FloatArray]:
    """Hidden states of every prompt, computed together."""
    batch = packed(prompts, token_types)
    return np.split(runner.forward(batch), batch.query_starts[1:-1])
