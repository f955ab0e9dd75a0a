"""One engine of vLLM's for all tests that have the marker: a start takes a minute or more."""

import asyncio
import os

import pytest
import pytest_asyncio

from tests.model.checkpoints import CONFIG, write_checkpoint
from weft.core.config import EngineOptions
from weft.text.tokenizer import tokenizer_in
from weft.vllm.launch import launch
from weft.vllm.settings import to_settings

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
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    return write_checkpoint(tmp_path_factory.mktemp("vllm") / "llama", SMALL)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client(checkpoint):
    """Shared: who pauses it resumes it."""
    # vLLM's "auto" would round float32.
    options = EngineOptions(model=str(checkpoint), dtype="float32", max_model_len=1000)
    settings = to_settings(options, {"enforce_eager": True}, None)
    tokenizer = tokenizer_in(checkpoint)
    launched = await asyncio.to_thread(launch, settings, tokenizer)
    client = await launched.connect(tokenizer)
    yield client
    client.shutdown()
    await client.wait_closed()
