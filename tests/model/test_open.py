"""Sound checkpoints: what the card, the spec and the weights say about them."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.model.checkpoints import (
    CONFIG,
    tensors_of,
    write_checkpoint,
    write_json,
    write_raw,
    write_shards,
)
from weft.core.errors import ConfigError
from weft.model.open import find_model, open_model
from weft.model.weights import Tensor


def test_the_card_tells_the_facts(tmp_path):
    """Sizes are counted, ids resolved, and nothing of the weights is read for it."""
    path = str(write_checkpoint(tmp_path / "m"))
    card = open_model(path).card
    layer = 16 * 16 * 2 + 16 * 8 * 2 + 3 * 16 * 24 + 2 * 16
    assert card.name == path
    assert (card.model_type, card.architectures) == ("llama", ("LlamaForCausalLM",))
    assert card.num_parameters == 2 * layer + 2 * 300 * 16 + 16
    assert card.weight_bytes == 4 * card.num_parameters
    assert card.kv_bytes_per_token == 2 * 2 * 8 * 4
    assert (card.vocab_size, card.max_position_embeddings, card.dtype) == (300, 128, "float32")
    assert (card.eos_token_ids, card.bos_token_id, card.pad_token_id) == ((256,), None, 256)
    assert card.notice is None


def test_tensors_keep_their_values(tmp_path):
    """What is loaded is what was saved, under Weft's names."""
    tensors = tensors_of()
    weights = open_model(str(write_checkpoint(tmp_path / "m", tensors=tensors))).load()
    theirs = tensors["model.layers.1.self_attn.k_proj.weight"]
    assert np.array_equal(weights["layers.1.k"].float32(), theirs)
    assert np.array_equal(
        weights["layers.0.mlp_norm_before"].float32(),
        tensors["model.layers.0.post_attention_layernorm.weight"],
    )


def test_shards_load_like_one_file(tmp_path):
    """An index and two shards give the same weights as the single file."""
    tensors = tensors_of()
    single = open_model(str(write_checkpoint(tmp_path / "m", tensors=tensors))).load()
    write_shards(tmp_path / "m", tensors)
    sharded = open_model(str(tmp_path / "m")).load()
    assert sharded.tensors.keys() == single.tensors.keys()
    assert all(np.array_equal(sharded[name].data, single[name].data) for name in single.tensors)


def test_types_may_be_mixed_and_widen_exactly(tmp_path):
    """bfloat16, float16 and float32 tensors stand in one file; auto keeps each as it is."""
    directory = write_checkpoint(tmp_path / "m")
    tensors = tensors_of(dtype=np.float16)
    save_file(tensors, directory / "model.safetensors")
    data = (directory / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.norm.weight"]["dtype"] = "BF16"  # the same bits, read as another type
    write_raw(directory / "model.safetensors", header, data[8 + length :])

    checkpoint = open_model(str(directory))
    weights = checkpoint.load()
    assert checkpoint.card.dtype == "float16"
    assert (weights["norm"].dtype, weights["embed"].dtype) == ("bfloat16", "float16")
    bits = tensors["model.norm.weight"].view(np.uint16).astype(np.uint32) << 16
    assert np.array_equal(weights["norm"].float32(), bits.view(np.float32))
    assert np.array_equal(
        weights["embed"].float32(), tensors["model.embed_tokens.weight"].astype(np.float32)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype_rounds_every_weight(tmp_path, dtype):
    """The dtype that is asked for is served, and no weight moves by more than its rounding."""
    directory = write_checkpoint(tmp_path / "m")
    checkpoint = open_model(str(directory), dtype=dtype)
    exact, rounded = open_model(str(directory)).load(), checkpoint.load()
    assert checkpoint.card.dtype == dtype
    assert {tensor.dtype for tensor in rounded.tensors.values()} == {dtype}
    step = {"float32": 0.0, "bfloat16": 2**-8, "float16": 2**-11}[dtype]
    difference = np.abs(rounded["head"].float32() - exact["head"].float32())
    assert (difference <= step * np.abs(exact["head"].float32()) + 1e-7).all()


def test_bfloat16_rounds_to_nearest_even():
    """Ties go to the even neighbour, like everywhere else."""
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8], np.float32)
    rounded = Tensor("float32", values).rounded_to("bfloat16").float32()
    assert rounded.tolist() == [1.0, 1 + 2**-6, 1 + 2**-7, -1.0]


def test_generation_config_gives_defaults_and_more_ends(tmp_path):
    """Sampling defaults are taken over; its end ids follow the primary one."""
    directory = write_checkpoint(tmp_path / "m")
    write_json(
        directory / "generation_config.json",
        {"do_sample": True, "temperature": 0.6, "top_k": 20, "eos_token_id": [258, 256, 7]},
    )
    card = open_model(str(directory)).card
    assert card.default_sampling_params == {"temperature": 0.6, "top_k": 20}
    assert card.eos_token_ids == (256, 258, 7)


def test_a_model_that_does_not_sample_has_no_defaults(tmp_path):
    """`do_sample: false` makes the other values meaningless."""
    directory = write_checkpoint(tmp_path / "m")
    write_json(directory / "generation_config.json", {"do_sample": False, "temperature": 0.6})
    assert open_model(str(directory)).card.default_sampling_params == {}


def test_the_tokenizer_decides_the_primary_end(tmp_path):
    """Chat models end with another token than config.json says; the tokenizer's is the primary."""
    directory = write_checkpoint(tmp_path / "m")
    write_json(directory / "tokenizer_config.json", {"eos_token": {"content": "<|im_end|>"}})
    assert open_model(str(directory)).card.eos_token_ids == (258, 256)


def test_placeholder_ids_outside_the_vocabulary_count_as_none(tmp_path):
    """Old configs pad with -1 or with the vocabulary's size."""
    directory = write_checkpoint(
        tmp_path / "m", {**CONFIG, "bos_token_id": -1, "pad_token_id": 300}
    )
    write_json(directory / "tokenizer_config.json", {})
    card = open_model(str(directory)).card
    assert (card.bos_token_id, card.pad_token_id) == (None, None)


@pytest.mark.parametrize(
    ("config", "jinja", "expected"),
    [
        ({}, None, None),
        ({"chat_template": "text"}, None, "text"),
        ({"chat_template": "text"}, "file", "file"),
        ({"chat_template": "{% generation %}{% break %}{% endgeneration %}"}, None, ...),
    ],
)
def test_the_chat_template_is_found(tmp_path, config, jinja, expected):
    """The file of its own wins, then the config's text."""
    directory = write_checkpoint(tmp_path / "m")
    write_json(directory / "tokenizer_config.json", config)
    if jinja is not None:
        (directory / "chat_template.jinja").write_text(jinja)
    checkpoint = open_model(str(directory))
    assert checkpoint.chat_template == (config["chat_template"] if expected is ... else expected)


def test_a_model_is_found_without_reading_its_tokenizer(tmp_path):
    """An engine loads weights meanwhile; what only the tokenizer says, it hears with requests."""
    config = {key: value for key, value in CONFIG.items() if key != "eos_token_id"}
    directory = write_checkpoint(tmp_path / "m", config)
    write_json(directory / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    found = find_model(str(directory))
    assert (found.card.eos_token_ids, found.chat_template, found.parsed_tokenizer) == (
        (),
        None,
        None,
    )
    whole = found.with_tokenizer()
    assert whole.card.eos_token_ids == open_model(str(directory)).card.eos_token_ids != ()
    assert whole.with_tokenizer() is whole
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a valid tokenizer"):
        find_model(str(directory)).with_tokenizer()


def test_tokenizer_files_are_passed_on_as_found(tmp_path):
    """A gateway rebuilds the tokenizer from the very bytes."""
    directory = write_checkpoint(tmp_path / "m")
    files = open_model(str(directory)).tokenizer_files
    assert files.keys() == {"tokenizer.json", "tokenizer_config.json", "config.json"}
    assert files["tokenizer.json"] == (directory / "tokenizer.json").read_bytes()


def test_a_tied_head_may_be_saved_as_well(tmp_path):
    """Some checkpoints carry the tied head twice, or buffers that are computed; neither is used."""
    config = {**CONFIG, "tie_word_embeddings": True}
    tensors = tensors_of(config)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    weights = open_model(str(write_checkpoint(tmp_path / "m", config, tensors))).load()
    assert "head" not in weights


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_vision_model_is_served(tmp_path, prefix):
    """Gemma 3 with vision: the nested config and either spelling of the tensor names."""
    text = {
        **{k: v for k, v in CONFIG.items() if k not in ("model_type", "architectures")},
        "head_dim": 8,
        "sliding_window": 9,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    flat = {"model_type": "gemma3_text", **text, "tie_word_embeddings": True}
    nested = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {k: v for k, v in text.items() if k != "tie_word_embeddings"},
        "vision_config": {"hidden_size": 7},
        "vocab_size": 300,
    }
    tensors = {name.replace("model.", prefix, 1): value for name, value in tensors_of(flat).items()}
    tensors["vision_tower.stem.weight"] = np.zeros(3, np.float32)
    checkpoint = open_model(str(write_checkpoint(tmp_path / "m", nested, tensors)))
    alone = open_model(str(write_checkpoint(tmp_path / "n", flat, tensors_of(flat))))
    assert checkpoint.spec == alone.spec
    assert checkpoint.spec.layers[0].window == 9
    assert checkpoint.load()["embed"].shape == (300, 16)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({}, 128),
        ({"rope_type": "linear", "factor": 4.0}, 512),
        ({"rope_type": "dynamic", "factor": 4.0}, 128),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            128,
        ),
    ],
)
def test_the_context_follows_the_rope_rules(tmp_path, rope, expected):
    """Linear and yarn stretch the context; llama3 counts it already; dynamic cannot be cached."""
    for key in ("rope_scaling", "rope_parameters"):
        directory = write_checkpoint(tmp_path / key, {**CONFIG, key: rope})
        assert open_model(str(directory)).card.max_position_embeddings == expected


def test_both_spellings_of_rope_read_alike(tmp_path):
    """`rope_theta` beside `rope_scaling`, or both inside `rope_parameters`."""
    old = {**CONFIG, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {
        **CONFIG,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
    }
    specs = [
        open_model(str(write_checkpoint(tmp_path / name, config))).spec
        for name, config in (("old", old), ("new", new))
    ]
    assert specs[0] == specs[1]
    assert specs[0].layers[0].rope.theta == 5e5


def test_a_revision_is_for_hub_ids_only(tmp_path):
    """A directory has no revisions; the option is not ignored."""
    with pytest.raises(ConfigError, match="only a Hub id has revisions"):
        open_model(str(write_checkpoint(tmp_path / "m")), revision="main")
