"""The ready block of `weft serve`."""

import os
import shlex
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.cli.running import SMALL
from tests.cli.terminal import open_terminal
from weft.cli.options import ServeOptions
from weft.cli.serving.banner import Address, Ready, ready_block, show_block
from weft.cli.serving.cautions import cautions
from weft.cli.serving.finding import find
from weft.core.values.kv_cache import StateCacheConfig
from weft.core.values.media import SpeechTokens
from weft.core.values.pictures import SoundsConfig
from weft.engine.start.fit import Fitted

HTTP = Address(host_port="127.0.0.1:8000", has_tls=False, has_page=True)
GRPC = Address(host_port="127.0.0.1:50051", has_tls=False)


@pytest.fixture(scope="module")
def found() -> Fitted:
    return find(SMALL, ServeOptions(max_model_len=64))


def ready(found: Fitted, **changed: object) -> Ready:
    """A server with both ways in."""
    usual: dict[str, object] = {
        "card": found.checkpoint.card,
        "config": found.config,
        "computed": "",
        "free_bytes": 2 << 30,
        "http": HTTP,
        "grpc": GRPC,
        "has_keys": False,
        "load_s": 0.0,
        "has_template": True,
    }
    return Ready(**{**usual, **changed})  # type: ignore[arg-type]


def rows(block: list[str], name: str) -> list[str]:
    return [line[10:] for line in block if line[2:10].strip() == name]


def test_a_model_without_kv_has_no_pool_to_show(found: Fitted):
    """Blocks of no bytes say nothing: an encoder's memory is its weights."""
    cache = msgspec.structs.replace(found.config.cache_config, block_bytes=0)
    block = ready_block(
        ready(
            found,
            card=replace(found.checkpoint.card, weight_bytes=3 << 20),
            config=msgspec.structs.replace(found.config, cache_config=cache),
        )
    )
    assert rows(block, "memory") == ["weights 3 MiB, of 2 GiB free"]


def test_states_are_shown_as_a_part_of_the_pool(found: Fitted):
    """Its blocks hold them."""
    cache = msgspec.structs.replace(found.config.cache_config, num_blocks=8, block_bytes=3 << 10)
    block = ready_block(
        ready(
            found,
            card=replace(found.checkpoint.card, state_bytes_per_block=1 << 10),
            config=msgspec.structs.replace(found.config, cache_config=cache),
        )
    )
    assert rows(block, "memory")[0].startswith(
        "KV pool 24 KiB (including 8 KiB of states) = 8 blocks"
    )


def test_slots_of_states_are_shown_beside_the_pool(found: Fitted):
    """They are no part of its blocks."""
    states = StateCacheConfig(num_slots=4, slot_bytes=1 << 20, mamba_block_size=512)
    cache = msgspec.structs.replace(found.config.cache_config, states=states)
    block = ready_block(
        ready(found, config=msgspec.structs.replace(found.config, cache_config=cache))
    )
    assert "tokens, states 4 MiB = 4 slots, weights " in rows(block, "memory")[0]


def test_a_context_below_the_models_says_so(found: Fitted):
    """It may have been cut without a wish of the user's."""
    (model,) = rows(ready_block(ready(found)), "model")
    assert model.endswith("context 64 tokens (the model has 4,096)")


def test_what_to_try_needs_what_the_server_needs(found: Fitted):
    """Keys and certificates stand in the commands; without a template a text is continued."""
    tls = replace(HTTP, has_tls=True), replace(GRPC, has_tls=True)
    client, curl = rows(
        ready_block(ready(found, http=tls[0], grpc=tls[1], has_keys=True, has_template=False)),
        "try",
    )
    assert client.endswith("complete --grpc-tls-ca CA.pem --api-key KEY 'The capital of France is'")
    assert curl.startswith(
        "curl https://127.0.0.1:8000/v1/completions --cacert CA.pem --header 'Authorization: Bearer KEY' --json"
    )


def test_the_block_fits_the_terminal_and_commands_can_be_copied(
    found: Fitted, monkeypatch: pytest.MonkeyPatch
):
    """Long rows go on under themselves; a shell reads what is copied of a command as one line."""
    monkeypatch.setenv("NO_COLOR", "1")
    http = replace(HTTP, host_port="127.0.0.1:38471")
    block = ready_block(ready(found, http=http, computed="word " * 40))
    shown = on_terminal(block, columns=100)
    assert max(map(len, shown)) < 100
    assert [line for line in shown if line.startswith("          word")]
    (at,) = [i for i, line in enumerate(shown) if "  curl " in line]
    assert shown[at].endswith(" \\")
    copied = "\n".join([shown[at][10:], shown[at + 1]]).replace("\\\n", "")  # as a shell does
    assert shlex.split(copied) == shlex.split(rows(block, "try")[1])


def test_colour_is_for_terminals_whose_user_wants_it(
    found: Fitted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A name that holds an escape sequence is no colour."""
    block = [*ready_block(ready(found)), "  model   \x1b[2J"]
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    coloured = "".join(on_terminal(block))
    monkeypatch.setenv("NO_COLOR", "1")
    plain = "".join(on_terminal(block))
    show_block(block)
    assert "\x1b[36m" in coloured
    assert "\x1b[2J" not in coloured
    assert "\x1b" not in plain
    assert capsys.readouterr().out == "\n".join(block) + "\n"


def on_terminal(block: list[str], columns: int = 80) -> list[str]:
    """The lines that a terminal of that width gets."""
    leader, follower = open_terminal(columns)
    with os.fdopen(follower, "w") as terminal:
        show_block(block, terminal)
        shown = os.read(leader, 65536)
    os.close(leader)
    return shown.decode().split("\r\n")


def test_cautions_name_what_a_user_may_want_otherwise(found: Fitted, tmp_path: Path):
    """Tiles that are not permitted, threads fewer than CPUs, a pool for one context; else nothing."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("flags : avx2 amx_tile amx_bf16\n")
    compute = msgspec.structs.replace(found.config.compute_config, num_threads=1)
    cache = msgspec.structs.replace(found.config.cache_config, num_blocks=4)
    little = msgspec.structs.replace(found.config, compute_config=compute, cache_config=cache)
    texts = list(cautions(replace(found, config=little), tmp_path, num_cpus=2))
    (tmp_path / "proc/cpuinfo").write_text("flags : avx2\n")
    plenty = msgspec.structs.replace(
        found.config, compute_config=msgspec.structs.replace(compute, num_threads=2)
    )
    assert [text.partition(":")[0] for text in texts if "amx" not in text] == [
        "AMX", "threads", "memory"
    ]  # fmt: skip
    assert list(cautions(replace(found, config=plenty), tmp_path, num_cpus=2)) == []


def test_a_model_of_speech_is_tried_with_a_recording(found: Fitted):
    """Chat and completions would be refused."""
    tokens = SpeechTokens(end=1, start=2, previous=3, no_speech=4, first_timestamp=6)
    sounds = SoundsConfig(
        tokens=tokens, num_mels=80, num_columns=3000, memory_bytes=1, output_bytes=1, max_step_rows=1
    )  # fmt: skip
    config = msgspec.structs.replace(found.config, sounds_config=sounds)
    [command] = rows(ready_block(ready(found, config=config)), "try")
    assert command == "curl http://127.0.0.1:8000/v1/audio/transcriptions -F file=@speech.wav"
