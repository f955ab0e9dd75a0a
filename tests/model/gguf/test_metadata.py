"""Metadata of GGUF files as the config of a family."""

import pytest

from weft.core.errors import ConfigError
from weft.model.gguf.architectures import find_architecture
from weft.model.gguf.family_config import make_config


def config_of(metadata):
    """What a file with this metadata, and nothing else, is read as."""
    found = find_architecture(metadata, "m")
    return make_config(*found, metadata, "m", tensors={}, rope_factors={})


DEEPSEEK2 = {
    "general.architecture": "deepseek2",
    **{
        f"deepseek2.{key}": value
        for key, value in {
            **dict.fromkeys(("context_length", "embedding_length", "feed_forward_length"), 64),
            **dict.fromkeys(("block_count", "attention.head_count"), 4),
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": 32,
            "attention.key_length": 40,
            "attention.value_length": 32,
            "attention.key_length_mla": 24,
            "attention.value_length_mla": 16,
            "rope.dimension_count": 8,
            "expert_count": 8,
            "expert_used_count": 2,
        }.items()
    },
}


def deepseek(**changes):
    """The config of such metadata; `None` leaves a key out."""
    changes = {f"deepseek2.{key}": value for key, value in changes.items()}
    metadata = {key: v for key, v in (DEEPSEEK2 | changes).items() if v is not None}
    return config_of(metadata)


def test_what_files_of_deepseek_leave_out_is_as_llama_cpp_takes_it():
    """Where the family would have groups, another scale and three dense layers."""
    config = deepseek(expert_gating_func=2)
    assert config["model_type"] == "deepseek_v3"
    assert (config["n_group"], config["topk_group"], config["first_k_dense_replace"]) == (1, 1, 0)
    assert (config["norm_topk_prob"], config["routed_scaling_factor"]) == (False, 1.0)
    assert config["q_lora_rank"] is None
    assert deepseek()["model_type"] == "deepseek_v2"
    assert deepseek(expert_group_count=4)["topk_method"] == "group_limited_greedy"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("expert_gating_func", 3, "expert_gating_func is 3; 1 (softmax) and 2 (sigmoid) are"),
        ("attention.kv_lora_rank", None, "attention.kv_lora_rank is missing; it must be a whole"),
        ("rope.dimension_count", 8.0, "rope.dimension_count is 8.0; it must be a whole number"),
        ("attention.value_length_mla", [], "attention.value_length_mla is []; it must be"),
        ("attention.head_count_kv", 4, "attention.head_count_kv is 4 and attention.key_length 40"),
        ("attention.key_length", 24, "attention.key_length 24; 1 and 40 are implemented"),
        ("attention.value_length", 16, "attention.value_length is 16; 32 is implemented"),
        (
            "rope.scaling.yarn_log_multiplier",
            "x",
            "yarn_log_multiplier is 'x'; it must be a number",
        ),
        ("attention.temperature_scale", 0.1, "attention.temperature_scale is 0.1, which is not"),
    ],
)
def test_sizes_of_latent_attention_must_go_together(key, value, words):
    """Each by the name that the file has for it."""
    with pytest.raises(ConfigError) as refused:
        deepseek(**{key: value})
    assert words in str(refused.value)


LFM2 = {
    "general.architecture": "lfm2moe",
    **dict.fromkeys(("lfm2moe.context_length", "lfm2moe.embedding_length"), 8),
    **dict.fromkeys(("lfm2moe.block_count", "lfm2moe.attention.head_count"), 4),
    "lfm2moe.feed_forward_length": 8,
    "lfm2moe.attention.layer_norm_rms_epsilon": 1e-5,
}


@pytest.mark.parametrize("heads", [[0, 0], [0, 2, 4], [2, "2"], [2, [2]], [], [True, 0]])
def test_layers_of_lfm2_have_heads_of_keys_or_none(heads):
    """As many in every layer of attention, of which there is one at least."""
    metadata = {**LFM2, "lfm2moe.attention.head_count_kv": heads}
    with pytest.raises(ConfigError, match=r"m: lfm2moe\.attention\.head_count_kv is \["):
        config_of(metadata)


@pytest.mark.parametrize(
    ("key", "value"),
    [("expert_gating_func", 1), ("expert_weights_norm", False), ("expert_weights_scale", 2.5)],
)
def test_experts_of_lfm2_are_weighed_as_llama_cpp_weighs_them(key, value):
    """It does so whatever a file says, so that a file which says otherwise means something else."""
    metadata = {**LFM2, f"lfm2moe.{key}": value}
    with pytest.raises(ConfigError, match=rf"lfm2moe\.{key} is .* is implemented"):
        config_of(metadata)


def test_without_a_count_of_their_own_there_are_as_many_heads_of_keys():
    """Gemma's family would take four."""
    sizes = ("context_length", "embedding_length", "block_count", "feed_forward_length")
    numbers = dict.fromkeys((*sizes, "attention.head_count"), 8)
    metadata = {f"gemma2.{k}": v for k, v in numbers.items()}
    metadata |= {"general.architecture": "gemma2", "gemma2.attention.layer_norm_rms_epsilon": 1e-6}
    assert config_of(metadata)["num_key_value_heads"] == 8


LLAMA = {
    "general.architecture": "llama",
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    **dict.fromkeys(
        (
            *("llama.context_length", "llama.embedding_length", "llama.block_count"),
            *("llama.feed_forward_length", "llama.attention.head_count"),
        ),
        8,
    ),
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", True),
        ("rope.scaling.attn_factor", 1.0),
        ("rope.scaling.factor", 1.0),
        ("rope.scaling.factor", 0.0),
        ("rope.scaling.original_context_length", 4096),
        ("logit_scale", 1.0),
        ("expert_count", 0),
    ],
)
def test_settings_that_change_nothing_are_passed_over(key, value):
    """Converters write some for every model."""
    assert config_of({**LLAMA, f"llama.{key}": value}) == config_of(LLAMA)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", False),
        ("rope.scaling.attn_factor", 1.5),
        ("rope.scaling.factor", 2.0),
        ("logit_scale", 2.0),
    ],
)
def test_the_same_settings_are_refused_where_they_change_something(key, value):
    """By their names."""
    with pytest.raises(ConfigError, match=rf"llama\.{key} is {value}, which is not implemented"):
        config_of({**LLAMA, f"llama.{key}": value})


def test_the_factor_of_attention_is_read_with_yarn():
    """llama.cpp multiplies by it what follows from the length."""
    scaling = {"type": "yarn", "factor": 2.0, "attn_factor": 1.5}
    metadata = {f"llama.rope.scaling.{key}": value for key, value in scaling.items()}
    found = config_of(LLAMA | metadata)["rope_scaling"]
    assert found == {"rope_type": "yarn", "factor": 2.0, "attn_factor": 1.5}


def test_older_files_of_minicpm_have_the_factors_of_its_first_model():
    """They leave the factors out, and llama.cpp takes these."""
    sizes = {key.replace("llama", "minicpm"): value for key, value in LLAMA.items()}
    metadata = {**sizes, "general.architecture": "minicpm", "minicpm.embedding_length": 512}
    found = config_of(metadata)
    assert found["embedding_multiplier"] == 12
    assert found["logits_scaling"] == 2
    assert found["residual_multiplier"] == pytest.approx(1.4 / 8**0.5)
    assert found["attention_multiplier"] == 64**-0.5
    assert config_of({**metadata, "minicpm.embedding_scale": 3.0})["embedding_multiplier"] == 3


@pytest.mark.parametrize(
    ("pattern", "key"), [([True, False], "layer_types"), (3, "sliding_window_pattern")]
)
def test_layers_with_windows_are_listed_or_counted(pattern, key):
    """A list has a truth value for each layer; a number is the distance of layers without a window."""
    sizes = {key.replace("llama", "exaone4"): value for key, value in LLAMA.items()}
    metadata = {**sizes, "general.architecture": "exaone4", "exaone4.attention.sliding_window": 4}
    found = config_of({**metadata, "exaone4.attention.sliding_window_pattern": pattern})[key]
    assert found == (3 if key != "layer_types" else ["sliding_attention", "full_attention"])


HYBRID = {
    **{key.replace("llama", "granitehybrid"): value for key, value in LLAMA.items()},
    "general.architecture": "granitehybrid",
    "granitehybrid.attention.head_count_kv": [0, 2],
}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("ssm.inner_size", 12, "ssm.inner_size is 12; a multiple of embedding_length is"),
        ("rope.scaling.finetuned", False, "rope.scaling.finetuned is False; True is implemented"),
        ("attention.head_count_kv", [0, 0], "attention.head_count_kv is [0, 0]; one number for"),
    ],
)
def test_settings_of_mamba_are_refused_by_name(key, value, words):
    """Sizes that no family of hybrids can have, and a Bamba without rope."""
    metadata = {**HYBRID, "granitehybrid.ssm.inner_size": 16, f"granitehybrid.{key}": value}
    with pytest.raises(ConfigError) as refused:
        config_of(metadata)
    assert words in str(refused.value)
