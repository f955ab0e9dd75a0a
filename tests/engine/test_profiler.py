"""Traces of steps: what is in them, where they go, and what ends them."""

import asyncio
import gzip
import json
import os
from itertools import pairwise
from pathlib import Path

import pytest

from tests.busy import until
from tests.contract.engines import running_engine, start, stop
from tests.contract.test_engine_client import GREEDY, collect
from tests.doubles.fake_runner import FakeRunner
from tests.engine.test_loop import Script, add
from tests.model.checkpoints import write_checkpoint
from weft import LLM
from weft.core.config.profiling import ProfilerConfig
from weft.core.errors import BadRequest, ConfigError, FailedPrecondition, Unsupported
from weft.engine.clients.local_client import LocalClient
from weft.engine.clients.process_client import ProcessClient
from weft.engine.ipc.messages import Reply, StartProfile, StopProfile
from weft.engine.settings.profiler_config import read_profiler

START, STOP = StartProfile(call_id=1), StopProfile(2)


@pytest.fixture(params=[LocalClient, ProcessClient], ids=["local", "process"])
async def profiled(request, tmp_path):
    """An engine that may write traces, in a thread and in a process of its own."""
    config = {"torch_profiler_dir": str(tmp_path)}
    async with running_engine(request.param, profiler_config=config) as client:
        yield client


def traces(directory):
    """The events of each file, by name."""
    files = {path: path.read_bytes() for path in directory.iterdir()}
    return {
        path.name: json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        for path, data in files.items()
    }


def slices(events, thread=1):
    """The (name, start, end) of each slice, in order."""
    return [
        (e["name"], e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["ph"] == "X" and e["tid"] == thread
    ]


def record(tmp_path, *entries, **options):
    """The events of a script's one trace, and the replies to its commands."""
    config = ProfilerConfig(
        torch_profiler_dir=str(tmp_path), torch_profiler_use_gzip=False, **options
    )
    script = Script(*entries).run(FakeRunner(300), profiler_config=config)
    [events] = traces(tmp_path).values()
    return events, [event for event in script.events if isinstance(event, Reply)]


def steps_of(events):
    """What each step held."""
    return [event["args"] for event in events if event["name"] == "step"]


async def test_a_trace_is_what_viewers_open(profiled, tmp_path):
    """Complete events with times in microseconds, inside a step's; the native core's parts on a thread beside."""
    await profiled.start_profile("first")
    await collect(profiled, GREEDY)
    await profiled.stop_profile()
    [(name, events)] = traces(tmp_path).items()
    assert name.startswith("first-")
    assert name.endswith(".trace.json.gz")
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    parts = {name for name, *_ in slices(events, thread=2)}
    assert parts >= {"linear", "attention", "head"}
    steps = steps_of(events)
    assert len(steps) == 12
    assert [step["rows"] for step in steps[1:]] == [1] * 11
    assert steps[0]["prompt_tokens"] == steps[0]["rows"] > 1
    assert all(step["held_blocks"] >= step["step_sequences"] == 1 for step in steps)


def test_where_a_steps_time_went(tmp_path):
    """Its slices follow one another without a gap, from its beginning to its end, in the order of a step."""
    events, _ = record(tmp_path, [START, add("a"), add("b")], [], [], [], [STOP])
    spans = slices(events)
    places = [i for i, (name, *_) in enumerate(spans) if name == "step"]
    assert len(places) == 4
    for first, end in pairwise([*places, len(spans)]):
        (_, start, stop_), *laps = spans[first:end]
        assert [name for name, *_ in laps] == [
            "commands", "schedule", "masks", "forward", "sample", "commit", "send",
        ]  # fmt: skip
        edges = [start, *(until for *_, until in laps)]
        assert [since for _, since, _ in laps] == pytest.approx(edges[:-1], abs=0.01)
        assert edges[-1] == pytest.approx(stop_, abs=0.01)


def test_what_steps_held(tmp_path):
    """Rows, tokens of prompts, sequences, blocks: as planned, cached ones left out."""
    events, _ = record(tmp_path, [START, add("a", max_tokens=2), add("b", max_tokens=3)])
    keys = ("rows", "prompt_tokens", "step_sequences", "sampled_rows", "context_tokens", "waiting")
    assert [tuple(step[key] for key in keys) for step in steps_of(events)] == [
        (14, 14, 2, 2, 22, 0),
        (2, 0, 2, 2, 24, 0),
        (1, 0, 1, 1, 13, 0),
    ]
    held = [event["args"]["held_blocks"] for event in events if event["name"] == "KV blocks"]
    assert held == [step["held_blocks"] for step in steps_of(events)]


def test_steps_are_left_out_and_counted(tmp_path):
    """As the configuration says, unless the start says otherwise."""
    given = StartProfile(call_id=1, max_iterations=2)
    events, replies = record(
        tmp_path, [given, add("a", max_tokens=9)], delay_iterations=3, max_iterations=5
    )
    assert [step["context_tokens"] for step in steps_of(events)] == [14, 15]
    assert [reply.refusal for reply in replies] == [None]


def test_a_second_start_is_refused_and_a_second_stop_is_nothing(tmp_path):
    """The first trace goes on."""
    events, replies = record(tmp_path, [START, START, add("a")], [], [], [], [STOP, STOP])
    assert ["already" in (reply.refusal or "") for reply in replies] == [False, True, False, False]
    assert len(steps_of(events)) == 4


@pytest.mark.parametrize("limit", ["MAX_TRACE_BYTES", "MAX_TRACE_S"])
def test_a_trace_that_is_full_ends_whole(limit, tmp_path, monkeypatch):
    """The engine goes on without it."""
    monkeypatch.setattr(f"weft.engine.profiler.{limit}", 0)
    events, _ = record(tmp_path, [START, add("a")])
    assert len(steps_of(events)) == 1


async def test_a_trace_that_was_forgotten_ends_without_a_step(tmp_path, monkeypatch):
    """Of an engine that has nothing to do, too: its file would stay open, and unreadable."""
    monkeypatch.setattr("weft.engine.profiler.MAX_TRACE_S", 0)
    config = {"torch_profiler_dir": str(tmp_path), "torch_profiler_use_gzip": False}
    client = await start(LocalClient, profiler_config=config)
    await client.start_profile()
    [path] = tmp_path.iterdir()
    await until(lambda: path.read_bytes().endswith(b"\n]\n"))
    await stop(client)


def test_an_engine_that_stops_ends_its_trace(tmp_path):
    """So that it can be read."""
    events, _ = record(tmp_path, [START, add("a")])
    assert len(steps_of(events)) == 4


def fill(directory):
    """Let whoever writes to a file in there find the disk full from now on."""
    with open("/dev/full", "wb", buffering=0) as full:
        for opened in Path("/proc/self/fd").iterdir():
            if opened.resolve().parent == directory:
                os.dup2(full.fileno(), int(opened.name))


async def test_a_full_disk_ends_the_trace_and_not_the_engine(tmp_path):
    """Requests go on; whoever stops the profile gets the reason, once, and the next one is written."""
    config = {"torch_profiler_dir": str(tmp_path), "torch_profiler_use_gzip": False}
    client = await start(LocalClient, profiler_config=config)
    await client.start_profile()
    fill(tmp_path)
    outputs = await collect(client, GREEDY)
    assert outputs[-1].is_finished
    with pytest.raises(FailedPrecondition, match="No space left"):
        await client.stop_profile()
    await client.stop_profile()
    await client.start_profile()
    await client.stop_profile()
    await stop(client)


async def test_without_a_directory_there_is_no_profile():
    """Nor may a caller name one."""
    client = await start(LocalClient)
    for call in (client.start_profile, client.stop_profile):
        with pytest.raises(Unsupported, match=r"_profile is not supported.*--profiler-config"):
            await call()
    await stop(client)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"profile_prefix": "../x"}, "profile_prefix"),
        ({"profile_prefix": ""}, "profile_prefix"),
        ({"profile_prefix": "x" * 65}, "profile_prefix"),
        ({"delay_iterations": -1}, "delay_iterations"),
        ({"max_iterations": 10**9}, "max_iterations"),
    ],
)
async def test_what_cannot_be_profiled_is_refused_by_name(arguments, field, tmp_path):
    """And nothing is written."""
    client = await start(LocalClient, profiler_config={"torch_profiler_dir": str(tmp_path)})
    with pytest.raises(BadRequest, match=field):
        await client.start_profile(**arguments)
    assert not list(tmp_path.iterdir())
    await stop(client)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("{}", "torch_profiler_dir"),
        ('{"torch_profiler_dir": "/nonexistent/x"}', "/nonexistent/x"),
        ('{"torch_profiler_dir": "/dev/null"}', "must be a writable directory"),
        ('{"torch_profiler_dir": "/tmp", "torch_profiler_with_stack": true}', "with_stack"),
        ('{"torch_profiler_dir": "/tmp", "profiler": "cuda"}', "cuda"),
        ('{"torch_profiler_dir": "/tmp", "max_iterations": -1}', "max_iterations"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused(given, name):
    """At the start, by key."""
    with pytest.raises(ConfigError, match=rf"--profiler-config: .*{name}"):
        read_profiler(given)


def test_an_llm_is_profiled(tmp_path):
    """Without `async`; and its worker can be called."""
    with LLM("embedded:echo", profiler_config={"torch_profiler_dir": str(tmp_path)}) as llm:
        llm.start_profile("llm")
        llm.generate(["hello"])
        llm.stop_profile()
        assert llm.collective_rpc("check_health") == [None]
    [events] = traces(tmp_path).values()
    assert steps_of(events)


def test_what_a_worker_cannot_answer_ends_nothing(tmp_path):
    """The weights are mapped, and their files need not be there any more, of which a digest is asked for."""
    with LLM(str(write_checkpoint(tmp_path / "m")), num_threads=1) as llm:
        [before] = llm.collective_rpc("fingerprint")
        (tmp_path / "m" / "model.safetensors").unlink()
        with pytest.raises(FailedPrecondition, match=r"model\.safetensors: cannot be read"):
            llm.collective_rpc("fingerprint")
        assert llm.collective_rpc("check_health") == [None]
    assert before


async def test_the_worker_is_called_by_names_of_a_table(profiled):
    """What it answers comes back, one for the one worker; there is nothing else to call."""
    await collect(profiled, GREEDY)
    [free] = await profiled.collective_rpc("determine_available_memory")
    assert free > 1 << 20
    [seconds] = await profiled.collective_rpc("forward_seconds", timeout=10.0)
    assert seconds["linear"] > 0
    with pytest.raises(BadRequest, match="method must be one of check_health, "):
        await profiled.collective_rpc("__import__('os').getpid")
    with pytest.raises(BadRequest, match="args must be empty"):
        await profiled.collective_rpc("check_health", args=["x"])
    with pytest.raises(BadRequest, match="kwargs must be empty"):
        await profiled.collective_rpc("check_health", kwargs={"x": 1})
    with pytest.raises(BadRequest, match="timeout"):
        await profiled.collective_rpc("check_health", timeout=-1.0)


async def test_caches_of_other_inputs_are_empty():
    """There are none, so that to drop them succeeds, while requests run too."""
    client = await start(LocalClient)
    running = asyncio.create_task(collect(client, GREEDY))
    assert await client.reset_mm_cache() is None
    assert await client.reset_encoder_cache() is None
    await running
    await stop(client)
