"""The commands that look at this machine, as they are called: weft.cli.machine.commands."""

import json

import pytest

from tests.model.checkpoints import write_checkpoint
from tests.model.test_experts import MIXTRAL
from weft.cli.main import run


def test_a_plan_has_the_same_numbers_for_scripts(capsys):
    """The model and flags are those of weft serve."""
    argv = ["plan", "embedded:tiny", "--max-model-len", "128", "--kv-cache-bytes=1MiB"]
    assert run([*argv, "--json", "--no-measure"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["model"], shown["measured"]) == ("embedded:tiny", None)
    assert (shown["capacity"]["max_total_tokens"], shown["capacity"]["num_full"]) == (816, 6)


def test_a_plan_counts_parameters(capsys, tmp_path):
    """Of a mixture those that a token goes through as well."""
    model = str(write_checkpoint(tmp_path / "a", MIXTRAL))
    assert run(["plan", model, "--no-measure", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert 0 < shown["num_active_parameters"] < shown["num_parameters"]
    assert run(["plan", model, "--no-measure"]) == 0
    assert " active per token), " in capsys.readouterr().out


def test_a_plan_says_what_states_take(capsys):
    """Beside the keys and values of a token, of which blocks hold many."""
    argv = ["plan", "embedded:random?layers=3&conv=3&dtype=bfloat16", "--no-measure"]
    assert run(argv) == 0
    assert "128 B a token and 512 B of states a block" in capsys.readouterr().out
    argv = ["plan", "embedded:random?delta=4", "--no-measure", "--max-num-seqs", "3"]
    assert run(argv) == 0
    assert " = 6 slots, one for each sequence that runs" in capsys.readouterr().out
    assert run(["plan", "embedded:tiny", "--no-measure"]) == 0
    assert "of states" not in capsys.readouterr().out


def test_a_plan_counts_several_engines(capsys):
    """Weights once, the rest for each of them."""
    argv = ["plan", "embedded:tiny", "--num-threads", "2", "--data-parallel-size", "2"]
    assert run([*argv, "--no-measure"]) == 0
    text = capsys.readouterr().out
    assert "engines     2, each with the values below" in text
    assert "shared by all" in text


def test_a_plan_measures_the_machine(capsys):
    """Speeds are of this machine, and in words as well."""
    assert run(["plan", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["measured"]["bytes_per_s"] > 0
    assert shown["capacity"]["speed"]["prompts"] > shown["capacity"]["speed"]["one_answer"] > 0
    assert run(["plan"]) == 0
    text = capsys.readouterr().out
    assert "KV pool     320 MiB = 16,384 blocks of 16 = 262,144 tokens, 1.25 KiB a token" in text
    assert "GB/s read" in text
    assert "tokens/s of prompts" in text


def test_a_plan_takes_flags_of_vllm(capsys):
    """A line for `vllm serve` is planned as it is served."""
    argv = ["plan", "--model", "embedded:tiny", "--max-num-seqs", "7", "-tp", "1"]
    assert run([*argv, "--json", "--no-measure"]) == 0
    assert json.loads(capsys.readouterr().out)["capacity"]["max_num_seqs"] == 7


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--kv-cache-bytes", "900TB"], "of memory are free; try"),
        (["/no/such/model"], "no such directory"),
        (["--max-model-lenn", "3"], "Did you mean --max-model-len"),
        (["--remote", "grpc://a:1"], "nothing to plan"),
    ],
)
def test_what_cannot_be_served_cannot_be_planned(capsys, argv: list[str], words: str):
    """With the sentence that weft serve has, and its exit status."""
    assert run(["plan", *argv, "--no-measure"]) == 2
    assert words in capsys.readouterr().err


def settings(capsys, *argv: str) -> dict[str, dict]:
    assert run(["config", "show", "--json", *argv]) == 0
    return {one["name"]: one for one in json.loads(capsys.readouterr().out)}


def test_every_setting_says_where_it_came_from(tmp_path, monkeypatch, capsys):
    """Flag, environment, file, default: by name where there are several of a kind."""
    path = tmp_path / "weft.toml"
    path.write_text("max-num-seqs = 1\nblock_size = 8\nmodel = 'embedded:echo'\n")
    monkeypatch.setenv("WEFT_BLOCK_SIZE", "32")
    shown = settings(capsys, "--config", str(path), "--port", "8001", "--no-grpc")
    origins = {name: (one["value"], one["origin"], one["where"]) for name, one in shown.items()}
    assert origins["port"] == (8001, "flag", None)
    assert origins["grpc"] == (False, "flag", None)
    assert origins["block_size"] == (32, "environment", "WEFT_BLOCK_SIZE")
    assert origins["max_num_seqs"] == (1, "file", str(path))
    assert origins["model"] == ("embedded:echo", "file", str(path))
    assert origins["grpc_port"] == (50051, "default", None)
    assert origins["max_model_len"] == (None, "default", None)


def test_only_what_was_changed_is_shown_on_request(capsys):
    """A deployment is a few lines, not eighty."""
    assert run(["config", "show", "--changed", "--max-model-len", "1k"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["setting", "value", "from"],
        ["max-model-len", "1000", "flag"],
    ]


def test_keys_are_not_shown(capsys, monkeypatch):
    """What is printed is pasted into reports."""
    monkeypatch.setenv("WEFT_CONTROL_API_KEY", "hush-1")
    argv = ("--api-key", "hush-2", "--remote", "grpc://a:1", "--remote-api-key", "hush-3")
    shown = settings(capsys, *argv)
    assert shown["api_key"]["value"] == ["***"]
    assert shown["model"]["value"] is None  # it is where the engines are
    assert run(["config", "show", *argv]) == 0
    assert "hush" not in json.dumps(shown) + capsys.readouterr().out


def test_settings_that_would_be_refused_are_refused(capsys, tmp_path):
    """The file is named, as it is at a start."""
    path = tmp_path / "weft.toml"
    path.write_text("prot = 1\n")
    assert run(["config", "show", "--config", str(path)]) == 2
    assert 'unknown setting "prot"; did you mean "port"?' in capsys.readouterr().err


def test_models_in_a_directory_are_listed_with_what_is_wrong_with_them(tmp_path, capsys):
    """Size, family, and whether weft serve would take it."""
    sound = write_checkpoint(tmp_path / "sound")
    spoilt = write_checkpoint(tmp_path / "spoilt")
    (spoilt / "model.safetensors").unlink()
    assert run(["models", "--dir", str(tmp_path), "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    size = sum(path.stat().st_size for path in sound.iterdir())
    assert (found[str(sound)]["num_bytes"], found[str(sound)]["model_type"]) == (size, "llama")
    assert found[str(sound)]["refusal"] is None
    assert "safetensors" in found[str(spoilt)]["refusal"]
    assert run(["models", "--dir", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) in line]
    assert [line.rstrip().endswith("yes") for line in lines] == [True, False]


def test_what_only_has_the_name_of_a_model_ends_no_list(tmp_path, capsys):
    """A directory and a link to nowhere are none; a part of too many is one that cannot be served."""
    (tmp_path / "directory.gguf").mkdir()
    (tmp_path / "nowhere.gguf").symlink_to("/no/such/file")
    part = tmp_path / "many-00001-of-99999.gguf"
    part.write_bytes(b"GGUF")
    assert run(["models", "--dir", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    refusals = {one["name"]: one["refusal"] for one in found if one["source"] == "file"}
    assert [*refusals] == [str(part)]
    assert "99999 parts" in refusals[str(part)]


def test_a_directory_that_is_not_there_is_refused(capsys):
    """An empty list would read as if nothing were in it."""
    assert run(["models", "--dir", "/no/such/place"]) == 2
    assert "--dir /no/such/place" in capsys.readouterr().err
