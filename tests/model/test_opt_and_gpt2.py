"""OPT and GPT-2 on disk: how they are spelled, what of them is refused, and what adapters find."""

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.model.adapters import ROOT, write_adapter
from tests.model.checkpoints import tensors_of, write_checkpoint
from weft.core.errors import ConfigError
from weft.model.lora import AdapterTargets, read_adapter
from weft.model.open import open_model

OPT = {
    "model_type": "opt",
    "architectures": ["OPTForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 16,
    "ffn_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
}
NARROW = {**OPT, "word_embed_proj_dim": 12, "do_layer_norm_before": False}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 300,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 64,
    "n_inner": None,
    "eos_token_id": 256,
}


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (OPT, {"_remove_final_layer_norm": True}, "_remove_final_layer_norm True is not implem"),
        (OPT, {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine False is"),
        (OPT, {"activation_function": "maxout"}, "hidden_act is 'maxout'; it must be one of silu"),
        (OPT, {"word_embed_proj_dim": 0}, "word_embed_proj_dim is 0; it must be a whole number"),
        (OPT, {"enable_bias": "yes"}, "enable_bias is 'yes'; it must be true or false"),
        (OPT, {"do_layer_norm_before": 0}, "do_layer_norm_before is 0; it must be true or false"),
        (OPT, {"architectures": ["OPTForQuestionAnswering"]}, "'OPTForQuestionAnswering' is not a"),
        (NARROW, {"tie_word_embeddings": False}, "tie_word_embeddings is False; it must be true"),
        (GPT2, {"scale_attn_weights": False}, "scale_attn_weights False is not implemented"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx True is not implem"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention True is not implemented"),
        (GPT2, {"do_layer_norm_before": False}, "do_layer_norm_before False is not implemented"),
        (GPT2, {"architectures": ["GPT2DoubleHeadsModel"]}, "'GPT2DoubleHeadsModel' is not a"),
        (GPT2, {"n_head": 3}, "num_attention_heads is 3; it must be a divisor of hidden_size"),
    ],
)
def test_a_switch_that_is_not_computed_is_refused_by_key(config, changes, words, tmp_path):
    """Where the file spells it in its own way, by the name that others have for it."""
    write_checkpoint(tmp_path, config)
    write_checkpoint(tmp_path, {**config, **changes}, tensors_of(config))
    with pytest.raises(ConfigError) as error:
        open_model(str(tmp_path))
    assert words in str(error.value)


@pytest.mark.parametrize(("config", "bare"), [(OPT, "decoder."), (GPT2, "")])
def test_names_may_begin_as_those_of_the_bare_model(config, bare, tmp_path):
    """As the first releases were saved: GPT-2's with masks beside the weights."""
    usual = tensors_of(config)
    prefix = "transformer." if config is GPT2 else "model.decoder."
    tensors = {name.replace(prefix, bare): tensor for name, tensor in usual.items()}
    tensors["h.0.attn.bias"] = np.ones((1, 1, 64, 64), np.bool_)
    tensors["h.0.attn.masked_bias"] = np.array(-1e4, np.float32)
    weights = open_model(str(write_checkpoint(tmp_path / "bare", config, tensors))).load()
    expected = open_model(str(write_checkpoint(tmp_path / "usual", config, usual))).load()
    assert weights.tensors.keys() == expected.tensors.keys()
    assert all(np.array_equal(weights[name].data, expected[name].data) for name in weights.tensors)


def test_what_a_narrow_embedding_is_multiplied_with_is_looked_at(tmp_path):
    """A number that is none in the embedding or in what it is multiplied with is found, by either runner."""
    for name in ("embed_tokens", "project_in"):
        tensors = tensors_of(NARROW)
        tensors[f"model.decoder.{name}.weight"][0, 0] = np.nan
        checkpoint = open_model(str(write_checkpoint(tmp_path / name, NARROW, tensors)))
        for compute in ("reference", "native"):
            with pytest.raises(ConfigError, match=r"embed_tokens.*holds NaN or infinity"):
                load_runner(checkpoint, compute=compute)


def test_a_narrow_embedding_is_not_pooled(tmp_path):
    """What leads back from the hidden state would be left out."""
    with pytest.raises(ConfigError, match="word_embed_proj_dim 12 other than hidden_size is not"):
        open_model(str(write_checkpoint(tmp_path, NARROW)), runner="pooling")


def targets_of(directory, config):
    checkpoint = open_model(str(write_checkpoint(directory, config)))
    return checkpoint.spec, AdapterTargets.of(checkpoint.spec, checkpoint.card.model_type)


@pytest.mark.parametrize(
    ("config", "lora", "words"),
    [
        (OPT, {"fan_in_fan_out": True}, "fan_in_fan_out is True; it is not supported"),
        (GPT2, {"modules_to_save": ["wpe"]}, "names 'wpe'; only wte and lm_head can be replaced"),
        (GPT2, {"target_modules": ["q_proj"]}, "the model has wte, c_attn, c_proj, c_fc, lm_head"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(config, lora, words, tmp_path):
    """By what it says, and by tensors of another family."""
    spec, targets = targets_of(tmp_path / "model", config)
    path = write_adapter(tmp_path / "adapter", spec, targets=("q_proj",), **lora)
    with pytest.raises(ConfigError) as error:
        read_adapter(path, targets, max_rank=8)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (OPT, "model.decoder.embed_positions.lora_embedding_A"),
        (NARROW, "model.decoder.embed_tokens.lora_embedding_A"),
        (NARROW, "lm_head.weight"),
    ],
)
def test_an_adapter_of_what_takes_none_is_refused(config, name, tmp_path):
    """Of positions, and of an embedding that is not served as it was trained, there is none."""
    spec, targets = targets_of(tmp_path / "model", config)
    tensors = {f"base_model.model.{name}": np.zeros((4, 16), np.float32)}
    path = write_adapter(tmp_path / "adapter", spec, targets=("q_proj",), tensors=tensors)
    with pytest.raises(ConfigError, match=f"{name[:25]}.*belongs to no module of the model"):
        read_adapter(path, targets, max_rank=8)


def test_an_adapter_of_transposed_layers_says_so(tmp_path):
    """PEFT writes fan_in_fan_out for GPT-2; its halves are as everywhere."""
    spec, targets = targets_of(tmp_path / "model", GPT2)
    a, b = np.ones((4, 16), np.float32), np.ones((48, 4), np.float32)
    module = f"{ROOT}transformer.h.1.attn.c_attn"
    tensors = {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    path = write_adapter(
        tmp_path / "adapter", spec, targets=("c_attn",), tensors=tensors, fan_in_fan_out=True
    )
    adapter = read_adapter(path, targets, max_rank=8)
    assert set(adapter.low_rank) == {"layers.1.q", "layers.1.k", "layers.1.v"}
