"""Gemma 4's config: heads, MLPs and inputs of single layers, shared keys and values, and what is refused."""

import json

import pytest
from safetensors.numpy import load_file, save_file

from tests.compute.families import CASES, make_model, save
from tests.compute.runners import load_runner
from weft.compute.gpu.supported import spec_refusal
from weft.core.errors import ConfigError
from weft.model.families.decoders import read_config, read_spec
from weft.model.open import open_model

SLIDING, FULL = "sliding_attention", "full_attention"
# As published: sizes of full layers have keys of their own.
CONFIG = {
    "model_type": "gemma4_text",
    "architectures": ["Gemma4ForCausalLM"],
    "vocab_size": 320,
    "vocab_size_per_layer_input": 320,
    "hidden_size": 48,
    "hidden_size_per_layer_input": 8,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "num_kv_shared_layers": 2,
    "layer_types": [SLIDING, SLIDING, FULL] * 2,
    "sliding_window": 20,
}
LISTED = {"2": {"head_dim": 24}, "5": {"head_dim": 24}}


def spec_of(**changes):
    return read_spec(read_config({**CONFIG, **changes}, "config.json"))


def test_layers_of_full_attention_have_heads_of_their_own():
    """The number of their KV heads differs only where keys are values."""
    spec = spec_of()
    assert [spec.heads_of(layer) for layer in spec.layers] == [(2, 16), (2, 16), (2, 32)] * 2
    spec = spec_of(attention_k_eq_v=True)
    assert [spec.heads_of(layer) for layer in spec.layers[:3]] == [(2, 16), (2, 16), (1, 32)]
    assert [layer.has_value_matrix for layer in spec.layers[:3]] == [True, True, False]


def test_newer_files_list_the_heads_by_layer():
    """What transformers writes counts before the keys of published files."""
    spec = spec_of(per_layer_config=LISTED)
    assert spec.heads_of(spec.layers[5]) == (2, 24)


def test_the_last_layers_share_the_keys_and_values_of_the_last_layer_of_their_type():
    """Only layers that make keys and values count in the memory of a token."""
    spec = spec_of()
    assert [layer.kv_layer for layer in spec.layers] == [None] * 4 + [3, 2]
    assert spec.num_attention_layers == 4
    assert spec.kv_elements == 2 * (3 * 2 * 16 + 2 * 32)


def test_only_the_first_pairs_of_a_wide_head_turn():
    """The frequencies are those of the whole head."""
    rope = spec_of().layers[2].rope
    assert (rope.dim, rope.num_turned, rope.theta) == (32, 4, 1_000_000.0)


def test_layers_that_share_keys_may_have_a_wide_mlp():
    """Twice as wide as the others."""
    spec = spec_of(use_double_wide_mlp=True)
    assert [spec.mlp_size(layer) for layer in spec.layers] == [80] * 4 + [160] * 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"vocab_size_per_layer_input": 300}, "vocab_size_per_layer_input"),
        ({"layer_types": [SLIDING] * 6}, "layer_types"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 3}, "num_global_key_value_heads"),
        ({"per_layer_config": {"2": {"head_dim": 24}}}, "per_layer_config: 2"),
        ({"per_layer_config": LISTED | {"5": {"head_dim": 32}}}, "per_layer_config: 5"),
        ({"per_layer_config": LISTED | {"0": {"head_dim": 24}}}, "per_layer_config: 2"),
        ({"per_layer_config": {"2": {"bias": 1}, "5": {"bias": 1}}}, "per_layer_config: 2"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changes, field):
    """The error begins with the file and the key."""
    with pytest.raises(ConfigError, match=f"^config.json: {field} is "):
        spec_of(**changes)


def test_a_gpu_refuses_layers_of_their_own():
    """The kernels have one size of heads for all layers."""
    assert "layers with heads, keys or inputs of their own" in spec_refusal(spec_of())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A saved model."""
    directory = tmp_path_factory.mktemp("gemma4")
    save(make_model(*CASES["gemma4_text"]), directory)
    return directory


@pytest.mark.filterwarnings("ignore")
def test_embeddings_as_prompts_are_refused(checkpoint):
    """The inputs of layers are made from token ids."""
    assert open_model(str(checkpoint)).card.embedding_size is None


@pytest.mark.filterwarnings("ignore")
def test_the_text_of_a_model_with_towers_is_served(checkpoint, tmp_path):
    """Its towers are passed over, and keys that published files have for layers that share others'."""
    config = json.loads((checkpoint / "config.json").read_text())
    whole = {
        "model_type": "gemma4",
        "architectures": ["Gemma4ForConditionalGeneration"],
        "text_config": config,
        "vision_config": {"model_type": "gemma4_vision"},
        "tie_word_embeddings": True,
    }
    tensors = {
        name.replace("model.", "model.language_model.", 1): values
        for name, values in load_file(checkpoint / "model.safetensors").items()
    }
    unused = tensors["model.language_model.layers.0.self_attn.k_proj.weight"]
    tensors["model.vision_tower.patch_embedder.input_proj.weight"] = unused
    tensors["model.language_model.layers.5.self_attn.k_proj.weight"] = unused
    tensors["model.language_model.layers.5.self_attn.v_proj.weight"] = unused
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(whole))
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    found, alone = open_model(str(tmp_path)), open_model(str(checkpoint))
    assert found.spec == alone.spec
    assert load_runner(found).vocab_size == 320
