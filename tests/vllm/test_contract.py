"""What every `EngineClient` promises (`tests/contract`), of vLLM's engine."""

import pytest
import pytest_asyncio

from tests.contract import test_engine_client as contract

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

NOT_HERE = {
    # Reasoning ends where the parser says that vLLM was started with, not at any text.
    "test_the_form_begins_behind_a_thought",
    # It forbids the first letter, which is a space in what this model writes: see `test_engine.py`.
    "test_bad_words_do_not_come",
}
TESTS = {
    name: value
    for name, value in vars(contract).items()
    if name.startswith("test_") and name not in NOT_HERE
}
globals().update(TESTS)


@pytest_asyncio.fixture(loop_scope="session")
async def engine(client):
    """The one that all of them share, as it was before."""
    yield client
    if await client.is_paused():
        await client.resume_generation()


constrained = controlled = in_process = engine
