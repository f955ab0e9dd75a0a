"""Hub ids without a network: what is cached is served, what is not is refused at once."""

import os
import subprocess
import sys
import time

import pytest

from tests.busy import PATIENCE_S, is_within
from tests.model.bpe_files import GPT2_TOKENS, write_bpe_files
from tests.model.checkpoints import tensors_of, write_checkpoint, write_shards
from tests.model.gguf.files import write_gguf
from tests.model.hub_server import hub_settings, serving_hub
from weft.core.errors import ConfigError
from weft.model.hub.short_names import SHORT_NAMES, full_name
from weft.model.open import find_model, is_hub_id, open_model

OPEN = """
import sys
from weft.core.errors import ConfigError
from weft.model.open import open_model
try:
    print("opened", open_model(sys.argv[1], revision=sys.argv[2] or None).card.name)
except ConfigError as error:
    print("refused", error)
"""


def open_offline(home, name):
    """Open `name` of the cache in `home`, and say how that went."""
    with hub_settings(HF_HOME=str(home), HF_HUB_OFFLINE="1"):
        try:
            return f"opened {open_model(name).card.name}\n"
        except ConfigError as error:
            return f"refused {error}\n"


def open_elsewhere(home, name, revision="", **environment):
    """Open `name` in a process of its own, where the Hub's settings are read anew, and may name a server."""
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


def test_cached_shards_need_no_index(tmp_path):
    """All that their names speak of must be there."""
    directory = cache_snapshot(tmp_path)
    write_shards(directory, tensors_of())
    (directory / "model.safetensors.index.json").unlink()
    assert open_offline(tmp_path, "someone/small").startswith("opened")
    (directory / "model-00002-of-00002.safetensors").unlink()
    output = open_offline(tmp_path, "someone/small")
    assert "not in the local cache" in output


def test_gpt2_is_found_without_its_owner(tmp_path):
    """As tutorials call it; what is refused is named in full."""
    output = open_offline(tmp_path, "gpt2")
    assert output.startswith("refused openai-community/gpt2: not in the local cache")


@pytest.mark.parametrize("name", ["tiny:1b", "TINY:1B"])
def test_a_short_name_opens_the_model_it_stands_for(tmp_path, name, monkeypatch):
    """The model keeps the name that was asked for; a name in upper case is the same."""
    cache_snapshot(tmp_path)
    monkeypatch.setattr("weft.model.hub.short_names.SHORT_NAMES", {"tiny:1b": "someone/small"})
    assert open_offline(tmp_path, name) == f"opened {name}\n"


def test_a_directory_of_a_short_name_goes_first(tmp_path, monkeypatch):
    """A user's own files are never replaced by those of the Hub."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "qwen3:0.6b")
    assert find_model("qwen3:0.6b").card.num_parameters < 10**6


def test_an_unknown_size_names_those_there_are():
    """And a name that is only misspelt, the nearest."""
    with pytest.raises(
        ConfigError, match=r"similar ones: smollm2:135m, smollm2:360m, smollm2:1\.7b$"
    ):
        find_model("smollm2:2b")
    with pytest.raises(ConfigError, match=r"similar ones: tinyllama:1\.1b"):
        find_model("tinylama:1.1b")
    with pytest.raises(ConfigError, match=r"a short name .weft models names. or one of embedded"):
        find_model("nothing-like-it")


def test_every_short_name_is_of_a_model_on_the_hub():
    """Names are in lower case; what they stand for has the form of a Hub id, perhaps with a file."""
    for short, source in SHORT_NAMES.items():
        repo_id, _, file = source.partition(":")
        assert short == short.lower()
        assert is_hub_id(repo_id)
        assert not is_hub_id(short)
        assert not file or "GGUF" in repo_id
        assert full_name(short) == source


def test_an_error_without_network_names_the_models_that_are_there(tmp_path):
    """Those need no network."""
    cache_snapshot(tmp_path)
    output = open_offline(tmp_path, "someone/other")
    assert output.endswith("give the directory of a local copy; the cache has someone/small\n")


def test_an_incomplete_snapshot_does_not_count(tmp_path):
    """A download that stopped half-way is not taken for the model."""
    directory = cache_snapshot(tmp_path)
    write_shards(directory, tensors_of())
    (directory / "model-00002-of-00002.safetensors").unlink()
    output = open_offline(tmp_path, "someone/small")
    assert "not in the local cache, and HF_HUB_OFFLINE is set; unset it to download" in output


def test_an_index_that_names_no_files_does_not_count(tmp_path):
    """What is no name of a file is no file that is there."""
    directory = cache_snapshot(tmp_path)
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": ["b"]}}')
    output = open_offline(tmp_path, "someone/small")
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


def test_a_cached_gguf_file_opens_offline_by_its_name(tmp_path):
    """With a colon behind the id; of a file that was split all parts must be there."""
    directory = cache_snapshot(tmp_path)
    for number in (1, 2):
        write_gguf(directory / f"m-0000{number}-of-00002.gguf", directory)
    (directory / "m-00001-of-00002.gguf").rename(directory / "m.gguf")
    output = open_offline(tmp_path, "someone/small:m.gguf")
    assert output == "opened someone/small:m.gguf\n"
    output = open_offline(tmp_path, "someone/small:m-00002-of-00002.gguf")
    assert "not in the local cache" in output


@pytest.mark.slow
def test_a_gguf_file_is_found_by_the_type_of_its_blocks(tmp_path):
    """As vLLM and llama.cpp have it: on the Hub, then in the cache; its letters may be small. The projector beside it
    is downloaded too, and not used if it is none of this model."""
    name, home = "someone/small:Q8_0", tmp_path / "home"
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    (tmp_path / "files").mkdir()
    for file in ("m-q8_0.gguf", "mmproj-Q8_0.gguf", "mmproj-F16.gguf", "m-IQ8_0.gguf"):
        write_gguf(tmp_path / "files" / file, checkpoint)
    with serving_hub("someone/small", (tmp_path / "files").iterdir()) as environment:
        assert open_elsewhere(home, name, **environment) == f"opened {name}\n"
    files = {path.name for path in home.rglob("*.gguf")}
    assert files == {"m-q8_0.gguf", "mmproj-F16.gguf"}
    assert open_offline(home, name) == f"opened {name}\n"


@pytest.mark.slow
def test_weights_of_any_name_are_downloaded(tmp_path):
    """With what says how they were rounded, as older quantizers published them, and how pictures are prepared."""
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    (checkpoint / "model.safetensors").rename(checkpoint / "gptq_model-4bit-128g.safetensors")
    (checkpoint / "quantize_config.json").write_text('{"bits": 4, "group_size": 128}')
    (checkpoint / "preprocessor_config.json").write_text("{}")
    home = tmp_path / "home"
    with serving_hub("someone/small", checkpoint.iterdir()) as environment:
        assert open_elsewhere(home, "someone/small", **environment) == "opened someone/small\n"
    assert list(home.rglob("quantize_config.json"))
    assert list(home.rglob("preprocessor_config.json"))
    assert open_offline(home, "someone/small").startswith("opened")


def open_from_hub(home, name, files, discussions=None):
    """Open `name` where the Hub has its model with these files, none of which may be asked for."""
    paths = [home / "nowhere" / file for file in files]
    with serving_hub("someone/old", paths, discussions=discussions) as environment:
        return open_elsewhere(home, name, **environment)


def pull_request(number, author):
    return {
        "title": "Adding `safetensors` variant of this model",
        "num": number,
        "author": {"name": author},
        "repo": {"name": "someone/old", "type": "model"},
        "isPullRequest": True,
        "status": "open",
        "createdAt": "2023-03-01T12:00:00.000Z",
    }


@pytest.mark.parametrize(
    ("authors", "advice"),
    [
        (("somebody", "SFconvertbot"), "offers them as safetensors: --revision refs/pr/2"),
        (("somebody", "nobody"), "convert a copy with transformers' save_pretrained"),
    ],
)
def test_pickled_weights_are_refused_before_they_are_downloaded(authors, advice, tmp_path):
    """With where the same lie as safetensors, by nobody's hand but the Hub's own."""
    requests = [pull_request(number, author) for number, author in enumerate(authors, start=1)]
    page = {"count": 2, "start": 0, "discussions": requests}
    files = ("config.json", "pytorch_model.bin")
    output = open_from_hub(tmp_path, "someone/old", files, page)
    assert output.startswith(
        "refused someone/old: only pytorch_model.bin holds weights, and pickled"
    )
    assert advice in output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("someone/old", "name one of them, someone/old:FILE: a-Q4_0.gguf, b.gguf"),
        ("someone/old:Q8_0", "has no Q8_0; its GGUF files: a-Q4_0.gguf, b.gguf"),
        ("someone/old:c.gguf", "has no c.gguf; its GGUF files: a-Q4_0.gguf, b.gguf"),
    ],
)
def test_a_model_of_gguf_files_says_which_there_are(name, words, tmp_path):
    """Before anything is downloaded."""
    assert words in open_from_hub(tmp_path, name, ("README.md", "a-Q4_0.gguf", "b.gguf"))


def test_a_cached_model_with_the_tokenizer_of_gpt2_opens_offline(tmp_path):
    """vocab.json and merges.txt stand for the tokenizer.json that it does not have."""
    directory = cache_snapshot(tmp_path)
    (directory / "tokenizer.json").unlink()
    assert "not in the local cache" in open_offline(tmp_path, "someone/small")
    write_bpe_files(directory, GPT2_TOKENS, {"tokenizer_class": "GPT2Tokenizer"})
    output = open_offline(tmp_path, "someone/small")
    assert "allows ids up to 299" in output  # it was read: the model is smaller
