"""Adapters of vLLM's engine beside those of ours."""

import pytest
import pytest_asyncio

from tests.model.adapters import write_adapter
from tests.vllm.conftest import SMALL
from tests.vllm.engines import FINAL, engine, final
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import BadRequest, NotFound
from weft.core.values.types import LoRARequest, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.start.configure import resolve
from weft.model.families.decoders import read_config, read_spec
from weft.model.open import open_model

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

SCORED = SamplingParams(max_tokens=12, logprobs=2, **FINAL)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """Two, of different weights."""
    spec = read_spec(read_config(SMALL, "config.json"))
    root = tmp_path_factory.mktemp("adapters")
    return [
        LoRARequest(
            lora_name=name,
            lora_int_id=number,
            lora_path=str(write_adapter(root / name, spec, rank=8, seed=number)),
        )
        for number, name in enumerate(("sql", "law"), 1)
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(checkpoint):
    """One for all."""
    options = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, "max_model_len": 512}
    async with engine(checkpoint, **options) as client:
        yield client


async def test_an_adapter_answers_as_in_our_engine(client, checkpoint, adapters):
    """Beside the model itself and another one, whose answers differ."""
    for adapter in adapters:
        assert await client.add_lora(adapter)
    assert await client.list_loras() == {1, 2}
    got = [await final(client, SCORED, lora_request=one) for one in (None, *adapters)]
    found = open_model(str(checkpoint))
    options = EngineOptions(
        model=str(checkpoint), max_model_len=256, num_gpu_blocks_override=64, enable_lora=True
    )
    ours = await LocalClient.start(found, resolve(options, found.card, 1 << 30))
    try:
        for adapter in adapters:
            await ours.add_lora(adapter)
        expected = [await final(ours, SCORED, lora_request=one) for one in (None, *adapters)]
    finally:
        ours.shutdown()
        await ours.wait_closed()
    tokens = [output.outputs[0].token_ids for output in got]
    assert tokens == [output.outputs[0].token_ids for output in expected]
    assert len({tuple(one) for one in tokens}) == 3
    for mine, theirs in zip(got, expected, strict=True):
        scores = [
            [next(iter(row.values())).logprob for row in output.outputs[0].logprobs]
            for output in (mine, theirs)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    (load,) = await client.get_loads()
    assert (load.num_loras, load.max_loras) == (2, 2)


async def test_an_adapter_that_is_gone_or_none_is_refused(client, adapters):
    """By name; the others stay."""
    sql, law = adapters
    assert await client.remove_lora(sql.lora_int_id)
    with pytest.raises(NotFound, match="sql"):
        await final(client, SCORED, lora_request=sql)
    nowhere = LoRARequest(lora_name="nowhere", lora_int_id=9, lora_path="/nowhere")
    with pytest.raises(BadRequest, match=r"lora_path.*nowhere"):
        await client.add_lora(nowhere)
    assert set(client.lora_requests) == {"law"}
    assert (await final(client, SCORED, lora_request=law)).is_finished


async def test_an_adapter_stays_when_it_is_pinned(client, adapters):
    """Which vLLM's own cache of them does."""
    _, law = adapters
    await client.add_lora(law)
    assert await client.pin_lora(law.lora_int_id)
