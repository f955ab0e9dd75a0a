"""Weights from outside for several engines, which have one copy: all take them, or none."""

import signal

import pytest

from tests.busy import until
from tests.engine.test_weight_updates import (
    PARAMS,
    PROMPT,
    answer_of,
    begin,
    engine,
    missing,
    not_a_number,
    others,
    push,
    send,
    twice,
)
from tests.model.checkpoints import tensors_of, write_checkpoint
from weft.core.errors import FailedPrecondition
from weft.engine.clients.data_parallel import DataParallelClient


async def answers(group):
    """What each engine says."""
    ranks = range(group.info.data_parallel_size)
    prompts = [group.generate(PROMPT, PARAMS, f"r{n}", data_parallel_rank=n) for n in ranks]
    finals = [[output async for output in outputs][-1] for outputs in prompts]
    return [final.outputs[0] for final in finals]


async def push_paused(group, tensors):
    """An update as several engines take it."""
    await group.pause_generation()
    try:
        await push(group, tensors)
    finally:
        await group.resume_generation()


@pytest.mark.slow
async def test_several_engines_change_their_weights_together(tmp_path):
    """All or none of them, one copy for all; who dies has the new ones when it is back, and who comes later too."""
    path = write_checkpoint(tmp_path / "m")
    before, after = await answer_of(tmp_path, tensors_of()), await answer_of(tmp_path, others())
    options = {"data_parallel_size": 2, "enable_elastic_ep": True, "num_threads": 3}
    async with engine(path, DataParallelClient, **options) as group:
        assert await answers(group) == [before] * 2
        with pytest.raises(FailedPrecondition, match="pause_generation"):
            await push(group, others())
        for failing in (not_a_number, missing, twice):
            await group.pause_generation()
            with pytest.raises(FailedPrecondition):
                await failing(group)
            await group.resume_generation()
            assert await answers(group) == [before] * 2
        await push_paused(group, others())
        assert await answers(group) == [after] * 2
        group._group.ranks[0].client._child.process.send_signal(signal.SIGKILL)
        await until(lambda: group.is_degraded)
        await until(lambda: not group.is_degraded)
        await group.scale_elastic_ep(3)
        assert await answers(group) == [after] * 3
        await push_paused(group, tensors_of())
        assert await answers(group) == [before] * 3


@pytest.mark.slow
async def test_several_engines_wake_with_the_files_that_were_sent(tmp_path):
    """And with those of the model after a sleep that discards them."""
    path, sent = write_checkpoint(tmp_path / "m"), others()
    allowed = tmp_path / "allowed"
    write_checkpoint(allowed, tensors=sent)
    expected = await answer_of(tmp_path, sent)
    transfer = {"backend": "safetensors", "directory": str(allowed)}
    options = {"data_parallel_size": 2, "num_threads": 2}
    async with engine(path, DataParallelClient, transfer=transfer, **options) as group:
        former = await answers(group)
        await group.pause_generation()
        await begin(group)
        await send(group, path="model.safetensors")
        await group.finish_weight_update()
        await group.resume_generation()
        assert await answers(group) == [expected] * 2
        await group.sleep(1)
        await group.wake_up()
        assert await answers(group) == [expected] * 2
        await group.sleep(2)
        await group.wake_up()
        assert await answers(group) == former
