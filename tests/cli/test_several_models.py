"""`weft serve` with several models: their list, what is refused, and real processes that come and go."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cli.running import SMALL, Server, here, running
from tests.model.checkpoints import write_checkpoint
from weft.cli.arguments.flags import pick
from weft.cli.options import ServeOptions
from weft.cli.serving.several.model_list import read_models
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError


def names(*texts: str, **options) -> dict[str, str]:
    """The models of a server by their names."""
    return {one.name: one.model for one in read_models(texts, ServeOptions(**options))}


def test_a_model_has_its_own_name_or_a_given_one():
    """Equals signs of a random model's settings give no name."""
    assert names("embedded:tiny", "chat=embedded:echo", SMALL) == {
        "embedded:tiny": "embedded:tiny",
        "chat": "embedded:echo",
        SMALL: SMALL,
    }


def test_a_path_with_an_equals_sign_is_a_path(tmp_path, monkeypatch):
    """What exists is meant, whatever its name looks like."""
    monkeypatch.chdir(tmp_path)
    Path("a=b").mkdir()
    assert names("a=b", "./c=d") == {"a=b": "a=b", "./c=d": "./c=d"}


def test_a_table_has_settings_of_each_model():
    """They are read like the flags of the same names, and win over those of the command line."""
    table = {
        "chat": {"model": SMALL, "max-model-len": "2k", "quantization": "int8", "pinned": True},
        "embed": {
            "model": SMALL,
            "runner": "pooling",
            "idle": "10m",
            "enable_prefix_caching": False,
        },
    }
    options = ServeOptions(models=json.dumps(table), max_model_len=512, models_idle=5.0)
    chat, embed = read_models((), options)
    engine = pick(chat.options, EngineOptions)
    assert (engine.max_model_len, engine.quantization) == (2000, "int8")
    assert (chat.is_pinned, chat.idle_s, embed.is_pinned, embed.idle_s) == (True, 5.0, False, 600.0)
    assert engine.served_model_name == ["chat"]
    engine = pick(embed.options, EngineOptions)
    assert (engine.runner, engine.max_model_len, engine.enable_prefix_caching) == (
        "pooling",
        512,
        False,
    )


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[1]", "must be a table of tables"),
        ("{", "is not JSON"),
        ({"a": {}}, "--models a: model must be"),
        ({"a": {"model": SMALL, "max-model-length": 5}}, "did you mean max-model-len"),
        ({"a": {"model": SMALL, "port": 5}}, "port is not a setting of a model"),
        ({"a": {"model": SMALL, "max-model-len": "many"}}, "--models a:"),
        ({"a": {"model": SMALL, "pinned": "yes"}}, "pinned must be true or false"),
        ({"a": {"model": SMALL, "idle": "soon"}}, "idle must be a duration"),
        ({"a": {"model": SMALL, "idle": "-1"}}, "must be from 0"),
        ({" ": {"model": SMALL}}, "a name is empty"),
    ],
)
def test_a_wrong_table_is_refused_by_name(table, words):
    """The error has the model and the setting."""
    text = table if isinstance(table, str) else json.dumps(table)
    with pytest.raises(ConfigError, match=words):
        read_models((), ServeOptions(models=text))


def test_two_models_of_one_name_are_refused():
    """Adapters have names too."""
    with pytest.raises(ConfigError, match="two models have the name a"):
        names("a=embedded:tiny", "a=embedded:echo")


def test_a_directory_has_models_by_their_paths(tmp_path):
    """Checkpoints and GGUF files down to OWNER/NAME; a model that is also named counts once."""
    for place in ("one", "owner/two"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text("{}")
    (tmp_path / "three.gguf").write_bytes(b"")
    found = names("one=embedded:tiny", model_dir=tmp_path)
    assert list(found) == ["one", "owner/two", "three"]
    assert found["one"] == "embedded:tiny"
    with pytest.raises(ConfigError, match="no checkpoint"):
        names(model_dir=_empty(tmp_path))
    with pytest.raises(ConfigError, match="no such directory"):
        names(model_dir=tmp_path / "nothing")


def _empty(tmp_path: Path) -> Path:
    made = tmp_path / "empty"
    made.mkdir()
    return made


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("a=embedded:tiny", "b=embedded:echo", "--no-http"), "--no-http and several models"),
        (("embedded:tiny", "embedded:echo", "--served-model-name", "x"), "NAME=MODEL"),
        (("embedded:tiny", "embedded:echo", "--api-server-count", "2"), "--api-server-count 2"),
        (("embedded:tiny", "embedded:echo", "--data-parallel-size", "2"), "--data-parallel-size 2"),
        (("embedded:tiny", "--models-memory", "1GiB"), "for servers with several models"),
        (("x=embedded:tiny", "--served-model-name", "y"), "not both"),
        (("embedded:tiny", "no-such-model"), "no such directory"),
        (("embedded:tiny", "embedded:echo", "--models-memory", "1kB"), "does not fit"),
    ],
)
def test_what_does_not_go_with_several_models_is_refused_at_the_start(argv, words):
    """One line names the flags."""
    refused = here("serve", *argv, "--port", "0", "--grpc-port", "0")
    assert refused.returncode != 0
    assert words in refused.stderr


def engines_of(server: Server) -> list[psutil.Process]:
    """The processes of engines of a server that have not ended."""
    found = []
    for child in server.front.children():
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            if "weft.engine.process" in child.cmdline():
                found.append(child)
    return found


def ready_models(server: Server) -> list[str]:
    """The models that are in memory, as the server knows."""
    cards = json.loads(server.get("/v1/models"))["data"]
    return [card["id"] for card in cards if card["state"] == "ready"]


@pytest.mark.slow
def test_models_of_real_processes_come_and_go(tmp_path):
    """A file lists three models on a memory of two: each is answered as a server of its own answers; the processes
    of the others have ended. A model that is killed is started again.
    """
    (tmp_path / "models" / "owner").mkdir(parents=True)
    path = write_checkpoint(tmp_path / "models" / "owner" / "made")
    shutil.copytree(path, tmp_path / "models" / "again")
    size = "256MiB"
    table = (
        '[models.tiny]\nmodel = "embedded:tiny"\nkv-cache-bytes = "16MiB"\n'
        f'[models.small]\nmodel = "{SMALL}"\n'
    )
    config = tmp_path / "weft.toml"
    config.write_text(
        f'models-memory = "{size}"\nmodels-min-stay = "0s"\nkv-cache-bytes = "16MiB"\n'
        f'model-dir = "{tmp_path / "models"}"\n{table}'
    )
    flags = ("--config", str(config), "--no-grpc", "--num-threads", "1", "--enable-log-requests")
    body = {"prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}
    with running("embedded:tiny", "--num-threads", "1") as alone:
        expected = alone.post("/v1/completions", body)["choices"][0]["text"]
    with running(*flags) as server:
        listed = {card["id"]: card for card in json.loads(server.get("/v1/models"))["data"]}
        assert set(listed) == {"tiny", "small", "owner/made", "again"}
        for name in ("tiny", "small", "again", "owner/made", "tiny"):
            answer = server.post("/v1/completions", {"model": name, **body})
            assert answer["model"] == name
            if name == "tiny":
                assert answer["choices"][0]["text"] == expected
            server.read_log_until("prompt tokens")
            assert len(engines_of(server)) <= 2
        assert "tiny" in ready_models(server)
        for engine in engines_of(server):
            engine.kill()
        while "tiny" in ready_models(server):
            server.get("/health")
        again = server.post("/v1/completions", {"model": "tiny", **body})
        assert again["choices"][0]["text"] == expected
