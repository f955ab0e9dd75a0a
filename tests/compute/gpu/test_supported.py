"""What a card is asked for, what it computes, and what is refused by name; none of it needs one."""

import subprocess
import sys
from dataclasses import replace

import pytest

from weft.compute.gpu import backend
from weft.compute.gpu.backend import GpuBackend
from weft.compute.gpu.card import Card, find_card
from weft.compute.gpu.formats import padded_depth, products_of
from weft.compute.gpu.supported import check_card, check_options, check_spec, model_refusal
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.model.files.layout import decoder_layout
from weft.model.groups import GroupFormat
from weft.model.open import open_model

MODEL = "embedded:random?layers=2&hidden=64&heads=4&kv_heads=2&vocab=300&dtype=bfloat16"
REFUSED = {
    "latent": "latent=32",
    "states": "conv=4",
    "float32": "dtype=float32",
}


@pytest.mark.parametrize("query", REFUSED.values(), ids=REFUSED)
def test_what_is_not_computed_is_refused_by_name(query):
    """The message says what of the model it is, and nothing is computed by halves."""
    base = "embedded:random?layers=2&hidden=64&heads=4&vocab=300"
    dtype = "" if "dtype" in query else "&dtype=bfloat16"
    card = open_model(f"{base}&{query}{dtype}").card
    assert model_refusal(card) is not None
    with pytest.raises(ConfigError, match=r"--compute gpu: .*"):
        check_options(EngineOptions(), card)


def test_a_dense_decoder_is_computed():
    """Of bfloat16, with any of the usual options."""
    checkpoint = open_model(MODEL)
    assert model_refusal(checkpoint.card) is None
    check_options(EngineOptions(quantization="none", max_num_seqs=8), checkpoint.card)
    check_spec(checkpoint.spec, "m")


@pytest.mark.parametrize(
    ("switch", "words"),
    [
        ({"has_output_gate": True}, "gates on its attention"),
        ({"has_value_norm": True}, "norms of values"),
        ({"has_layer_scales": True}, "factors of its layers"),
    ],
)
def test_a_switch_that_no_kernel_computes_is_refused_by_name(switch, words):
    """With the flag that computes it."""
    spec = replace(open_model(MODEL).spec, **switch)
    with pytest.raises(ConfigError, match=f"{words}, which are not supported yet; give --compute"):
        check_spec(spec, "m")


def sized(quantization, groups=None):
    """The card of the model with its matrices in these formats."""
    checkpoint = replace(open_model(MODEL), groups=groups or {})
    compute = ComputeConfig(compute="gpu", num_threads=1, quantization=quantization)
    return GpuBackend().sized(checkpoint, compute).card


def test_memory_is_counted_in_the_bits_that_are_kept():
    """A tied head in few bits is a second copy of the embedding; its depth is padded as the kernel needs it."""
    spec, whole = open_model(MODEL).spec, sized(None).weight_bytes
    shapes = {plan.name: plan.shape for plan in decoder_layout(spec)}
    names = [name for product in products_of(spec) for name in product if name != "head"]
    matrices = [shapes[name] for name in names]
    wide = sum(rows * depth for rows, depth in matrices)
    head = 0 if spec.tied_head else 2 * 300 * 64
    int8 = sum(rows * (padded_depth(depth) + 4) for rows, depth in matrices)
    assert sized("int8").weight_bytes == whole - 2 * wide - head + int8 + 300 * (64 + 4)


def test_matrices_of_several_formats_in_one_product_are_dequantized():
    """And the notice says how many."""
    form = GroupFormat(4, 32, "minimums", "float32")
    other = GroupFormat(8, 16, "symmetric", "float32")
    alike = {f"layers.0.{name}": form for name in ("q", "k", "v", "o", "gate", "up", "down")}
    notice = sized("stored", alike).notice
    assert notice.endswith("other linear layers are in the model's type.")
    mixed = sized("stored", {**alike, "layers.0.v": other})
    assert mixed.notice.endswith(
        "3 of these 7 matrices are dequantized: their product has several formats."
    )
    assert mixed.weight_bytes > sized("stored", alike).weight_bytes


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"quantization": "fp8"}, "--quantization"),
        ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype"),
        ({"num_threads": 4}, "--num-threads"),
        ({"enable_lora": True}, "--enable-lora"),
        ({"data_parallel_size": 2}, "--data-parallel-size"),
    ],
)
def test_an_option_that_a_card_does_not_follow_is_refused(options, flag):
    """By its flag, and not ignored."""
    with pytest.raises(ConfigError, match=flag):
        check_options(EngineOptions(**options), open_model(MODEL).card)


def test_a_card_that_is_too_old_is_refused_in_a_sentence():
    """With what it has and what is needed."""
    old = Card("Tesla V100", (7, 0), 16 << 30, 15 << 30)
    with pytest.raises(ConfigError, match=r"capability 8\.0 or later; Tesla V100 has 7\.0"):
        check_card(old)
    with pytest.raises(ConfigError, match=r"no NVIDIA card"):
        check_card(None)
    check_card(replace(old, capability=(8, 0)))


def test_a_machine_without_the_driver_has_no_card():
    """The library is missing, and nothing is raised."""
    assert find_card("libnothing-of-that-name.so") is None


def test_a_model_that_no_kernel_computes_is_left_to_the_cpu(monkeypatch):
    """With a card in the machine too: "auto" never chooses a backend that then refuses the model."""
    monkeypatch.setattr(backend, "find_card", lambda: Card("a card", (9, 0), 2**36, 2**36))
    monkeypatch.setattr(backend, "find_spec", lambda name: "found")
    checkpoint = open_model(MODEL)
    card, spec = checkpoint.card, checkpoint.spec
    assert GpuBackend().suits(card, spec)
    assert not GpuBackend().suits(card, replace(spec, has_output_gate=True))


def test_nobody_imports_torch_to_ask_what_suits():
    """A server's process asks each backend, and stays as small as it was."""
    asks = f"""
import sys
from weft.compute.backends import BACKENDS, choose
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.model.files.layout import decoder_layout
from weft.model.groups import GroupFormat
from weft.model.open import open_model
card = open_model("{MODEL}").card
choose(EngineOptions(), card)
print(BACKENDS["gpu"].suits(card, None), "torch" in sys.modules, "triton" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", asks], capture_output=True, text=True, check=True
    )
    assert result.stdout.split()[1:] == ["False", "False"]
