"""A GGUF file served, planned and listed as any other model."""

import json

import pytest

from tests.cli.running import running
from tests.model.checkpoints import write_checkpoint
from tests.model.gguf.files import write_gguf
from weft.cli.main import run

CHAT = {
    "messages": [{"role": "user", "content": "Hello, naïve 世界"}],
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
    "logprobs": True,
}


def chat(server, name):
    """The turn, token by token, and how many the prompt had."""
    answer = server.post("/v1/chat/completions", {**CHAT, "model": name})
    return answer["choices"][0]["logprobs"], answer["usage"]["prompt_tokens"]


@pytest.mark.slow
def test_a_chat_is_that_of_the_checkpoint(tmp_path):
    """Template, special tokens and weights come from the one file; its path is its name."""
    directory = write_checkpoint(tmp_path / "checkpoint")
    path = str(write_gguf(tmp_path / "model.gguf", directory))
    with running(str(directory), "--served-model-name", "same") as server:
        expected = chat(server, "same")
    with running(path) as server:
        assert chat(server, path) == expected
        assert [model["id"] for model in json.loads(server.get("/v1/models"))["data"]] == [path]


def test_a_file_is_planned_and_listed(tmp_path, capsys):
    """By its path, with what it takes in memory; a file that cannot be served with the reason."""
    path = write_gguf(tmp_path / "model.gguf", write_checkpoint(tmp_path / "m"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    assert run(["plan", str(path), "--json", "--no-measure"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == str(path)
    assert run(["models", "--dir", str(tmp_path), "--json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert listed[str(path)]["refusal"] is None
    assert listed[str(path)]["num_bytes"] == path.stat().st_size
    assert "is it cut off" in listed[str(tmp_path / "broken.gguf")]["refusal"]
