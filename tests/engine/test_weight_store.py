"""weft.engine.weights.weight_store: weights that are packed once, for all engines of a server."""

import asyncio
import gc
import signal

import numpy as np
import psutil
import pytest

from tests.busy import until
from tests.compute.steps import Part, step
from tests.contract.engines import GIB, data_parallel, local
from tests.engine.test_data_parallel import last
from tests.model.checkpoints import tensors_of, write_checkpoint
from weft.compute.backends import load_model
from weft.core.config.engine_options import EngineOptions
from weft.engine.ipc.weight_files import WeightFiles
from weft.engine.start.configure import resolve
from weft.engine.weights.engine_model import EngineModel
from weft.engine.weights.weight_store import WeightStore
from weft.model.open import open_model

SMALL = "embedded:random?layers=1&hidden=16&heads=2&kv_heads=1&head_dim=8&intermediate=16&vocab=270"
LARGE = (
    "embedded:random?layers=4&hidden=1024&heads=8&kv_heads=8&head_dim=128&intermediate=4096&vocab=8192"
    "&dtype=float32"
)


def shared_by(*files_of):
    """Models of the same weights, as engines have them that were given these files."""
    options = EngineOptions(
        model=SMALL, max_model_len=64, num_gpu_blocks_override=16, num_threads=1
    )
    checkpoint = open_model(SMALL)
    config = resolve(options, checkpoint.card, GIB)
    return [EngineModel.load(config, checkpoint, store=WeightStore(f.current)) for f in files_of]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quantization": "int8"},
        {"quantization": "int4"},
        {"model": SMALL + "&dtype=float32"},
        {"model": SMALL.replace("layers=1", "layers=2") + "&mamba=4"},
    ],
    ids=str,
)
def test_what_is_mapped_computes_the_very_bits(options):
    """Scales, norms and biases come along, which lie beside the packed matrices."""
    options = EngineOptions(**{"model": SMALL, "max_model_len": 64, "num_threads": 1, **options})
    checkpoint = open_model(options.model)
    config = resolve(options, checkpoint.card, GIB)
    files = WeightFiles()
    store = WeightStore(files.current)
    models = [EngineModel.load(config, checkpoint, store=s) for s in (None, store, store)]
    logits = []
    for model in models:
        model.allocate_kv()
        batch = step([Part([5, 6, 7, 8], 4, [0], 0, 4)], config.cache_config.block_size)
        logits.append(model.runner.forward(batch))
    assert all(np.array_equal(one, logits[0]) for one in logits)


def size_of(files):
    """Bytes of the file that weights are in."""
    with open(files.current.paths[0], "rb") as file:
        return file.seek(0, 2)


def test_who_comes_first_packs_and_the_memory_goes_with_the_last():
    """Whoever sleeps leaves it to the others; who wakes then packs again."""
    files = WeightFiles()
    first, second = shared_by(files, files)
    size = size_of(files)
    assert size
    first.release(1)
    gc.collect()
    assert size_of(files) == size
    second.release(1)
    assert size_of(files) == 0
    second.restore_weights()
    assert size_of(files) == size


def test_engines_that_started_after_an_update_wake_from_a_sleep_that_discards_it():
    """They could only map what was sent; now all of them read the model anew, whoever comes first."""
    files = WeightFiles()
    [sender] = shared_by(files)
    files.use(files.current)
    first, second = shared_by(files, files)  # started again: the others had the weights
    for model in (sender, first, second):
        model.release(2)
    assert size_of(files) == 0
    first.restore_weights()
    second.restore_weights()
    assert first.has_weights
    assert second.has_weights


def test_a_file_that_was_left_half_packed_is_packed_anew():
    """Whoever was packing has died, or had not the memory."""
    files = WeightFiles()
    with open(files.current.paths[0], "r+b") as file:
        file.write(b"x" * 10_000)
    [model] = shared_by(files)
    assert model.has_weights
    with open(files.current.paths[0], "rb") as file:
        assert b"x" * 100 not in file.read()


def test_a_file_of_another_model_is_refused():
    """Nothing is read behind its end."""
    files = WeightFiles()
    shared_by(files)
    checkpoint = open_model(SMALL.replace("layers=1", "layers=2"))
    config = resolve(EngineOptions(model=SMALL, max_model_len=64), checkpoint.card, GIB)
    store = WeightStore(files.current)
    with pytest.raises(ValueError, match="shorter than"):
        store.load(lambda file: load_model(checkpoint, config, file), None)


def test_weights_that_are_not_those_of_the_files_are_like_no_others(tmp_path):
    """One of several engines that starts again maps what the others have, whatever lies there by now."""
    path, files = write_checkpoint(tmp_path / "m"), WeightFiles()

    def fingerprint(store=None):
        checkpoint = open_model(str(path))
        options = EngineOptions(model=str(path), max_model_len=64, num_threads=1)
        config = resolve(options, checkpoint.card, GIB)
        return EngineModel.load(config, checkpoint, store=store).fingerprint()

    store = WeightStore(files.current)
    assert fingerprint(store) == fingerprint(store) == fingerprint()
    write_checkpoint(path, tensors={name: 2 * tensor for name, tensor in tensors_of().items()})
    of_files = fingerprint()
    assert fingerprint(WeightStore(files.current)) != of_files


@pytest.mark.slow
async def test_several_engines_have_one_copy_of_the_weights():
    """Answers are those of one engine, also after a sleep and the death of the one that packed."""
    options = {"model": LARGE, "num_threads": 3}
    async with local(model=LARGE) as alone:
        expected = [await last(alone, number) for number in range(4)]
    async with data_parallel(**options, data_parallel_size=3) as group:
        weight_bytes = 3 * await _packed_bytes(group)
        pids = [rank.client._child.process.pid for rank in group._group.ranks]
        assert [await last(group, n, data_parallel_rank=n % 3) for n in range(4)] == expected
        maps = [_packed(pid) for pid in pids]
        assert sum(pss for pss, _ in maps) < 0.5 * weight_bytes
        assert all(rss > 0.9 * weight_bytes / 3 for _, rss in maps)
        await group.sleep(1)
        assert await _packed_bytes(group) == 0
        await group.wake_up()
        psutil.Process(pids[0]).send_signal(signal.SIGKILL)
        await until(lambda: group.is_degraded)
        await until(lambda: not group.is_degraded)
        answers = await asyncio.gather(
            *(last(group, n, data_parallel_rank=n % 3) for n in range(4))
        )
        assert answers == expected


async def _packed_bytes(group):
    return size_of(group.controls.weights)


def _packed(pid):
    """What of the packed weights is this process's, shared pages by parts; and what it can reach at once."""
    maps = psutil.Process(pid).memory_maps(grouped=True)
    packed = [m for m in maps if "weft-packed" in m.path]
    return sum(m.pss for m in packed), sum(m.rss for m in packed)
