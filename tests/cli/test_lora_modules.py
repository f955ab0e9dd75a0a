"""Adapters on the command line: what a server begins with, and what ends a start."""

import json

import pytest

from tests.cli.running import SMALL, running, weft
from tests.cli.test_serve_http import get
from tests.model.adapters import write_adapter
from weft.cli.options import ServeOptions
from weft.cli.serving.adapters import read_lora_modules
from weft.cli.serving.finding import find
from weft.cli.serving.loading import load
from weft.cli.serving.serve import check
from weft.core.errors import ConfigError
from weft.model.open import open_model

SPEC = open_model(SMALL).spec


def test_a_server_begins_with_its_adapters(tmp_path):
    """Under NAME=DIRECTORY or as JSON; the ready block says what computes them."""
    one, two = (write_adapter(tmp_path / name, SPEC) for name in "ab")
    module = json.dumps({"name": "two", "path": str(two), "base_model_name": "small"})
    flags = ("--enable-lora", "--lora-modules", f"one={one}", "--lora-modules", module)
    with running(SMALL, *flags, "--compute", "native", "--served-model-name", "small") as server:
        assert "computed in C++" in server.banner
        cards = json.loads(get(f"{server.http}/v1/models")[1])["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [
            ("small", None),
            ("one", "small"),
            ("two", "small"),
        ]
        body = {"model": "two", "prompt": "hello", "max_tokens": 2}
        assert json.loads(get(f"{server.http}/v1/completions", body)[1])["model"] == "two"
        assert 'max_lora="8"' in get(f"{server.http}/metrics")[1]


def test_an_adapter_that_cannot_be_loaded_ends_the_start(tmp_path):
    """A server that lacked it would refuse its users one by one."""
    ended = weft(
        "serve",
        SMALL,
        "--enable-lora",
        "--lora-modules",
        f"a={tmp_path}",
        "--port",
        "0",
        "--grpc-port",
        "0",
    )
    assert ended.returncode == 2
    assert "--lora-modules: lora_name 'a' was not loaded: No adapter found" in ended.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_modules": ["a=/b"]}, "--lora-modules needs --enable-lora"),
        ({"allow_runtime_lora_updating": True}, "--allow-runtime-lora-updating needs --enable"),
        ({"max_loras": 2}, "--max-loras needs --enable-lora"),
        ({"max_lora_rank": 2}, "--max-lora-rank needs --enable-lora"),
        ({"enable_lora": True, "max_loras": 0}, "--max-loras must be between 1 and"),
        ({"enable_lora": True, "max_lora_rank": 0}, "--max-lora-rank must be between 1 and"),
        ({"enable_lora": True, "runner": "pooling"}, "served without LoRA adapters"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(options, message):
    """By name, before anything is loaded."""
    given = ServeOptions(**options)
    with pytest.raises(ConfigError, match=message):
        refuse_or_load(given)


def refuse_or_load(options):
    """What a start does before the engine is."""
    check(options)
    load(find(SMALL, options), options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], "must be NAME=DIRECTORY or JSON"),
        (["a=/b", "a=/c"], "names 'a' twice"),
        (['{"name": "a"}'], "path"),
        (['{"name": "a", "path": "/b", "rank": 1}'], "rank"),
    ],
)
def test_modules_that_cannot_be_read_are_refused(given, message):
    """With what is wrong with them."""
    with pytest.raises(ConfigError, match=message):
        read_lora_modules(given)
