"""Choosing the native runner, loading it, its threads and its memory."""

import time

import numpy as np
import pytest

from tests.busy import is_within
from tests.compute.native.models import make_runner
from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from tests.model.checkpoints import tensors_of, write_checkpoint
from weft.compute.backends import BACKENDS
from weft.compute.native import Machine, NativeRunner, cpu, resident_bytes, usable_paths
from weft.compute.reference.runner import ReferenceRunner
from weft.core.config.engine import ComputeConfig
from weft.core.errors import ConfigError
from weft.model.open import open_model
from weft.model.weights import Weights

TINY = "embedded:random?hidden=64&heads=4&kv_heads=2&vocab=300"


def computing(compute, num_threads=1, quantization=None):
    return ComputeConfig(compute=compute, num_threads=num_threads, quantization=quantization)


def test_a_runner_can_be_forced():
    """`compute` names one; without it the native one serves wherever the CPU has vectors for it."""
    checkpoint = open_model(TINY)
    assert isinstance(load_runner(checkpoint, compute="native"), NativeRunner)
    assert isinstance(load_runner(checkpoint, compute="reference"), ReferenceRunner)
    has_vectors = usable_paths()[0] != "portable"
    assert isinstance(load_runner(checkpoint), NativeRunner) == has_vectors


def test_the_banner_names_what_computes():
    """A user sees whether the slow path serves."""
    checkpoint = open_model(TINY)
    numpy, native = computing("reference", 2), computing("native", 2, "int8")
    assert BACKENDS["reference"].describe(checkpoint.card, numpy).endswith("; computed with numpy")
    expected = f"{cpu().describe()}; computed in C++ ({usable_paths()[0]}, 2 threads), int8 weights"
    assert BACKENDS["native"].describe(checkpoint.card, native) == expected


@pytest.mark.parametrize("path", ["sse9", ""])
def test_an_unknown_path_is_refused(path):
    """The message offers what this CPU can run."""
    checkpoint = open_model(TINY)
    with pytest.raises(ValueError, match="portable"):
        NativeRunner(
            checkpoint.spec,
            checkpoint.load(),
            dtype="float32",
            max_model_len=64,
            machine=Machine(path),
        )


@pytest.mark.parametrize("num_threads", [0, -1, 5000])
def test_an_impossible_number_of_threads_is_refused(num_threads):
    """At least the calling thread computes."""
    with pytest.raises(ValueError, match="num_threads"):
        make_runner("plain", "float32", num_threads=num_threads)


def test_a_missing_tensor_is_named():
    """A step never runs on weights that were not there."""
    checkpoint = open_model(TINY)
    tensors = dict(checkpoint.load().tensors)
    del tensors["layers.1.up"]
    runner = NativeRunner(checkpoint.spec, Weights(tensors), dtype="float32", max_model_len=64)
    runner.allocate_kv(num_blocks=2, block_size=16)
    with pytest.raises(ValueError, match=r"layers\.1\.up"):
        runner.forward(step([Part([1], 1, [0], 0, 1)], 16))


def test_a_tensor_of_another_shape_is_refused():
    """Packing never reads past the end of what it is given."""
    checkpoint = open_model(TINY)
    tensors = dict(checkpoint.load().tensors)
    tensors["layers.0.q"] = tensors["layers.0.k"]
    with pytest.raises(ValueError, match=r"layers\.0\.q"):
        NativeRunner(checkpoint.spec, Weights(tensors), dtype="float32", max_model_len=64)


PLACES = {
    "embed": ("model.embed_tokens.weight", 0),
    "q": ("model.layers.0.self_attn.q_proj.weight", 40),
    "norm": ("model.norm.weight", 3),
}


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_that_holds_no_numbers_is_refused(tmp_path, place, value, quantization):
    """Values are looked at while they are packed; the message is that of loading for the reference."""
    name, at = PLACES[place]
    tensors = tensors_of()
    tensors[name].reshape(-1)[at] = value
    path = write_checkpoint(tmp_path / "m", tensors=tensors)
    checkpoint = open_model(str(path))
    with pytest.raises(ConfigError, match=f"tensor {name} holds NaN or infinity"):
        load_runner(checkpoint, compute="native", quantization=quantization)
    with pytest.raises(ConfigError, match=f"tensor {name} holds NaN or infinity"):
        load_runner(checkpoint, compute="reference", quantization=quantization)


def test_the_embedded_model_loads_quickly():
    """Packing embedded:tiny takes well under 0.3 s of work."""
    checkpoint = open_model("embedded:tiny")
    weights = checkpoint.load()

    def seconds():
        started = time.thread_time()
        NativeRunner(
            checkpoint.spec,
            weights,
            dtype=checkpoint.card.dtype,
            max_model_len=512,
            machine=Machine(num_threads=1),
        )
        return time.thread_time() - started

    # Others on the same core make it slower, but not each time.
    assert any(is_within(seconds(), 0.3) for _ in range(3))


def test_idle_threads_use_no_cpu():
    """Threads spin for a moment after a step and then sleep until the next one."""
    runner = make_runner("plain", "float32", num_threads=3)
    runner.allocate_kv(num_blocks=2, block_size=16)
    runner.forward(step([Part([1], 1, [0], 0, 1)], 16))

    def seconds():
        started = time.process_time()
        time.sleep(0.5)
        return time.process_time() - started

    # Those that had no processor yet have their moment of it later.
    assert any(is_within(seconds(), 0.05) for _ in range(3))


def test_a_pool_takes_memory_as_it_is_used():
    """A pool of many gigabytes costs nothing before its blocks are written."""
    runner = make_runner("plain", "float32")
    before = _resident()
    runner.allocate_kv(num_blocks=1 << 19, block_size=16)
    runner.forward(step([Part([1, 2, 3], 3, [0], 0, 3)], 16))
    assert _resident() - before < 64 << 20


def _resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_card_has_what_the_runner_takes(dtype):
    """The pool is sized by the bytes that a token takes in the runner that will serve."""
    checkpoint = open_model(TINY, dtype=dtype)
    card = BACKENDS["native"].sized(checkpoint, computing("native")).card
    width = 2 if dtype == "bfloat16" else 4
    assert card.kv_bytes_per_token == 2 * 2 * 2 * 16 * width
    assert card.kv_dtype == ("bfloat16" if dtype == "bfloat16" else "float32")
    assert card.weight_bytes == resident_bytes(checkpoint.spec, dtype).weights
    assert card.weight_bytes >= checkpoint.card.num_parameters * width
    assert BACKENDS["reference"].sized(checkpoint, computing("reference")).card == checkpoint.card


def test_parts_of_a_step_add_up():
    """Each part's time is counted once, and no more than passes."""
    runner = make_runner("wide", "bfloat16")
    runner.allocate_kv(num_blocks=8, block_size=16)
    ids = np.arange(100).tolist()
    started = time.perf_counter()
    runner.forward(step([Part(ids, 100, list(range(7)), 0, 100)], 16))
    assert 0 < sum(runner.seconds().values()) <= time.perf_counter() - started
