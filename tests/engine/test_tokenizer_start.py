"""A tokenizer takes its time to build; whoever asks the server meanwhile is answered."""

import asyncio
import threading
from dataclasses import replace

import pytest

from tests.busy import PATIENCE_S, until
from tests.contract.engines import GIB, MODEL
from weft.core.config.engine_options import EngineOptions
from weft.engine.clients.local_client import LocalClient
from weft.engine.clients.process_client import ProcessClient
from weft.engine.start.configure import resolve
from weft.model.open import open_model


class HeldFiles(dict):
    """Files that are read as long as the test wants, as a large vocabulary takes to build."""

    def __init__(self, files):
        super().__init__(files)
        self.is_read, self.may_end = threading.Event(), threading.Event()

    def __contains__(self, name):
        self.is_read.set()
        assert self.may_end.wait(PATIENCE_S)
        return super().__contains__(name)


@pytest.mark.parametrize("client_class", [LocalClient, ProcessClient])
async def test_the_tokenizer_is_built_beside_the_event_loop(client_class):
    """Probes are answered while it is."""
    checkpoint = open_model(MODEL)
    options = EngineOptions(model=MODEL, max_model_len=64, num_gpu_blocks_override=16)
    config = resolve(options, checkpoint.card, GIB)
    files = HeldFiles(checkpoint.tokenizer_files)
    slow = replace(checkpoint, tokenizer_files=files)
    starting = asyncio.create_task(client_class.start(slow, config))
    await until(files.is_read.is_set)
    assert not starting.done()
    files.may_end.set()
    client = await starting
    client.shutdown()
    await client.wait_closed()
