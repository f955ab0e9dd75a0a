"""Every defect of a checkpoint is one `ConfigError` line: what is wrong, where, what is allowed."""

import json
import os
import time
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.busy import is_within
from tests.model.checkpoints import (
    CONFIG,
    tensors_of,
    write_checkpoint,
    write_json,
    write_raw,
    write_shards,
)
from weft.core.errors import ConfigError
from weft.model.files.safetensors_files import MappedFiles, read_header
from weft.model.open import open_model

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = "model-00001-of-00002.safetensors"
EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


@pytest.fixture
def sound(tmp_path):
    """A checkpoint without a defect, for a test to spoil."""
    return write_checkpoint(tmp_path / "m")


def refusal(directory):
    """The message with which opening and loading is refused, after checking its form."""
    before = time.perf_counter()
    with pytest.raises(ConfigError) as error:
        open_model(str(directory)).load()
    assert is_within(time.perf_counter() - before, 10)
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 500 + len(str(directory))
    return message.replace(str(directory), "DIR")


def config_with(**changes):
    return {k: v for k, v in {**CONFIG, **changes}.items() if v != "absent"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": "absent"}, "hidden_size is missing; it must be a whole number"),
        ({"hidden_size": 10**30}, "hidden_size is 1000"),
        ({"hidden_size": 16.0}, "hidden_size is 16.0; it must be a whole number"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": "16"}, "hidden_size is '16'"),
        ({"hidden_size": -16}, "from 1 to"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be"),
        (
            {"num_attention_heads": 3},
            "num_attention_heads is 3; it must be a divisor of hidden_size",
        ),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ({"head_dim": 7}, "an even number"),
        ({"vocab_size": 301}, "model.embed_tokens.weight has shape [300, 16]"),
        ({"model_type": "rwkv"}, "'rwkv' is not a model this runner knows; it runs Llama"),
        ({"model_type": "absent"}, "model_type is missing"),
        ({"model_type": ["llama"]}, "model_type is ['llama']; it must be text"),
        ({"model_type": {"a": 1}}, "model_type is {'a': 1}; it must be text"),
        ({"architectures": ["LlamaForQuestionAnswering"]}, "'LlamaForQuestionAnswering'"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; it must be a number from 1e-15 to 1e+15"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"hidden_act": "swiglu"}, "hidden_act is 'swiglu'; it must be one of silu"),
        ({"attention_bias": 1}, "attention_bias is 1; it must be true or false"),
        ({"attention_bias": True}, "tensor model.layers.0.self_attn.q_proj.bias is missing"),
        ({"tie_word_embeddings": None, "num_hidden_layers": 1}, "model.layers.1."),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_local_experts": 8}, "num_local_experts 8 is not implemented for LlamaForCausalLM"),
        (
            {"decoder_sparse_step": 2, "mlp_only_layers": [0]},
            "mlp_only_layers [0] is not implemented",
        ),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not implemented"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
        ({"rope_scaling": {"rope_type": "mystery"}}, "rope_type is 'mystery'; it must be one of"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_scaling": {"type": "default", "mrope_section": [1]}}, "'mrope_section' is not"),
        ({"rope_scaling": [1]}, "rope_scaling is [1]; it must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; it must be 1"),
        ({"eos_token_id": 300}, "eos_token_id holds 300; it must be a whole number from 0 to 299"),
        ({"eos_token_id": ["a"]}, "eos_token_id holds 'a'"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused_by_key(sound, changes, words):
    """The message names config.json, the key, its value, and what is allowed."""
    write_json(sound / "config.json", config_with(**changes))
    assert words in refusal(sound)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", SINGLE])
def test_a_missing_file_is_named(sound, name):
    """Each file that a checkpoint needs is named when it is not there."""
    (sound / name).unlink()
    assert name in refusal(sound)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", SINGLE])
def test_a_file_that_cannot_be_read_is_named(sound, name):
    """A directory in place of a file stands for anything the system refuses to read."""
    (sound / name).unlink()
    (sound / name).mkdir()
    assert name in refusal(sound)


FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", SINGLE)


@pytest.mark.parametrize("name", FILES)
def test_a_pointer_of_git_lfs_says_how_to_get_the_file(sound, name):
    """A clone without git-LFS leaves three lines of text in place of every large file."""
    oid = "oid sha256:" + "0" * 64
    (sound / name).write_text(f"version https://git-lfs.github.com/spec/v1\n{oid}\nsize 12\n")
    assert f"{name}: this is a git-LFS pointer, not the file itself: run `git lfs pull`" in refusal(
        sound
    )


@pytest.mark.parametrize("name", [*FILES, INDEX, "chat_template.jinja", "modules.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(sound, name):
    """Reading it would wait for a writer for ever."""
    if name == INDEX:
        (sound / SINGLE).unlink()
    (sound / name).unlink(missing_ok=True)
    os.mkfifo(sound / name)
    assert f"{name}: is not a regular file" in refusal(sound)


@pytest.mark.parametrize("name", FILES)
def test_a_device_in_place_of_a_file_is_not_read(sound, name):
    """/dev/zero has no end, and says that its size is 0."""
    (sound / name).unlink(missing_ok=True)
    (sound / name).symlink_to("/dev/zero")
    assert f"{name}: is not a regular file" in refusal(sound)


def test_a_pipe_in_place_of_a_shard_is_not_waited_for(sound):
    """Shards are read like the one file."""
    write_shards(sound, tensors_of())
    (sound / SHARD).unlink()
    os.mkfifo(sound / SHARD)
    assert f"{SHARD}: is not a regular file" in refusal(sound)


def test_pickled_weights_are_never_loaded(sound):
    """With only a pickle there, the message says why it is not read and what to do."""
    (sound / SINGLE).rename(sound / "pytorch_model.bin")
    assert "pytorch_model.bin holds weights, and pickled weights are never" in refusal(sound)


def spoil_header(path, change):
    """Rewrite a safetensors file with `change` applied to its header."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    write_raw(path, header, data[8 + length :])


NORM = "model.norm.weight"
SPOILERS = {
    "empty": lambda p: p.write_bytes(b""),
    "cut in the header": lambda p: p.write_bytes(p.read_bytes()[:20]),
    "cut in the data": lambda p: p.write_bytes(p.read_bytes()[:-4]),
    "trailing bytes": lambda p: p.write_bytes(p.read_bytes() + b"1234"),
    "header of 2^60 bytes": lambda p: p.write_bytes((2**60).to_bytes(8, "little") + b"{}"),
    "header that is not JSON": lambda p: p.write_bytes(b"\x04" + b"\0" * 7 + b"{{{{"),
    "overlap": lambda p: spoil_header(p, lambda h: h[NORM].update(data_offsets=[0, 64])),
    "overflowing shape": lambda p: spoil_header(
        p, lambda h: h[NORM].update(shape=[2**62, 2**62, 16])
    ),
    "negative shape": lambda p: spoil_header(p, lambda h: h[NORM].update(shape=[-16])),
    "unknown dtype": lambda p: spoil_header(p, lambda h: h[NORM].update(dtype="F33")),
    "dtype that is not served": lambda p: spoil_header(p, lambda h: h[NORM].update(dtype="I32")),
    "no dtype": lambda p: spoil_header(p, lambda h: h[NORM].pop("dtype")),
}


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param({"__metadata__": {"a": "x" * 50_000_000}}, id="metadata"),
        pytest.param(dict.fromkeys(map(str, range(400_000)), EMPTY), id="tensors"),
    ],
)
def test_a_header_that_is_larger_than_any_is_refused(sound, entries):
    """It is told by its length alone: to read 50 MB of JSON takes seconds, and memory by the gigabyte."""
    write_raw(sound / SINGLE, entries)
    tracemalloc.start()
    message = refusal(sound)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "model.safetensors: the header has" in message
    assert "at most 16777216 are read" in message
    assert most < 10_000_000


def test_too_many_tensors_are_refused(sound):
    """Whose header is short, but of which each takes memory; so are those of many shards."""
    write_raw(sound / SINGLE, dict.fromkeys(map(str, range(50_001)), EMPTY))
    assert "model.safetensors: names 50001 tensors or more; at most 50000" in refusal(sound)
    (sound / SINGLE).unlink()
    weight_map = {}
    for number in range(3):
        names = [f"{number}.{i}" for i in range(20_000)]
        write_raw(sound / f"{number}.safetensors", dict.fromkeys(names, EMPTY))
        weight_map.update(dict.fromkeys(names, f"{number}.safetensors"))
    write_json(sound / INDEX, {"weight_map": weight_map})
    assert "DIR: names 60000 tensors or more" in refusal(sound)


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "chat_template.jinja", INDEX]
)
def test_a_file_that_is_larger_than_any_is_refused(sound, name):
    """By its size, before a byte is read."""
    if name == INDEX:
        (sound / SINGLE).unlink()
    with (sound / name).open("wb") as file:
        file.truncate(33 << 20)
    assert f"{name}: has {33 << 20} bytes; at most" in refusal(sound)


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
def test_a_damaged_safetensors_file_is_refused(sound, spoil):
    """Whatever is wrong with the file, the message names it."""
    spoil(sound / SINGLE)
    assert refusal(sound).startswith(f"DIR/{SINGLE}: ")


@pytest.mark.parametrize("size", [0, 200])
def test_a_file_that_is_cut_off_after_its_header_was_read_is_refused(tmp_path, size):
    """An adapter that is written anew while it is loaded ends its own loading, and not the engine."""
    path = tmp_path / SINGLE
    save_file({"a": np.zeros(100, np.float32)}, path)
    stored = read_header(path)["a"]
    os.truncate(path, size)
    with pytest.raises(ConfigError, match="was cut off since its header was read"):
        MappedFiles().read(stored)


def test_a_tensor_twice_in_one_header_is_refused(tmp_path):
    """The library takes the last of two entries; we take neither."""
    path = write_checkpoint(tmp_path / "m") / SINGLE
    entry = json.dumps({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})
    header = f'{{"a": {entry}, "a": {entry}}}'.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    assert "'a' appears twice" in refusal(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(NORM), f"tensor {NORM} is missing"),
        (lambda t: t.update(stray=np.zeros(3, np.float32)), "tensor 'stray' has no place"),
        (lambda t: t.update({NORM: np.zeros(17, np.float32)}), f"{NORM} has shape [17]"),
        (lambda t: t[NORM].__setitem__(3, np.nan), f"tensor {NORM} holds NaN or infinity"),
        (lambda t: t[NORM].__setitem__(3, -np.inf), f"tensor {NORM} holds NaN or infinity"),
    ],
)
def test_wrong_tensors_are_named(tmp_path, change, words):
    """Missing, extra, misshapen and non-finite tensors are each named."""
    tensors = tensors_of()
    change(tensors)
    write_checkpoint(tmp_path / "m", tensors=tensors)
    assert words in refusal(tmp_path / "m")


def test_values_beyond_float16_are_refused_by_name(tmp_path):
    """Rounding to a dtype that cannot hold a weight is an error, not an infinity."""
    tensors = tensors_of()
    tensors[NORM][0] = 1e6
    path = write_checkpoint(tmp_path / "m", tensors=tensors)
    with pytest.raises(ConfigError, match=f"{NORM} does not fit float16"):
        open_model(str(path), dtype="float16").load()


INDEX_SPOILERS = {
    "missing shard": (lambda d, w: (d / SHARD).unlink(), SHARD),
    "path": (lambda d, w: w.update({NORM: "../" + SHARD}), "without a path"),
    "absolute path": (lambda d, w: w.update({NORM: "/etc/passwd"}), "without a path"),
    "number": (lambda d, w: w.update({NORM: 7}), "without a path"),
    "empty": (lambda d, w: w.clear(), "weight_map"),
}


@pytest.mark.parametrize(("spoil", "words"), INDEX_SPOILERS.values(), ids=INDEX_SPOILERS)
def test_a_wrong_index_is_refused(sound, spoil, words):
    """The shards that it names lie beside it."""
    write_shards(sound, tensors_of())
    index = json.loads((sound / INDEX).read_text())
    spoil(sound, index["weight_map"])
    write_json(sound / INDEX, index)
    assert words in refusal(sound)


def test_a_tensor_in_two_shards_is_refused(sound):
    """Which of the two would be served is nobody's guess."""
    write_shards(sound, tensors_of())
    (sound / "model-00002-of-00002.safetensors").write_bytes((sound / SHARD).read_bytes())
    assert "is also in " + SHARD in refusal(sound)


def test_a_repeated_key_in_the_index_is_refused(sound):
    """JSON that says two things about one tensor is not read."""
    write_shards(sound, tensors_of())
    text = (sound / INDEX).read_text()
    (sound / INDEX).write_text(text.replace('"weight_map": {', f'"weight_map": {{"{NORM}": "x", '))
    assert "appears twice" in refusal(sound)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        # Broken, oversized, deep and ambiguous JSON all end in one line.
        ("config.json", b"", "config.json: not valid JSON"),
        ("config.json", b"{", "config.json: not valid JSON"),
        ("config.json", b"[1]", "must hold one JSON object, not a list"),
        ("config.json", b"\xff\xfe", "not UTF-8"),
        ("config.json", b'{"a": 1, "a": 2}', "key 'a' appears twice"),
        ("config.json", b'{"a": NaN}', "NaN is not a JSON number"),
        ("config.json", b'{"a": ' + b"9" * 5000 + b"}", "config.json: not valid JSON"),
        ("config.json", b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        ("tokenizer.json", b"{}", "tokenizer.json: not a valid tokenizer"),
        ("tokenizer.json", b"\xff", "tokenizer.json: not a valid tokenizer"),
        ("tokenizer_config.json", b"{", "tokenizer_config.json: not valid JSON"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "chat_template is 3; it must be text"),
        ("tokenizer_config.json", b'{"chat_template": "{% if %}"}', "chat_template: line 1"),
        ("chat_template.jinja", b"a\n{{ x", "chat_template.jinja: line 2"),
        ("chat_template.jinja", b"{" + b"{(" * 5000, "chat_template.jinja"),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
        ("generation_config.json", b"[]", "generation_config.json: must hold one JSON object"),
        ("generation_config.json", b'{"top_p": 1.5}', "top_p is 1.5; it must be a number"),
        (
            "generation_config.json",
            b'{"repetition_penalty": 1e6}',
            "repetition_penalty is 1000000.0; it must be a number from 1e-05 to 100000",
        ),
        ("generation_config.json", b'{"top_k": 0.5}', "top_k is 0.5; it must be a whole number"),
        ("generation_config.json", b'{"eos_token_id": 999}', "eos_token_id holds 999"),
    ],
)
def test_a_file_that_cannot_be_parsed_or_holds_what_it_may_not_is_refused(sound, name, data, words):
    """Files around the model are checked at start-up as the config is."""
    (sound / name).write_bytes(data)
    assert words in refusal(sound)


@pytest.mark.parametrize(
    ("name", "form"),
    [("chat_template.jinja", "%s"), ("tokenizer_config.json", '{"chat_template": "%s"}')],
)
def test_a_template_that_is_larger_than_any_is_refused(sound, name, form):
    """Wherever it stands: parsing takes six seconds for sixty megabytes of plain text, and more of others."""
    (sound / name).write_text(form % ("a" * (2**20 + 1)))
    assert "has 1048577 characters; at most 1048576 are read" in refusal(sound)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path, sound):
    """A token that the embedding has no row for is named with its id."""
    write_checkpoint(tmp_path / "large", {**CONFIG, "vocab_size": 310})
    (sound / "tokenizer.json").write_bytes((tmp_path / "large" / "tokenizer.json").read_bytes())
    assert "token 'Ġw300' has id 300; the model's vocab_size (300)" in refusal(sound)


def test_a_model_without_an_end_is_refused(tmp_path):
    """Something must say what ends a sequence."""
    write_checkpoint(tmp_path / "m", {**CONFIG, "eos_token_id": None})
    (tmp_path / "m" / "tokenizer_config.json").write_bytes(b"{}")
    assert "eos_token_id is missing" in refusal(tmp_path / "m")


def test_code_in_the_checkpoint_is_ignored(tmp_path):
    """`auto_map` names Python files; none of them is ever imported."""
    auto_map = {"AutoModelForCausalLM": "modeling_evil.Evil"}
    directory = write_checkpoint(tmp_path / "m", {**CONFIG, "auto_map": auto_map})
    (directory / "modeling_evil.py").write_text("raise SystemExit('imported')")
    assert open_model(str(directory)).load()["norm"].shape == (16,)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./nowhere", "no such directory"),
        ("a/b/c", "no such directory"),
        ("a", "no such directory"),
        ("../b", "no such directory"),
        ("a/..", "no such directory"),
        ("/a/b", "no such directory"),
        ("a/b c", "no such directory"),
        ("a--b/c", "no such directory"),
        ("", "no such directory"),
        ("x" * 5000, "no such directory"),
        (f"{'x' * 5000}.gguf", "the file does not exist"),
        ("a\0b.gguf", "the file does not exist"),
        ("~nobody-of-that-name/m.gguf", "the file does not exist"),
        ("~no-such-user-here/m", "no such directory"),
        ("a\0b", "no such directory"),
        ("../../etc", "no weights|config.json|no such directory"),
        ("embedded:huge", "embedded:huge: unknown"),
        (__file__, "is a file; give the directory"),
    ],
)
def test_a_name_that_is_no_model_is_refused(name, words):
    """The message says what a name may be, and a wrong path never becomes a download."""
    with pytest.raises(ConfigError, match=words):
        open_model(name)


def test_a_directory_of_gguf_files_is_told_which_to_name(tmp_path):
    """There is no config.json in it, and none is needed."""
    (tmp_path / "m.Q4_K_M.gguf").touch()
    with pytest.raises(ConfigError, match=r"name the file, such as \S+/m\.Q4_K_M\.gguf"):
        open_model(str(tmp_path))


@pytest.mark.parametrize("dtype", ["int8", "fp8", "", "half"])
def test_an_unknown_dtype_is_refused(dtype):
    """The message lists what there is."""
    with pytest.raises(ConfigError, match="one of auto, float32, bfloat16, float16"):
        open_model("embedded:random", dtype=dtype)
