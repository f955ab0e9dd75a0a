"""A recurrence by itself, in the core and in numpy."""

import numpy as np

from weft.compute.arithmetic.delta import DeltaNet
from weft.compute.arithmetic.mamba import Mamba2
from weft.compute.arithmetic.mamba1 import Mamba1
from weft.compute.native import _core
from weft.compute.native.core_spec import native_recurrence

VECTORS = ("a_log", "step_bias", "skip", "output_scale", "step_in", "step_out")
NONE = np.zeros(0, np.float32)


def native_rows(path, layer: DeltaNet | Mamba1 | Mamba2, rows, state, is_begun, num_threads=1):
    """What the core makes of them; `state` goes on in place."""
    conv, bias = layer.channels.weights, layer.channels.bias
    vectors = [
        np.ascontiguousarray(conv.T).reshape(-1),
        NONE if bias is None else bias,
        *(getattr(layer, name, NONE).reshape(-1) for name in VECTORS),
    ]
    out = np.full((len(rows), layer.spec.inner_size), np.nan, np.float32)
    spec = native_recurrence(layer.spec)
    assert spec is not None
    eps = float(layer.norm_eps)
    _core.recurrent_rows(path, num_threads, spec, eps, vectors, rows, is_begun, state, out)
    return out


def check_rows(path, layer: DeltaNet | Mamba1 | Mamba2, seed: int, num_threads: int):
    """The same bits from both, of rows and of the state, from zeros and from a state."""
    spec, rng = layer.spec, np.random.default_rng(seed)
    ours, theirs = np.full(spec.state_size, np.nan, np.float32), np.zeros(spec.state_size, "f4")
    for is_begun, num_rows in ((False, 5), (True, 1), (True, 2 * spec.conv_width)):
        rows = rng.standard_normal((num_rows, sum(spec.products.values()))).astype(np.float32)
        expected = layer(rows, theirs)
        got = native_rows(path, layer, rows, ours, is_begun, num_threads)
        assert got.tobytes() == expected.tobytes()
        assert ours.tobytes() == theirs.tobytes()
