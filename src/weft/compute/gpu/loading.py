"""Loads a checkpoint into a runner on the card."""

from weft.compute.gpu.card_tensors import TYPES
from weft.compute.gpu.memory import refusing_memory
from weft.compute.gpu.runner import GpuRunner
from weft.compute.gpu.weights import Reader
from weft.model.spec import ModelSpec
from weft.model.weights import Weights


def load_runner(
    spec: ModelSpec, weights: Weights, dtype: str, max_model_len: int, quantization: str | None
) -> GpuRunner:
    """Reads the weights and returns the runner; raises `MemoryError` if the weights do not fit the card."""
    with refusing_memory():
        reader = Reader(spec, weights, TYPES[dtype], quantization)
        return GpuRunner(reader, max_model_len=max_model_len)
