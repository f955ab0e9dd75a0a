"""Runners for tests, by the words of the command line."""

import msgspec

from weft.compute.backends import BACKENDS, choose
from weft.compute.runner import Runner
from weft.core.config import EngineOptions
from weft.model.checkpoint import Checkpoint


def load_runner(checkpoint: Checkpoint, *, max_model_len: int | None = None, **flags) -> Runner:
    """The runner that would serve; None is the longest sequence that the model allows."""
    compute = choose(EngineOptions(**flags), checkpoint.card)
    if "num_threads" not in flags and compute.compute == "reference":
        compute = msgspec.structs.replace(compute, num_threads=1)
    length = max_model_len or checkpoint.card.max_position_embeddings
    return BACKENDS[compute.compute].load(checkpoint, compute, max_model_len=length)
