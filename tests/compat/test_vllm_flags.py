"""The table of vLLM's flags is complete, and says of each what is true."""

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from tools.vllm_flags import TABLE, merged, rows_of
from weft.cli.options import ServeOptions
from weft.compat.vllm import Setting, Use, VllmFlag, find_flag, translate, vllm_flags
from weft.core.errors import ConfigError

LISTED = (Path(__file__).parent / "vllm_flags_0_32.tsv").read_text(encoding="utf-8")
FLAGS = list(dict.fromkeys(vllm_flags().values()))


def taken(name: str, value: object) -> Setting | None:
    flag = find_flag(name)
    assert flag is not None
    return translate(flag, value, f"--{name} {value}")


def test_the_table_has_every_flag_as_vllm_has_it():
    """A release of vLLM that adds, drops or changes a flag changes the table, or this fails."""
    table = TABLE.read_text(encoding="utf-8")
    assert merged(table, LISTED) == table


def test_a_new_flag_waits_for_a_decision():
    """Brought in with a mark that the table's reader refuses; one that is gone stays, as an older one."""
    changed = LISTED.replace("--uds\t", "--brand-new\t")
    rows = {line.split("\t")[0]: line for line in merged(TABLE.read_text(), changed).splitlines()}
    assert rows["--brand-new"].split("\t")[5] == "?"
    assert rows["--uds"].split("\t")[1] == "older"


def test_flags_are_read_from_a_parser():
    """By kind: a switch, one value, several; and by what of vLLM they are for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--number", type=int, default=3)
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--on", action=argparse.BooleanOptionalAction, default=False)
    assert rows_of(parser, "1.0", of_engine={"number"}) == [
        ("--names", "1.0", "list", "server", ""),
        ("--number -n", "1.0", "value", "engine", "3"),
        ("--on --no-on", "1.0", "switch", "server", "False"),
    ]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_row_leads_somewhere(flag: VllmFlag):
    """To a flag of ours, or to a sentence that says why there is none."""
    ours = {field.name for field in fields(ServeOptions)} | {"model"}
    if flag.use is Use.SAME:
        assert flag.name in ours
    elif flag.use is Use.TWIN:
        assert flag.detail[0].replace("-", "_") in ours
    if flag.use is not Use.SAME:
        assert len(flag.why) > 10


@pytest.mark.parametrize(
    "flag", [flag for flag in FLAGS if flag.use is Use.NEUTRAL and flag.default]
)
def test_what_vllm_does_by_itself_is_never_refused(flag: VllmFlag):
    """A line that spells out a default means no more than one that leaves it out."""
    assert translate(flag, flag.default, flag.name) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor-parallel-size", "1"),
        ("tensor_parallel_size", 1),
        ("trust-remote-code", True),
        ("enforce-eager", False),
        ("seed", 1024),
        ("swap-space", "4"),
        ("structured-outputs-config", {"backend": "outlines"}),
        ("structured-outputs-config", '{"backend": "xgrammar"}'),
        ("max-model-len", "auto"),
        ("load-format", "hf"),
    ],
)
def test_values_that_change_nothing_are_taken_without_a_word(name: str, value: object):
    """As text from a command line, or as what they are from Python."""
    assert taken(name, value) is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tensor-parallel-size", "2", "leave it out, or use vLLM"),
        ("pipeline_parallel_size", 2, "one process on one machine"),
        ("data_parallel_multi_port_external_lb", True, "start one for each"),
        ("structured-outputs-config", {"disable_any_whitespace": True}, "disable_any_whitespace"),
        ("structured-outputs-config", {"unheard": 1}, "unheard is not supported"),
        ("default-mm-loras", '{"image": "a"}', "no such setting for media"),
        ("media-io-kwargs", {"image": {}}, "as the files of the model say"),
        ("load-format", "pt", "safetensors, or GGUF .* convert other formats"),
        ("load-format", "dummy", "serve embedded:random"),
        ("hf-token", "t", "set HF_TOKEN"),
        ("rope-theta", "1e6", "--hf-overrides"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_a_remedy(name: str, value: object, words: str):
    """Accepting a value and ignoring it would be a lie."""
    with pytest.raises(ConfigError, match=words):
        taken(name, value)


@pytest.mark.parametrize(
    ("name", "value", "ours", "expected"),
    [
        ("gpu-memory-utilization", "0.8", "memory_share", "0.8"),
        ("kv_cache_memory_bytes", 1 << 30, "kv_cache_bytes", 1 << 30),
        ("uvicorn-log-level", "trace", "log_level", "debug"),
    ],
)
def test_a_twin_is_followed_and_noted(name: str, value: object, ours: str, expected: object):
    """Under its name here, with a sentence for the log."""
    setting = taken(name, value)
    assert setting is not None
    assert (setting.name, setting.value) == (ours, expected)
    assert f"--{ours.replace('_', '-')} {expected}" in str(setting.note)


def test_values_have_the_names_they_have_here():
    """half is float16, and origins may be a JSON list."""
    assert taken("log-level", "CRITICAL") == Setting("log_level", "error")
    assert taken("log-level", "debug") == Setting("log_level", "debug")
    assert taken("dtype", "half") == Setting("dtype", "float16")
    assert taken("allowed-origins", '["https://a.b"]') == Setting(
        "allowed_origins", ["https://a.b"]
    )
