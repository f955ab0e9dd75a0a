"""weft.engine.weights.packed_cache: packed weights that outlive the process that packed them."""

import errno
import fcntl
import gc
import os
import shutil
import threading
import weakref

import numpy as np
import pytest

import weft.model
from tests.busy import PATIENCE_S
from tests.compute.steps import Part, step
from tests.contract.engines import GIB
from tests.model.checkpoints import tensors_of, write_checkpoint
from weft.compute.native import code
from weft.compute.native.runner import NativeModel
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.engine.ipc.weight_files import WeightFiles
from weft.engine.start.configure import resolve
from weft.engine.weights import packed_cache, packed_files
from weft.engine.weights.engine_model import EngineModel
from weft.engine.weights.packed_cache import PackedCache
from weft.engine.weights.weight_store import WeightStore
from weft.model.open import open_model


def checkpoint_with(directory, factor):
    """One whose weights no other factor has."""
    return write_checkpoint(directory, tensors={n: t * factor for n, t in tensors_of().items()})


@pytest.fixture
def model(tmp_path):
    """A directory with a checkpoint."""
    return write_checkpoint(tmp_path / "model")


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Where packed files go; pieces are small, so that there are several, and a clock has ticked at once."""
    monkeypatch.setattr(packed_files, "PIECE_BYTES", 4096)
    monkeypatch.setattr(packed_cache, "_CLOCK_TICK_NS", 0)
    return tmp_path / "packed"


def loaded(model, directory, *, max_bytes=GIB, store=None, **options):
    """The model as an engine loads it, once what it keeps is written; and what it computes."""
    given = EngineOptions(
        model=str(model), compute="native", max_model_len=64, num_threads=1, **options
    )
    checkpoint = open_model(given.model)
    config = resolve(given, checkpoint.card, GIB)
    cache = PackedCache(directory, max_bytes, least_bytes=0, delay_s=0.0)
    engine_model = EngineModel.load(config, checkpoint, store=store, packed=cache)
    cache.wait()
    engine_model.allocate_kv()
    batch = step([Part([5, 6, 7, 8], 4, [0], 0, 4)], config.cache_config.block_size)
    return engine_model, engine_model.runner.forward(batch)


def files_in(directory):
    """Names and inodes: a file that was written anew is another."""
    return {path.name: path.stat().st_ino for path in directory.iterdir()}


@pytest.fixture
def packings(monkeypatch):
    """How often weights were packed."""
    done, load = [], NativeModel._load

    def counted(self, *arguments):
        done.append(self)
        load(self, *arguments)

    monkeypatch.setattr(NativeModel, "_load", counted)
    return done


@pytest.mark.parametrize(
    "options",
    [{}, {"quantization": "int8"}, {"quantization": "int4"}, {"dtype": "float32"}],
    ids=str,
)
def test_the_next_start_packs_nothing_and_computes_the_very_bits(
    model, directory, packings, options
):
    """Scales, norms and biases come along, whatever the weights are rounded to."""
    _, expected = loaded(model, directory, **options)
    there = files_in(directory)
    _, logits = loaded(model, directory, **options)
    assert len(packings) == 1
    assert np.array_equal(logits, expected)
    assert len(there) == 1
    assert files_in(directory) == there


@pytest.mark.parametrize("has_huge_pages", [True, False])
def test_a_copy_and_a_map_compute_the_very_bits(
    model, directory, packings, monkeypatch, has_huge_pages
):
    """It is copied where memory has huge pages and the map of a file has not."""
    monkeypatch.setattr(packed_files, "has_huge_pages", lambda: has_huge_pages)
    monkeypatch.setattr(packed_files, "_huge_bytes", lambda: 0)
    _, expected = loaded(model, directory)
    _, logits = loaded(model, directory)
    assert len(packings) == 1
    assert np.array_equal(logits, expected)


def damage_every(num_bytes):
    """Turn a byte in each so many."""

    def damage(path):
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), num_bytes):
            data[at] ^= 1
        path.write_bytes(data)

    return damage


def damage_at(place):
    def damage(path):
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)

    return damage


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    "damage",
    [
        damage_at(0),
        damage_at(5000),
        damage_at(-1),
        damage_at(-20),
        damage_at(-300),
        damage_every(100),
        cut,
        lambda path: path.write_bytes(b""),
        lambda path: path.chmod(0o666),
    ],
    ids="first piece, second piece, magic, length, label, all over, cut, empty, writable by all".split(
        ", "
    ),
)
def test_a_damaged_or_foreign_file_is_packed_anew(model, directory, packings, damage):
    """And takes its place."""
    _, expected = loaded(model, directory)
    [path] = directory.iterdir()
    damage(path)
    _, logits = loaded(model, directory)
    assert len(packings) == 2
    assert np.array_equal(logits, expected)
    _, logits = loaded(model, directory)
    assert len(packings) == 2
    assert np.array_equal(logits, expected)


def test_a_file_that_its_disk_does_not_give_is_packed_anew(
    model, directory, packings, monkeypatch, caplog
):
    """What was kept to save time is no reason not to start."""
    _, expected = loaded(model, directory)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(os, "pread", fail)
        _, logits = loaded(model, directory)
    assert len(packings) == 2
    assert np.array_equal(logits, expected)
    assert "Input/output error; the weights are packed again" in caplog.text


def test_a_link_is_not_followed(model, directory, packings, tmp_path):
    """What it leads to may be anybody's."""
    loaded(model, directory)
    [path] = directory.iterdir()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    loaded(model, directory)
    assert len(packings) == 2


def test_every_byte_of_a_file_counts(model, directory):
    """No digest leaves a byte out: whichever is turned, the file is none of these weights."""
    loaded(model, directory)
    [path] = directory.iterdir()
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 40)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 128]) + data[at + 1 :])
        descriptor = packed_files.open_packed(path)
        label = packed_files.read_label(descriptor)
        assert label is None or not packed_files.read_whole(descriptor, label)[0], at
        os.close(descriptor)


def test_other_weights_of_the_same_size_are_packed_anew(model, directory, packings, tmp_path):
    """Also with the times of those before: nothing sets the time of the change itself."""
    other = checkpoint_with(tmp_path / "other", 2)
    loaded(model, directory)
    [weights] = model.glob("*.safetensors")
    before = weights.stat()
    weights.write_bytes((other / weights.name).read_bytes())
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    _, logits = loaded(model, directory)
    assert len(packings) == 2
    assert np.array_equal(logits, loaded(other, tmp_path / "packed-other")[1])


def test_the_same_weights_with_another_time_are_found(model, directory, packings):
    """They are read then, and compared by digest."""
    loaded(model, directory)
    [weights] = model.glob("*.safetensors")
    os.utime(weights, ns=(1, 1))
    loaded(model, directory)
    assert len(packings) == 1


def test_a_change_within_a_tick_of_the_clock_is_seen(model, directory, packings, monkeypatch):
    """A stamp that was taken right after a change says nothing; the digest does."""
    loaded(model, directory)
    monkeypatch.setattr(packed_cache, "_CLOCK_TICK_NS", 10**18)
    read = []
    digest_of = packed_files.digest_of
    monkeypatch.setattr(
        packed_files, "digest_of", lambda path, *rest: read.append(path) or digest_of(path, *rest)
    )
    loaded(model, directory)
    assert len(packings) == 1
    assert read


@pytest.mark.parametrize("change", ["quantization", "code", "instructions"], ids=str)
def test_other_packings_have_files_of_their_own(model, directory, packings, monkeypatch, change):
    """So that a server of each finds its own."""
    loaded(model, directory)
    options = {}
    if change == "quantization":
        options = {"quantization": "int8"}
    elif change == "code":
        monkeypatch.setattr("weft.compute.native_backend.code_digest", lambda: "another")
    else:
        monkeypatch.setattr("weft.compute.native_backend.usable_paths", lambda: ["portable"])
    loaded(model, directory, **options)
    assert len(packings) == 2
    assert len(files_in(directory)) == 2


def test_the_digest_of_the_code_is_of_the_core_and_of_what_prepares_weights(monkeypatch, tmp_path):
    """Whoever changes that need not remember a version."""
    (tmp_path / "a.py").write_text("1")
    monkeypatch.setattr(weft.model, "__path__", [str(tmp_path)])
    digests = set()
    for text in ("1", "2"):
        (tmp_path / "a.py").write_text(text)
        code.code_digest.cache_clear()
        digests.add(code.code_digest())
    code.code_digest.cache_clear()
    assert len(digests) == 2


def test_the_least_recently_used_make_room(model, directory, tmp_path):
    """Those that are left were used later, whenever they were made."""
    models = [checkpoint_with(tmp_path / f"model-{n}", 1 + n) for n in range(3)]
    loaded(models[0], directory)
    [size] = [path.stat().st_size for path in directory.iterdir()]
    loaded(models[1], directory)
    for path, at in zip(
        sorted(directory.iterdir(), key=lambda p: p.stat().st_mtime_ns), (1, 2), strict=True
    ):
        os.utime(path, ns=(at, at))
    loaded(models[0], directory)  # now the latest
    loaded(models[2], directory, max_bytes=2 * size + size // 2)
    there = [one.model for one in packed_files.all_packed(directory)]
    assert there == [str(models[0]), str(models[2])]


def test_the_bound_is_kept_beside_a_link_to_nothing(model, directory, tmp_path):
    """Whose time cannot be read: the others are found, and make room, all the same."""
    loaded(checkpoint_with(tmp_path / "former", 2), directory)
    [former] = directory.iterdir()
    (directory / "link.packed").symlink_to(tmp_path / "nothing")
    assert [one.path for one in packed_files.all_packed(directory)] == [former]
    loaded(model, directory, max_bytes=former.stat().st_size + 1)
    assert [one.model for one in packed_files.all_packed(directory)] == [str(model)]


def test_what_was_left_unfinished_goes_but_not_what_is_being_written(model, directory):
    """Who writes has a lock, which goes when it is killed."""
    directory.mkdir()
    left = directory / ".unfinished-1-left"
    left.write_bytes(b"x")
    descriptor, written = packed_files.create_unfinished(directory)
    loaded(model, directory)
    assert not left.exists()
    assert written.exists()
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@pytest.mark.parametrize("reason", ["limit", "disk"])
def test_what_has_no_room_is_not_kept_and_that_is_said(
    model, directory, monkeypatch, caplog, reason
):
    """In one line."""
    caplog.set_level("INFO", "weft.engine")
    if reason == "disk":
        usage = shutil.disk_usage("/")._replace(free=1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    loaded(model, directory, max_bytes=100 if reason == "limit" else GIB)
    assert files_in(directory) == {}
    expected = "--packed-cache-bytes is" if reason == "limit" else "has 1000 B left"
    [line] = [one.message for one in caplog.records if "not kept" in one.message]
    assert expected in line


def test_a_directory_that_cannot_be_written_stops_no_start(model, tmp_path, caplog):
    """It is said, and the weights are packed each time."""
    caplog.set_level("INFO", "weft.engine")
    (tmp_path / "file").write_text("")
    engine_model, _ = loaded(model, tmp_path / "file" / "packed")
    assert engine_model.has_weights
    assert any("are not kept" in one.message for one in caplog.records)


def test_engines_of_a_group_are_given_what_is_kept(model, directory, packings):
    """And the first of the next group packs nothing."""
    _, expected = loaded(model, directory)
    files = WeightFiles()
    for _ in range(2):
        _, logits = loaded(model, directory, store=WeightStore(files.current))
        assert np.array_equal(logits, expected)
    assert len(packings) == 1


def test_a_sleep_keeps_nothing_of_the_memory_and_ends_with_what_is_kept(model, directory, packings):
    """To wake up is a start without a process."""
    engine_model, _ = loaded(model, directory)
    engine_model.release(1)
    engine_model.restore_weights()
    assert len(packings) == 1
    assert engine_model.has_weights


def test_weights_that_were_sent_are_not_kept(model, directory, packings, tmp_path):
    """Nor does a file change by them."""
    engine_model, _ = loaded(model, directory)
    there = files_in(directory)
    data = next(directory.iterdir()).read_bytes()
    other = open_model(str(checkpoint_with(tmp_path / "other", 2)))
    engine_model.replace_weights(other, is_lasting=True, restore=lambda runner: None)
    assert len(packings) == 2
    assert files_in(directory) == there
    assert next(directory.iterdir()).read_bytes() == data


@pytest.mark.parametrize("moment", ["before", "while it is read", "while it is written"])
def test_a_sleep_stops_what_is_being_written(model, directory, monkeypatch, moment):
    """Nothing holds the memory then, and nothing half is left."""
    stop = []
    if moment == "while it is read":
        digest_of = packed_files.digest_of
        monkeypatch.setattr(packed_files, "digest_of", lambda *args: stop[0]() or digest_of(*args))
    elif moment == "while it is written":
        create = packed_files.create_unfinished
        monkeypatch.setattr(
            packed_files, "create_unfinished", lambda *args: stop[0]() or create(*args)
        )
    options = EngineOptions(model=str(model), compute="native", max_model_len=64)
    checkpoint = open_model(str(model))
    config = resolve(options, checkpoint.card, GIB)
    delay_s = 3600.0 if moment == "before" else 0.0
    cache = PackedCache(directory, GIB, least_bytes=0, delay_s=delay_s)
    stopped = threading.Event()

    def ask_to_stop():
        cache._keeping[1].set()
        stopped.set()

    stop.append(ask_to_stop)
    engine_model = EngineModel.load(config, checkpoint, packed=cache)
    if moment != "before":
        assert stopped.wait(PATIENCE_S)
    runner = weakref.ref(engine_model.runner)
    engine_model.release(1)
    gc.collect()
    assert runner() is None
    assert not directory.exists() or files_in(directory) == {}


@pytest.mark.parametrize("kind", ["small", "drawn"])
def test_small_models_and_those_without_files_are_not_kept(model, directory, kind):
    """To pack the small takes no longer than to look; what is drawn is in no file."""
    given = str(model) if kind == "small" else "embedded:random?layers=1&hidden=16"
    options = EngineOptions(model=given, compute="native", max_model_len=64)
    checkpoint = open_model(given)
    config = resolve(options, checkpoint.card, GIB)
    least = {} if kind == "small" else {"least_bytes": 0}
    cache = PackedCache(directory, GIB, delay_s=0.0, **least)
    EngineModel.load(config, checkpoint, packed=cache)
    cache.wait()
    assert not directory.exists()


def test_the_users_directory_and_bound(model, monkeypatch, tmp_path):
    """XDG_CACHE_HOME, and --packed-cache-bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert packed_files.packed_directory() == tmp_path / "weft" / "packed"
    card = open_model(str(model)).card

    def cache(size):
        options = EngineOptions(model=str(model), max_model_len=64, packed_cache_bytes=size)
        return PackedCache.of(resolve(options, card, GIB))

    assert cache(0) is None
    assert cache(None)._max_bytes == 32 * GIB
    with pytest.raises(ConfigError, match="--packed-cache-bytes must be at least 0"):
        cache(-1)


def test_a_user_without_a_home_has_none(model, monkeypatch):
    """As in a container whose user has no entry in passwd."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    card = open_model(str(model)).card
    config = resolve(EngineOptions(model=str(model), max_model_len=64), card, GIB)
    assert packed_files.packed_directory() is None
    assert PackedCache.of(config) is None
    assert list(packed_files.all_packed(None)) == []
