"""What loading a checkpoint takes at its peak, and a KV pool at its first token; each in a process of its own."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests.model.checkpoints import CONFIG, write_checkpoint
from weft.compute.native import resident_bytes
from weft.model.families.decoders import read_config, read_spec
from weft.model.files.layout import decoder_layout
from weft.model.open import find_model

MIB = 1 << 20
LARGE = {
    **CONFIG,
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
# One thread: then memory does not depend on who was ahead.
PROGRAM = """
import json, sys
import numpy as np
from weft.compute.native import Machine, NativeRunner, Rounding
from weft.compute.protocols.runner import Batch
from weft.model.open import find_model

def read(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

path, dtype, quantization = sys.argv[1:]
checkpoint = find_model(path, dtype=dtype)
start = read("VmRSS")
runner = NativeRunner(
    checkpoint.spec, checkpoint.map(), dtype=checkpoint.card.dtype, max_model_len=128,
    rounding=Rounding(quantization=quantization or None), machine=Machine(num_threads=1),
)
peak, loaded = read("VmHWM"), read("VmRSS")
runner.allocate_kv(num_blocks=1 << 16, block_size=16)
ints = lambda *values: np.array(values, np.int32)
runner.forward(Batch(
    token_ids=ints(1), positions=ints(0), slots=ints(0), query_starts=ints(0, 1),
    prompt_lens=ints(1), block_tables=np.zeros((1, 1), np.int32), logit_rows=ints(0),
))
print(json.dumps([peak - start, loaded - start, read("VmRSS") - loaded]))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A checkpoint of some 110 MB, most of it in its layers."""
    spec = read_spec(read_config(LARGE, "config.json"))
    draw = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
    tensors = {plan.source: np.resize(draw, plan.source_shape) for plan in decoder_layout(spec)}
    path = write_checkpoint(tmp_path_factory.mktemp("large") / "m", LARGE, tensors)
    yield path
    (path / "model.safetensors").unlink()


def measure(path, dtype, quantization=None):
    """Bytes beyond those before loading: at the peak of it, after it, and what a first token adds."""
    command = [sys.executable, "-c", PROGRAM, str(path), dtype, quantization or ""]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(shown)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("dtype", "quantization"), [("auto", None), ("auto", "int8")])
def test_a_checkpoint_is_never_in_memory_twice(large, dtype, quantization):
    """While tensors are packed their pages of the file's map are given back, one after the other."""
    checkpoint = find_model(str(large))
    weights = resident_bytes(checkpoint.spec, checkpoint.card.dtype, quantization).weights
    peak, loaded, _ = measure(large, dtype, quantization)
    assert weights < loaded < weights + 16 * MIB
    assert peak < 1.05 * weights + 24 * MIB  # else 112 MB more


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_first_token_takes_little_of_the_pool(large):
    """Not a huge page of 2 MB in every layer, which are 24 here."""
    *_, first = measure(large, "auto")
    assert first < 16 * MIB
