"""Checkpoints as other programs leave them: what is read, and what a refusal says to do."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint, write_json, write_shards
from tests.model.quantized import test_awq, test_gptq, test_int8
from tests.model.quantized.packers import assert_same, packed_tensors
from weft.core.errors import ConfigError
from weft.model.open import find_model, open_model
from weft.text.tokenizer import read_special_tokens

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def sound(tmp_path):
    """A checkpoint without a defect."""
    return write_checkpoint(tmp_path / "m")


def assert_complete(directory):
    """Every tensor has its values."""
    weights = open_model(str(directory)).load()
    np.testing.assert_array_equal(
        weights["layers.1.k"].float32(), tensors_of()["model.layers.1.self_attn.k_proj.weight"]
    )
    assert "head" in weights


def rename(directory, shards):
    for old, new in zip(SHARDS, shards, strict=True):
        (directory / old).rename(directory / new)


@pytest.mark.parametrize("stem", ["model", "gptq_model-4bit-128g"])
def test_shards_need_no_index(sound, stem):
    """Their names say how many there are; adapters and series of other names are no part of them."""
    write_shards(sound, tensors_of())
    rename(sound, (name.replace("model", stem) for name in SHARDS))
    (sound / INDEX).unlink()
    save_file({"a": np.zeros(1)}, sound / "adapter_model.safetensors")
    assert_complete(sound)


def test_shards_called_model_come_before_others(sound):
    """Mistral's own files lie beside them."""
    write_shards(sound, tensors_of())
    (sound / INDEX).unlink()
    for name in ("consolidated.safetensors", "consolidated-00001-of-00001.safetensors"):
        save_file({"a": np.zeros(1)}, sound / name)
    assert_complete(sound)


def test_a_missing_shard_is_named_without_an_index(sound):
    """A copy that was not finished is not served."""
    write_shards(sound, tensors_of())
    (sound / INDEX).unlink()
    (sound / SHARDS[1]).unlink()
    with pytest.raises(ConfigError, match=rf"{SHARDS[1]}: cannot be read \(No such file"):
        open_model(str(sound))


def test_one_file_may_have_any_name(sound):
    """As older quantizers call theirs."""
    (sound / SINGLE).rename(sound / "gptq_model-4bit-128g.safetensors")
    assert_complete(sound)


def test_of_two_files_the_right_one_must_be_named(sound):
    """Nobody guesses which of them has the weights."""
    (sound / SINGLE).rename(sound / "a.safetensors")
    save_file({"a": np.zeros(1)}, sound / "b.safetensors")
    with pytest.raises(ConfigError, match=r"a\.safetensors and b\.safetensors .* name the right"):
        open_model(str(sound))


@pytest.mark.parametrize(
    "change",
    [
        lambda listed: listed.update(ghost=SHARDS[0]),
        lambda listed: listed.pop("model.norm.weight"),
        lambda listed: listed.update(
            {"model.norm.weight": SHARDS[listed["model.norm.weight"] == SHARDS[0]]}
        ),
    ],
    ids=["a tensor that is gone", "a tensor that came later", "a tensor that has moved"],
)
def test_an_index_may_be_older_than_its_shards(sound, change):
    """Only the files that it names count; what the model needs must be in one of them."""
    write_shards(sound, tensors_of())
    index = json.loads((sound / INDEX).read_text())
    change(index["weight_map"])
    write_json(sound / INDEX, index)
    assert_complete(sound)


def test_a_tied_model_may_list_a_head(tmp_path):
    """It was saved before its head was tied."""
    config = {**CONFIG, "tie_word_embeddings": True}
    tensors = tensors_of(config)
    write_checkpoint(tmp_path / "m", config, tensors)
    write_shards(tmp_path / "m", tensors)
    index = json.loads((tmp_path / "m" / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = SHARDS[1]
    write_json(tmp_path / "m" / INDEX, index)
    assert "head" not in open_model(str(tmp_path / "m")).load()


OLD_FILES = {
    "gptq": (
        "quantize_config.json",
        {"bits": 4, "group_size": 8, "desc_act": False, "sym": False, "damp_percent": 0.01},
        test_gptq.packing(),
    ),
    "awq": (
        "quant_config.json",
        {"w_bit": 4, "q_group_size": 8, "version": "GEMM"},
        test_awq.packing(8),
    ),
}


@pytest.mark.parametrize(("name", "scheme", "pack"), OLD_FILES.values(), ids=OLD_FILES)
def test_a_file_beside_the_config_says_how_weights_were_rounded(tmp_path, name, scheme, pack):
    """Quantizers wrote it there before config.json had a place for it; with a method of its own or without."""
    stored, meant = packed_tensors(pack)
    plain = write_checkpoint(tmp_path / "meant", tensors=meant)
    packed = write_checkpoint(tmp_path / "packed", tensors=stored)
    write_json(packed / name, scheme)
    assert_same(str(packed), plain, compute="native")
    write_json(packed / name, {**scheme, "bits": 3, "w_bit": 3})
    with pytest.raises(ConfigError, match=rf"{name}: bits is 3; this runner reads 4"):
        open_model(str(packed))


def test_the_config_of_compressed_tensors_may_have_its_old_name(tmp_path):
    """Nothing was left out of the tensors where its sparsity is called dense."""
    stored, meant = packed_tensors(test_int8.pack)
    plain = write_checkpoint(tmp_path / "meant", tensors=meant)
    dense = {"format": "dense", "global_sparsity": 0.1, "sparsity_structure": "unstructured"}
    scheme = {**test_int8.SCHEME, "sparsity_config": dense, "kv_cache_scheme": {"num_bits": 8}}
    config = {**CONFIG, "compression_config": scheme}
    packed = write_checkpoint(tmp_path / "packed", config, stored)
    assert_same(str(packed), plain, compute="native")


def yarn(directory, **settings):
    """The rope of a model with these settings."""
    config = {**CONFIG, "rope_scaling": {"type": "yarn", "factor": 4.0, **settings}}
    return find_model(str(write_checkpoint(directory, config))).spec.layers[0].rope


def test_settings_of_yarns_first_code_are_read(tmp_path):
    """`finetuned` changes no angle; `attn_factor` multiplies what the length gives, if nothing else says it."""
    plain = yarn(tmp_path / "a")
    assert yarn(tmp_path / "b", finetuned=True, attn_factor=1.0) == plain
    assert yarn(tmp_path / "c", attn_factor=2.0).attention_factor == 2 * plain.attention_factor
    assert yarn(tmp_path / "d", attn_factor=2.0, attention_factor=1.5).attention_factor == 1.5


def test_a_whole_number_may_be_written_with_a_point(sound):
    """As programs without whole numbers write theirs."""
    write_json(sound / "generation_config.json", {"top_k": 50.0, "do_sample": True})
    params = open_model(str(sound)).card.default_sampling_params
    assert params == {"top_k": 50}
    assert isinstance(params["top_k"], int)


def add_token(directory, content, token_id):
    """tokenizer.json has one more token, which is special."""
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({"id": token_id, "content": content, "special": True, **flags})
    path.write_text(json.dumps(tokenizer))


def test_padding_may_lie_beyond_the_vocabulary(sound):
    """Fine-tuned models have `<pad>` one past the embedding: no prompt needs it."""
    size = CONFIG["vocab_size"]
    add_token(sound, "<pad>", size)
    write_json(sound / "special_tokens_map.json", {"pad_token": "<pad>"})
    checkpoint = open_model(str(sound))
    assert checkpoint.card.pad_token_id is None
    assert checkpoint.parsed_tokenizer.token_to_id("<pad>") == size


@pytest.mark.parametrize(
    "name",
    [{"special_tokens_map.json": '{"eos_token": "<x>"}'}, {"chat_template.jinja": "{{ '<x>' }}"}],
    ids=["end", "template"],
)
def test_a_token_that_prompts_need_must_have_a_row(sound, name):
    """Otherwise every conversation would be refused."""
    add_token(sound, "<x>", CONFIG["vocab_size"])
    for file, text in name.items():
        (sound / file).write_text(text)
    with pytest.raises(ConfigError, match=r"token '<x>' has id 300; the model's vocab_size"):
        open_model(str(sound))


def test_a_listed_token_without_a_row_stays_text(sound):
    """It is in tokenizer_config.json alone, and its id is beyond the embedding."""
    size = CONFIG["vocab_size"]
    config = json.loads((sound / "tokenizer_config.json").read_text())
    listed = {str(size): {"content": "<pad>", "special": True}}
    write_json(sound / "tokenizer_config.json", {**config, "added_tokens_decoder": listed})
    assert open_model(str(sound)).parsed_tokenizer.token_to_id("<pad>") is None


def test_special_tokens_may_be_named_in_a_file_of_their_own(sound):
    """The ids on the card and the names that templates have are of that file."""
    write_json(sound / "tokenizer_config.json", {})
    tokens = {"bos_token": {"content": "<|endoftext|>"}, "pad_token": "<|endoftext|>"}
    write_json(sound / "special_tokens_map.json", tokens)
    checkpoint = open_model(str(sound))
    end = checkpoint.parsed_tokenizer.token_to_id("<|endoftext|>")
    assert (checkpoint.card.bos_token_id, checkpoint.card.pad_token_id) == (end, end)
    assert read_special_tokens(checkpoint.tokenizer_files)["bos_token"] == "<|endoftext|>"


def test_a_tokenizer_of_sentencepiece_alone_says_how_to_convert_it(sound):
    """Its file is there, and in another format."""
    (sound / "tokenizer.json").rename(sound / "tokenizer.model")
    with pytest.raises(ConfigError, match=r"tokenizer\.model is SentencePiece's.*save_pretrained"):
        open_model(str(sound))
