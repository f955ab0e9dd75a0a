"""The checkpoint that is run, and an engine of it for each module: a start takes a minute or more."""

import pytest
import pytest_asyncio

from tests.model.checkpoints import CONFIG, write_checkpoint
from tests.vllm.engines import engine

# Small, but for what vLLM's kernels ask of a CPU: heads of 32 numbers.
SMALL = {
    **CONFIG,
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 64,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A Llama of random numbers, in float32."""
    return write_checkpoint(tmp_path_factory.mktemp("vllm") / "llama", SMALL)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(checkpoint):
    """Shared: who pauses it resumes it."""
    async with engine(checkpoint, max_model_len=1000) as client:
        yield client
