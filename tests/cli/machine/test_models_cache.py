"""Models in the Hub's cache, which is elsewhere for each test: weft.cli.machine.models."""

import json
import os
import pty
import re
import subprocess
from contextlib import closing
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import WEFT, clean_environment, here, weft
from tests.cli.terminal import Terminal
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from tests.model.hub_server import hub_settings, serving_hub
from tests.model.test_hub import cache_snapshot
from weft.engine.weights import packed_files

WIDE = {**CONFIG, "intermediate_size": 100_000}


@pytest.fixture
def hub(tmp_path: Path) -> dict[str, str]:
    """The environment of a cache with one model in it."""
    cache_snapshot(tmp_path)
    return {
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(tmp_path / "packed"),
    }


def models(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`weft models` in this process."""
    with hub_settings(**environment):
        return here("models", *argv, **environment)


def listed(hub: dict[str, str]) -> list[dict]:
    return json.loads(models("--json", **hub).stdout)


def cached(hub: dict[str, str]) -> list[str]:
    """The models whose files are there."""
    return [path.name for path in Path(hub["HF_HOME"], "hub").glob("models--*")]


def test_a_cached_model_is_listed_by_the_name_that_serves_it(hub: dict[str, str]):
    """Its Hub id, its size and its family."""
    (model,) = listed(hub)
    assert (model["name"], model["source"], model["model_type"]) == (
        "someone/small",
        "hub",
        "llama",
    )
    assert model["refusal"] is None
    assert model["num_bytes"] > 0


def test_a_listed_model_has_its_short_name_and_last_use(hub: dict[str, str]):
    """The short name is what to type; a day of use says what can be removed."""
    cache = Path(hub["HF_HOME"], "hub")
    (cache / "models--someone--small").rename(cache / "models--Qwen--Qwen3-0.6B")
    (model,) = listed(hub)
    assert model["short_name"] == "qwen3:0.6b"
    assert datetime.fromisoformat(model["last_used"]).tzinfo is not None
    table = models(**hub).stdout.splitlines()
    assert table[0].split() == ["model", "size", "last", "used", "type", "served"]
    assert table[1].startswith("Qwen/Qwen3-0.6B (qwen3:0.6b)  ")
    result = models("rm", "qwen3:0.6b", "--yes", **hub)
    assert result.returncode == 0
    assert cached(hub) == []


def test_short_names_are_listed(hub: dict[str, str]):
    """With the model that each stands for."""
    assert "qwen3:0.6b  " in models("names", **hub).stdout
    names = json.loads(models("names", "--json", **hub).stdout)
    assert names["qwen3:0.6b"] == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm2:3b", "similar short names: smollm2:135m, smollm2:360m, smollm2:1.7b"),
        ("nothing", "must be a Hub id, OWNER/NAME, or a short name (weft models names)"),
    ],
)
def test_what_is_no_model_is_not_pulled(hub: dict[str, str], name: str, words: str):
    """The error has the names that there are."""
    result = models("pull", name, **hub)
    assert result.returncode == 2
    assert words in result.stderr


def test_without_a_cache_there_are_none(tmp_path: Path):
    """That is no mistake; the next step is said."""
    result = models(HF_HOME=str(tmp_path / "empty"), XDG_CACHE_HOME=str(tmp_path / "empty"))
    assert result.returncode == 0
    assert "weft models pull" in result.stdout


def test_a_model_is_removed_with_yes(hub: dict[str, str]):
    """All of it: the next list is empty."""
    result = weft("models", "rm", "someone/small", "--yes", **hub)
    assert (result.returncode, result.stdout.split(",")[0]) == (0, "removed someone/small")
    assert listed(hub) == []


def test_what_was_removed_is_said_to_scripts(hub: dict[str, str]):
    """By name and size, as JSON."""
    result = models("rm", "someone/small", "--yes", "--json", **hub)
    said = json.loads(result.stdout)
    assert (said["name"], said["removed"]) == ("someone/small", True)
    assert said["size_bytes"] > 0


def test_nothing_is_removed_without_somebody_to_confirm(hub: dict[str, str]):
    """A pipe cannot say yes."""
    result = weft("models", "rm", "someone/small", stdin="y\n", **hub)
    assert result.returncode == 2
    assert "--yes" in result.stderr
    assert len(cached(hub)) == 1


@pytest.mark.parametrize(("answer", "status", "num_left"), [("n", 1, 1), ("", 1, 1), ("y", 0, 0)])
def test_a_terminal_is_asked_first(hub: dict[str, str], answer: str, status: int, num_left: int):
    """Only a clear yes removes."""
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    result = subprocess.run(
        [*WEFT, "models", "rm", "someone/small"],
        stdin=theirs, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env=clean_environment(**hub),
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert result.stdout.startswith("remove someone/small (")
    assert (result.returncode, len(cached(hub))) == (status, num_left)


def test_only_what_is_in_the_cache_is_removed(hub: dict[str, str], tmp_path: Path):
    """A directory is its owner's to remove."""
    result = models("rm", str(tmp_path), "--yes", **hub)
    assert result.returncode == 2
    assert "weft models rm removes only models of the Hub cache" in result.stderr
    assert len(cached(hub)) == 1


def test_pull_takes_what_is_cached_and_refuses_what_is_no_hub_id(hub: dict[str, str]):
    """A model that is there already is not fetched again."""
    result = models("pull", "someone/small", **hub)
    assert (result.returncode, "weft serve someone/small" in result.stdout) == (0, True)
    assert "Hub id" in models("pull", "small", **hub).stderr
    offline = models("pull", "someone/other", **hub)
    assert (offline.returncode, "HF_HUB_OFFLINE" in offline.stderr) == (2, True)


def test_pull_shows_its_bytes_on_a_terminal(tmp_path: Path):
    """One line of ours, written over: how many there are, of how many; no bars of the Hub's client."""
    model = write_checkpoint(tmp_path / "model", WIDE, tensors_of(WIDE, np.float32))
    with (
        serving_hub("someone/wide", model.iterdir()) as hub,
        closing(
            Terminal("models", "pull", "someone/wide", HF_HOME=str(tmp_path / "home"), **hub)
        ) as terminal,
    ):
        shown = terminal.read_rest()
    assert len(set(re.findall(rb"fetching someone/wide, ([\d.]+) MiB of", shown))) > 2
    assert b"Reconstruct" not in shown
    assert b"someone/wide is at" in shown


def test_packed_weights_are_listed_and_removed_with_their_model(hub: dict[str, str], monkeypatch):
    """By the name that was served; those of another model stay."""
    monkeypatch.setenv("XDG_CACHE_HOME", hub["XDG_CACHE_HOME"])
    directory = packed_files.packed_directory()
    assert directory is not None
    directory.mkdir(parents=True)
    for number, name in enumerate(("someone/small", "someone/small", "/models/other")):
        label = packed_files.Label(
            key="", model=name, sources=(), looked_ns=0, num_bytes=1000, digests=()
        )
        (directory / f"{number}.packed").write_bytes(bytes(1000) + packed_files.footer_of(label))
    packed = [model["name"] for model in listed(hub) if model["source"] == "packed"]
    assert sorted(packed) == ["/models/other", "someone/small", "someone/small"]
    assert models("rm", "someone/small", "--yes", **hub).returncode == 0
    assert [model["name"] for model in listed(hub)] == ["/models/other"]
    assert models("rm", "/models/other", "--yes", **hub).returncode == 0
    assert listed(hub) == []
