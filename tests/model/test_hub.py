"""Hub ids without a network: what is cached is served, what is not is refused at once."""

import os
import subprocess
import sys
import time

from tests.busy import PATIENCE_S, is_within
from tests.model.checkpoints import tensors_of, write_checkpoint, write_shards

OPEN = """
import sys
from weft.core.errors import ConfigError
from weft.model.open import open_model
try:
    print("opened", open_model(sys.argv[1], revision=sys.argv[2] or None).card.name)
except ConfigError as error:
    print("refused", error)
"""


def open_elsewhere(home, name, revision="", **environment):
    """Open `name` in a process of its own, where the Hub's settings are read anew."""
    settings = {"HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    result = subprocess.run(
        [sys.executable, "-c", OPEN, name, revision],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def cache_snapshot(home):
    """Lay out a sound checkpoint as the Hub's cache does."""
    commit = "c" * 40
    model = home / "hub" / "models--someone--small"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(commit)
    (model / "snapshots").mkdir()
    return write_checkpoint(model / "snapshots" / commit)


def test_a_cached_model_opens_offline(tmp_path):
    """With every file in the cache no question is asked of the Hub."""
    cache_snapshot(tmp_path)
    assert open_elsewhere(tmp_path, "someone/small", HF_HUB_OFFLINE="1").startswith("opened")


def test_an_incomplete_snapshot_does_not_count(tmp_path):
    """A download that stopped half-way is not taken for the model."""
    directory = cache_snapshot(tmp_path)
    write_shards(directory, tensors_of())
    (directory / "model-00002-of-00002.safetensors").unlink()
    output = open_elsewhere(tmp_path, "someone/small", HF_HUB_OFFLINE="1")
    assert "not in the local cache, and HF_HUB_OFFLINE is set; unset it to download" in output


def test_an_index_that_names_no_files_does_not_count(tmp_path):
    """What is no name of a file is no file that is there."""
    directory = cache_snapshot(tmp_path)
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": ["b"]}}')
    output = open_elsewhere(tmp_path, "someone/small", HF_HUB_OFFLINE="1")
    assert "not in the local cache" in output


def test_without_a_network_the_answer_comes_at_once(tmp_path):
    """One sentence says what is wrong and what to do, within seconds and without retries."""
    before = time.perf_counter()
    output = open_elsewhere(
        tmp_path, "someone/small", HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0"
    )
    assert is_within(time.perf_counter() - before, 10)
    assert output.startswith("refused someone/small: not in the local cache, and the Hub cannot be")
    assert "give the directory of a local copy" in output
    assert output.count("\n") == 1
