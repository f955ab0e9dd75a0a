"""What is given to vLLM and read from it, held to the names of the fields that 0.32 has. No vLLM is needed."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from weft.core.config.engine_options import EngineOptions
from weft.core.errors import (
    BadRequest,
    ConfigError,
)
from weft.core.values.kv_cache import BlockRemoved, BlockStored, CacheConfig
from weft.core.values.kv_transfer import KEY
from weft.core.values.prompts import OpenReasoning
from weft.core.values.types import (
    FinishReason,
    PoolingParams,
    RepetitionDetectionParams,
    Request,
    SamplingParams,
    StructuredOutputsParams,
)
from weft.vllm.convert import settings
from weft.vllm.convert.outputs import to_rows, to_sequence_output
from weft.vllm.convert.params import (
    CHANGED,
    DONE_HERE,
    REFUSED,
    REFUSED_OF_CONSTRAINTS,
    check_params,
    reasoning_ended,
    to_constraint,
    to_pooling,
    to_sampling,
)
from weft.vllm.convert.settings import read_engine_args, to_settings
from weft.vllm.kv_events import _decoder, to_event
from weft.vllm.load import LoadMeter

LISTED = [
    line.split("\t")
    for line in (Path(__file__).parent / "fields_0_32.tsv").read_text().splitlines()[1:]
]
# Of vLLM's parameters of sampling, those that no request of ours can mean.
UNUSED = {
    "watermarking", "prompt_logprob_token_ids", "prompt_logprob_start", "routed_experts_prompt_start",
    "trace_decode_token_ids", "skip_clone", "output_text_buffer_length",
    "thinking_token_budget",
}  # fmt: skip


def fields(name: str) -> set[str]:
    return {field for owner, field in LISTED if owner == name}


def request(params: SamplingParams | None = None, **others: object) -> Request:
    values = {
        "request_id": "r", "engine_id": "r-1", "prompt_token_ids": [1, 2, 3], "eos_token_ids": (0,),
        "seed": 99, "arrival_time": 0.0,
    }  # fmt: skip
    return Request(**{**values, "params": params or SamplingParams(), **others})


def stats(name: str, **values: object) -> SimpleNamespace:
    """Something with just the fields that vLLM's class has."""
    assert values.keys() <= fields(name)
    return SimpleNamespace(**{**dict.fromkeys(fields(name)), **values})


# -- requests ---------------------------------------------------------------------------------


def test_what_is_not_given_as_it_is_are_parameters_of_ours():
    """Each once; whatever is new goes to vLLM under its name, if vLLM has that."""
    named = [*CHANGED, *DONE_HERE, *REFUSED]
    assert len(named) == len(set(named))
    assert set(named) <= set(SamplingParams.__struct_fields__)


def test_what_is_given_are_parameters_that_vllm_has():
    """And of those that it has, the rest is known."""
    there = fields("SamplingParams")
    given = to_sampling(request(), 0).keys() | {"output_kind"}
    done_here = (set(DONE_HERE) & there) - {"n", "detokenize", "flat_logprobs", "output_kind"}
    assert given <= there
    assert there - given == UNUSED | done_here - {"truncate_prompt_tokens"}


def test_each_answer_is_a_request_with_a_seed_of_its_own():
    """The prompt is scored once; greedy answers are one each, which vLLM refuses to make several of."""
    params = SamplingParams(n=3, seed=5, prompt_logprobs=2, temperature=0.0)
    made = [to_sampling(request(params), index) for index in range(3)]
    assert [one["seed"] for one in made] == [5, 6, 7]
    assert [one["prompt_logprobs"] for one in made] == [2, None, None]
    assert {one["n"] for one in made} == {1}
    assert to_sampling(request(), 0)["seed"] is None


def test_chosen_ids_are_scored_without_a_count_beside_them():
    """Which vLLM would refuse."""
    made = to_sampling(request(SamplingParams(logprob_token_ids=[4, 5], logprobs=2)), 0)
    assert (made["logprobs"], made["logprob_token_ids"]) == (None, [4, 5])


def test_a_constraint_has_only_what_is_set():
    """In fields that vLLM has; of ours, the ones that it has not are refused by name."""
    ours = set(StructuredOutputsParams.__struct_fields__)
    taken = set(settings_of_constraints())
    assert taken | set(REFUSED_OF_CONSTRAINTS) == ours
    assert taken <= fields("StructuredOutputsParams")
    assert to_constraint(StructuredOutputsParams(regex="a+")) == {"regex": "a+"}
    assert to_constraint(None) is None


def settings_of_constraints() -> list[str]:
    found = []
    for name, value in (
        ("json", "{}"), ("json_object", True), ("regex", "a"), ("choice", ["a"]), ("grammar", "a"),
        ("structural_tag", "{}"),
    ):  # fmt: skip
        found += to_constraint(StructuredOutputsParams(**{name: value})) or {}
    return found


def test_a_repetition_is_looked_for_by_the_names_of_vllm():
    """With its numbers."""
    watch = RepetitionDetectionParams(max_pattern_size=4, min_count=3)
    made = to_sampling(request(SamplingParams(repetition_detection=watch)), 0)
    assert made["repetition_detection"].keys() == fields("RepetitionDetectionParams")
    assert made["repetition_detection"]["min_count"] == 3


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (SamplingParams(thinking_token_budget=5), "thinking_token_budget"),
        (
            SamplingParams(
                structured_outputs=StructuredOutputsParams(json="{}", whitespace_pattern=" ")
            ),
            "whitespace_pattern",
        ),
    ],
)
def test_what_vllm_would_ignore_is_refused_by_name(params, name):
    """Before it gets there."""
    with pytest.raises(BadRequest, match=name) as caught:
        check_params(params)
    assert caught.value.parameter == name


def test_what_is_said_of_a_transfer_goes_through():
    """Unread, for the connector; of one answer, since several are as many requests there."""
    given = {KEY: {"do_remote_decode": True, "transfer_id": "x", "tp_size": 8}}
    params = SamplingParams(extra_args=given)
    check_params(params)
    assert to_sampling(request(params), 0)["extra_args"] == given
    with pytest.raises(BadRequest, match="n=1"):
        check_params(msgspec.structs.replace(params, n=2))
    told = {"remote_engine_id": "e", "remote_block_ids": [[1], [2]]}
    made = to_sequence_output(request(), 0, output({}, kv_transfer_params=told))
    assert made.kv_transfer_params == told


def test_a_constraint_waits_for_the_end_of_reasoning_where_that_can_be_seen():
    """At once where nothing is open; refused where the engine would let it rule the reasoning too."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    at_once = msgspec.structs.replace(params, grammar_from_first_token=True)
    thinking = OpenReasoning(end="</think>", end_token_ids=[7])
    assert reasoning_ended(request(params), has_parser=False) is True
    assert reasoning_ended(request(params, reasoning=thinking), has_parser=True) is False
    assert reasoning_ended(request(at_once, reasoning=thinking), has_parser=False) is True
    assert reasoning_ended(request(reasoning=thinking), has_parser=False) is None
    with pytest.raises(BadRequest, match="--reasoning-parser"):
        reasoning_ended(request(params, reasoning=thinking), has_parser=False)


def test_an_embedding_is_normalized_by_the_name_that_vllm_has_for_it():
    """Its activation; scores have the same field for theirs."""
    embed = to_pooling(request(pooling=PoolingParams(task="embed", normalize=False, dimensions=8)))
    score = to_pooling(request(pooling=PoolingParams(task="classify", use_activation=True)))
    assert embed.keys() <= fields("PoolingParams")
    assert (embed["use_activation"], embed["dimensions"]) == (False, 8)
    assert score["use_activation"] is True
    with pytest.raises(BadRequest, match="prompt_pair"):
        to_pooling(request(pooling=PoolingParams(task="classify"), token_type_ids=[0, 1]))


# -- outputs ----------------------------------------------------------------------------------


def flat(*positions: list[tuple[int, float, int]]) -> SimpleNamespace:
    ends = [sum(map(len, positions[: i + 1])) for i in range(len(positions))]
    entries = [entry for position in positions for entry in position]
    return stats(
        "FlatLogprobs",
        start_indices=[0, *ends[:-1]],
        end_indices=ends,
        token_ids=[entry[0] for entry in entries],
        logprobs=[entry[1] for entry in entries],
        ranks=[entry[2] for entry in entries],
    )


def output(answer: dict[str, object], **values: object) -> SimpleNamespace:
    made = stats("CompletionOutput", token_ids=[])
    vars(made).update(answer)
    assert vars(made).keys() == fields("CompletionOutput")
    return stats("RequestOutput", outputs=[made], **values)


def test_an_output_has_tokens_scores_and_counts():
    """The first position of a prompt has none; drafts count as often as they were accepted."""
    drafts = stats("RequestSpecDecodeMetrics", num_draft_tokens=9, histogram=[1, 2, 0, 1])
    made = to_sequence_output(
        request(),
        1,
        output(
            {
                "token_ids": [5, 6],
                "logprobs": flat([(5, -0.5, 1), (7, -1.0, 2)], [(6, -0.1, 1)]),
                "spec_decode_metrics": drafts,
            },
            prompt_logprobs=flat([], [(2, -3.0, 8)], [(3, -4.0, 9)]),
            num_cached_tokens=2,
        ),
    )
    assert (made.engine_id, made.index, made.token_ids) == ("r-1", 1, [5, 6])
    assert made.logprobs == [[(5, -0.5, 1), (7, -1.0, 2)], [(6, -0.1, 1)]]
    assert made.prompt_logprobs == [[(2, -3.0, 8)], [(3, -4.0, 9)]]
    assert (made.num_cached_tokens, made.num_draft_tokens, made.num_accepted_tokens) == (2, 9, 5)
    assert made.finish_reason is None


@pytest.mark.parametrize("reason", list(FinishReason))
def test_every_end_of_vllm_is_one_of_ours(reason):
    """With the stop token where there is one; what failed has a sentence."""
    made = to_sequence_output(
        request(), 0, output({"finish_reason": reason.value, "stop_reason": 17})
    )
    assert made.finish_reason is reason
    assert made.stop_reason == (17 if reason is FinishReason.STOP else None)
    assert bool(made.error) is (reason is FinishReason.ERROR)


def test_no_scores_are_none():
    """Neither those that were not requested, nor those of a later part."""
    assert to_rows(None) is None
    assert to_rows([]) is None


# -- loads and events -------------------------------------------------------------------------


def test_what_nobody_reads_takes_no_memory():
    """vLLM reports every step, for as long as the server lives."""
    seconds = itertools.count()
    meter = LoadMeter(0, clock=lambda: float(next(seconds)))
    cache = stats("PrefixCacheStats", requests=100, queries=40, hits=10)
    report = stats(
        "SchedulerStats", num_running_reqs=1, num_waiting_reqs=0, num_skipped_waiting_reqs=0,
        kv_cache_usage=0.5, prefix_cache_stats=cache, spec_decoding_stats=None,
    )  # fmt: skip
    for _ in range(1000):
        meter.record(
            report, stats("IterationStats", num_generation_tokens=20, num_preempted_reqs=1)
        )
    assert len(meter._recent) <= 10
    assert len(meter._lookups) <= 10


def test_the_load_is_what_vllm_said_last():
    """While it has requests; after the last of them it says nothing more."""
    now = 100.0
    meter = LoadMeter(1, clock=lambda: now)
    cache = stats("PrefixCacheStats", requests=2, queries=40, hits=10)
    drafts = stats("SpecDecodingStats", num_draft_tokens=6, num_accepted_tokens=4)
    meter.record(
        stats(
            "SchedulerStats", num_running_reqs=3, num_waiting_reqs=2, num_skipped_waiting_reqs=1,
            kv_cache_usage=0.5, prefix_cache_stats=cache, spec_decoding_stats=drafts,
        ),
        stats("IterationStats", num_generation_tokens=20, num_preempted_reqs=1),
    )  # fmt: skip
    config = SimpleNamespace(
        cache_config=CacheConfig(
            block_size=16, num_blocks=10, block_bytes=0, kv_cache_dtype="auto",
            enable_prefix_caching=True,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        lora_config=None,
    )  # fmt: skip
    busy = meter.read(config, is_idle=False, num_loras=0, num_waiting_tokens=7)
    assert (busy.data_parallel_rank, busy.num_running, busy.num_waiting) == (1, 3, 3)
    assert (busy.num_used_tokens, busy.max_total_tokens, busy.token_usage) == (80, 160, 0.5)
    assert (busy.gen_throughput, busy.cache_hit_rate, busy.num_preemptions) == (4.0, 0.25, 1)
    assert (busy.num_draft_tokens, busy.num_accepted_tokens) == (6, 4)
    now += 60
    idle = meter.read(config, is_idle=True, num_loras=0, num_waiting_tokens=0)
    assert (idle.num_running, idle.num_waiting, idle.token_usage) == (0, 0, 0.0)
    assert idle.gen_throughput == 0.0


def encoded(kind: str, **values: object) -> object:
    """An event as vLLM writes it: all fields, by name."""
    assert values.keys() <= fields(kind)
    event = {"type": kind, **dict.fromkeys(fields(kind)), **values}
    batch = _decoder.decode(msgspec.msgpack.encode([1.5, [event], 0]))
    return to_event(batch.events[0])


def test_events_of_the_cache_are_ours():
    """Hashes as bytes, whichever way they come; what lies elsewhere is left out."""
    stored = {
        "block_hashes": [b"h" * 32], "token_ids": [1, 2], "block_size": 2, "medium": "GPU",
        "extra_keys": [("sql", "salt")], "lora_name": "sql", "group_idx": 0,
    }  # fmt: skip
    assert encoded("BlockStored", **stored) == BlockStored(
        block_hashes=[b"h" * 32], parent_block_hash=None, token_ids=[1, 2], block_size=2,
        lora_name="sql", cache_salt="salt",
    )  # fmt: skip
    seen = {**stored, "extra_keys": [("sql", ("red", -2), "salt"), None]}
    assert encoded("BlockStored", **seen).media == [[("red", -2)], []]
    assert encoded("BlockStored", **seen).cache_salt == "salt"
    assert encoded("BlockStored", **{**stored, "medium": "CPU"}) is None
    assert encoded("BlockStored", **{**stored, "group_idx": 1}) is None
    removed = encoded("BlockRemoved", block_hashes=[2**64 - 1], medium="GPU")
    assert removed == BlockRemoved(block_hashes=[b"\xff" * 8])


# -- settings ---------------------------------------------------------------------------------


def test_every_engine_option_of_ours_is_given_or_refused():
    """Under the name that vLLM has for it."""
    named = [*settings.SAME, *settings.RENAMED, *settings.OWN, *settings.REFUSED]
    assert sorted(named) == sorted(EngineOptions.__struct_fields__)
    theirs = {*settings.SAME, *settings.RENAMED.values(), *settings.DECIDED}
    assert theirs <= fields("AsyncEngineArgs")


def test_what_is_set_is_given_and_vllms_own_comes_first():
    """What is not set is left to vLLM."""
    options = EngineOptions(
        model="m", max_model_len=64, kv_cache_bytes=1 << 30, hf_overrides='{"a": 1}'
    )
    made = to_settings(options, {"tensor_parallel_size": 2, "max_model_len": 32}, "qwen3")
    assert made == {
        "model": "m",
        "served_model_name": ["m"],
        "max_model_len": 32,
        "kv_cache_memory_bytes": 1 << 30,
        "hf_overrides": {"a": 1},
        "tensor_parallel_size": 2,
        "reasoning_parser": "qwen3",
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }


def test_another_backend_of_constraints_is_not_told_of_white_space():
    """It would refuse to start."""
    given = {"structured_outputs_config": {"backend": "guidance"}}
    made = to_settings(EngineOptions(structured_outputs_in_reasoning=True), given, None)
    assert made["structured_outputs_config"] == {"backend": "guidance", "enable_in_reasoning": True}


@pytest.mark.parametrize("name", sorted(settings.REFUSED))
def test_a_flag_that_means_nothing_there_is_refused(name):
    """By its name, with what to do instead."""
    value = {"kv_cache_dtype": "int8", "compute": "native"}.get(name, 1)
    options = msgspec.structs.replace(EngineOptions(), **{name: value})
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} has no effect"):
        to_settings(options, {}, None)


def test_rows_that_time_decides_are_refused_and_a_number_is_given():
    """vLLM's scheduler knows numbers only."""
    with pytest.raises(ConfigError, match="--max-num-batched-tokens auto has no effect"):
        to_settings(EngineOptions(max_num_batched_tokens="auto"), {}, None)
    made = to_settings(EngineOptions(max_num_batched_tokens=256), {}, None)
    assert made["max_num_batched_tokens"] == 256


@pytest.mark.parametrize("name", settings.DECIDED)
def test_what_this_server_decides_cannot_be_given(name):
    """Two answers to one question would be one too many."""
    with pytest.raises(ConfigError, match=name):
        to_settings(EngineOptions(), {name: 1}, None)


@pytest.mark.parametrize("given", ["2", 0, True, 2.0, 10**6, None])
def test_a_number_of_ranks_that_is_none_is_refused_by_name(given):
    """Ports are opened for so many before vLLM looks at it."""
    with pytest.raises(ConfigError, match="--data-parallel-size must be a whole number"):
        to_settings(EngineOptions(), {"data_parallel_size": given}, None)
    with pytest.raises(ConfigError, match="--data-parallel-size"):
        to_settings(EngineOptions(data_parallel_size=0), {}, None)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_engine_args_are_an_object(text):
    """Anything else is refused."""
    with pytest.raises(ConfigError, match="--engine-args"):
        read_engine_args(text)
    assert read_engine_args(json.dumps({"tensor-parallel-size": 2})) == {"tensor_parallel_size": 2}


def test_without_vllm_nothing_else_is_missed():
    """`import weft`, its command and these mappings load neither vLLM nor torch; a start says what to install."""
    code = (
        "import sys, weft, weft.cli.serving.serve, weft.vllm.client, weft.vllm.launch, weft.cli.serving.vllm\n"
        "assert not {'vllm', 'torch'} & set(sys.modules)\n"
        "sys.modules['vllm'] = None\n"
        "from weft.core.errors import ConfigError\n"
        "try: weft.vllm.engine.import_vllm()\n"
        "except ConfigError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'weft-serve[vllm]'" in done.stdout
