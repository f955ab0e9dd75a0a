"""Runners for tests, by the words of the command line."""

import msgspec

from weft.compute.backends import BACKENDS, choose
from weft.compute.native import Machine, NativeRunner, Rounding, usable_paths
from weft.compute.protocols.runner import Runner
from weft.core.config.engine_options import EngineOptions
from weft.model.files.checkpoint import Checkpoint

# All that reads rounded weights: as they are, widened, or rounded to int8.
READERS = [
    (path, flags)
    for path in (*usable_paths(), "reference")
    for flags in ({}, {"quantization": "none"}, {"quantization": "int8"})
]


def load_runner(checkpoint: Checkpoint, *, max_model_len: int | None = None, **flags) -> Runner:
    """The runner that would serve; None is the longest sequence that the model allows."""
    compute = choose(EngineOptions(**flags), checkpoint.card)
    if "num_threads" not in flags and compute.compute == "reference":
        compute = msgspec.structs.replace(compute, num_threads=1)
    length = max_model_len or checkpoint.card.max_position_embeddings
    return BACKENDS[compute.compute].load(checkpoint, compute, max_model_len=length)


def load_on(path: str, checkpoint: Checkpoint, **flags) -> Runner:
    """That of a path of the native core, best or not; of "reference" it is numpy's."""
    if path == "reference":
        return load_runner(checkpoint, compute=path, **flags)
    compute = choose(EngineOptions(compute="native", **flags), checkpoint.card)
    return NativeRunner(
        checkpoint.spec,
        checkpoint.map(),
        dtype=checkpoint.card.dtype,
        max_model_len=checkpoint.card.max_position_embeddings,
        rounding=Rounding(compute.quantization, compute.kv_cache_dtype),
        machine=Machine(path, 1),
    )
