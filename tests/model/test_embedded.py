"""Embedded models that are made in memory: their parameters, weights and tokenizer."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from weft.core.errors import ConfigError
from weft.model.open import open_model


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("random?layer=2", "unknown parameter 'layer'; allowed are layers, hidden, heads"),
        ("random?layers=2&layers=3", "layers is given twice"),
        ("random?layers", "layers has no value"),
        ("random?layers=", "layers has no value"),
        ("random?layers=0", "layers is '0'; it must be a whole number from 1 to 1024"),
        ("random?layers=-1", "layers is '-1'"),
        ("random?layers=1.5", "layers is '1.5'"),
        ("random?layers=" + "9" * 50, "layers is '999"),
        ("random?layers=²", "layers is '²'"),
        ("random?vocab=258", "vocab is '258'; it must be a whole number from 259"),
        ("random?heads=6&kv_heads=4", r"heads \(6\) must be a multiple of kv_heads \(4\)"),
        ("random?hidden=64&heads=5", r"hidden \(64\) must be a multiple of heads \(5\)"),
        ("random?head_dim=7", r"head_dim \(7\) must be even"),
        ("random?qk_norm=maybe", "qk_norm is 'maybe'; it must be true or false"),
        ("random?conv=3&qk_norm=true", "conv and qk_norm exclude each other"),
        ("random?conv=3&latent=32", "conv and latent exclude each other"),
        ("random?delta=4&experts=4", "delta and experts exclude each other"),
        ("random?delta=4&layers=1", "layers must be at least 2 with delta"),
        ("random?mamba=4&delta=4", "delta and mamba exclude each other"),
        ("random?mamba=4&layers=1", "layers must be at least 2 with mamba"),
        ("random?mamba=3&hidden=64", "mamba must be a divisor of twice hidden .128."),
        ("random?conv=1", "conv must be at least 2, and needs layers"),
        ("random?conv=3&layers=1", "conv must be at least 2, and needs layers"),
        ("random?dtype=int8", "dtype is 'int8'; it must be one of float32, bfloat16, float16"),
        ("random?&layers=2", "unknown parameter ''"),
        ("echo?ttft_ms=-1", "ttft_ms is '-1'; it must be a number of milliseconds"),
        ("echo?ttft_ms=nan", "ttft_ms is 'nan'"),
        ("echo?itl_ms=soon", "itl_ms is 'soon'"),
        ("echo?layers=2", "unknown parameter 'layers'; allowed are ttft_ms, itl_ms"),
        ("tiny?seed=1", "unknown parameter 'seed'; it takes none"),
    ],
)
def test_wrong_parameters_are_refused_by_name(name, words):
    """The message names the parameter, its value and what is allowed."""
    with pytest.raises(ConfigError, match=words):
        open_model(f"embedded:{name}")


def test_every_parameter_of_random_counts():
    """Each one shows in the spec or on the card."""
    checkpoint = open_model(
        "embedded:random?layers=3&hidden=96&heads=6&kv_heads=3&head_dim=8&intermediate=100"
        "&vocab=1000&qk_norm=true&dtype=bfloat16&seed=4&max_len=77"
    )
    spec, card = checkpoint.spec, checkpoint.card
    assert (len(spec.layers), spec.hidden_size, spec.num_heads, spec.num_kv_heads) == (3, 96, 6, 3)
    assert (spec.head_dim, spec.intermediate_size, spec.vocab_size) == (8, 100, 1000)
    assert (spec.qk_norm, card.dtype, card.max_position_embeddings) == ("head", "bfloat16", 77)
    assert (card.model_type, card.vocab_size) == ("qwen3", 1000)


def test_weights_depend_on_seed_and_name_alone():
    """More layers leave the others as they are; another seed changes all; the same one nothing."""
    short = open_model("embedded:random?layers=2&seed=1").load()
    long = open_model("embedded:random?layers=4&seed=1").load()
    other = open_model("embedded:random?layers=2&seed=2").load()
    assert all(np.array_equal(short[n].data, long[n].data) for n in short.tensors)
    assert not any(np.array_equal(short[n].data, other[n].data) for n in short.tensors)


def test_weights_never_change_between_releases():
    """The first numbers of a tensor, pinned: benchmarks and recorded outputs rest on them."""
    first = open_model("embedded:random?seed=7").load()["layers.0.q"].float32()[0, :4]
    assert np.round(first.astype(float), 6).tolist() == [-0.061474, -0.161138, 0.134861, -0.156519]


def test_logits_are_spread_and_answers_vary():
    """No NaN, no flat logits, and different prompts have different most likely tokens."""
    checkpoint = open_model("embedded:random?layers=4&hidden=128&vocab=1000")
    runner = load_runner(checkpoint)
    runner.allocate_kv(num_blocks=8, block_size=16)
    ids = np.random.default_rng(0).integers(0, 1000, 100).tolist()
    logits = runner.forward(step([Part(ids, 100, list(range(8)), 0, 100)], 16))
    assert 1.5 < logits.std(axis=-1).min() < logits.std(axis=-1).max() < 6
    assert len(set(logits.argmax(axis=-1).tolist())) > 50


@pytest.mark.parametrize("name", ["random?vocab=700", "echo", "random?vocab=259"])
def test_the_tokenizer_in_memory_is_a_real_one(name):
    """Bytes are ids, specials are known, every id has a token, and text survives."""
    checkpoint = open_model(f"embedded:{name}")
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_files["tokenizer.json"].decode())
    text = "Grüße,\n 你好 \x00 🧵"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.encode("<|im_start|>a<|im_end|>").ids == [257, 97, 258]
    assert tokenizer.get_vocab_size() == checkpoint.card.vocab_size
    assert checkpoint.chat_template is not None


def test_echo_and_random_name_their_ends():
    """Echo must not stop at `<|im_end|>`: chat prompts that it repeats are full of them."""
    assert open_model("embedded:echo").card.eos_token_ids == (256,)
    assert open_model("embedded:random").card.eos_token_ids == (258, 256)


def test_echo_keeps_its_pace_and_sizes():
    """Milliseconds become seconds; the pool holds one int a token."""
    checkpoint = open_model("embedded:echo?ttft_ms=50&itl_ms=2.5&vocab=300&max_len=99")
    assert (checkpoint.spec.ttft_s, checkpoint.spec.itl_s) == (0.05, 0.0025)
    assert (checkpoint.card.vocab_size, checkpoint.card.max_position_embeddings) == (300, 99)
    assert checkpoint.card.kv_bytes_per_token == 4
