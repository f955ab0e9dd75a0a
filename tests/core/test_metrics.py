"""The series that dashboards and pickers know: names, types, labels and buckets, exactly."""

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.doubles.stepping import make_config, make_request
from tests.doubles.transfers import transfer
from weft.core.config.engine import EngineConfig
from weft.core.config.speculation import SpeculativeConfig
from weft.core.errors import ConfigError
from weft.core.observe.metric_series import ABSENT, CACHE_CONFIG_LABELS, OLDER_NAMES, PREFIX, SERIES
from weft.core.observe.metrics import Metrics, expose
from weft.core.observe.observed import RemoteRequest
from weft.core.observe.stats import SequenceTimes, StepStats
from weft.core.observe.tally import Tally, token_bounds
from weft.core.values.engine_snapshots import EngineLoad
from weft.core.values.kv_cache import CacheConfig, KvOffloadingConfig
from weft.core.values.kv_transfer import KvRole
from weft.core.values.types import CompletionOutput, OutputKind, RequestOutput, SamplingParams
from weft.epp.pool.engines import ENGINES, LoadReader

REQUEST_S = "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0"
FIRST_S = (
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 "
    "160.0 640.0 2560.0"
)
TOKEN_S = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0"
TOKENS = "1.0 2.0 5.0 10.0 20.0 50.0 100.0"  # of a model with 128 positions
STEP = "1.0 8.0 16.0 32.0 64.0 128.0 256.0 512.0 1024.0 2048.0 4096.0 8192.0 16384.0"
CACHE = "block_size num_gpu_blocks block_bytes cache_dtype enable_prefix_caching mamba_block_size"
TRANSFER_BYTES = (
    "2048.0 8192.0 32768.0 131072.0 524288.0 2.097152e+06 8.388608e+06 3.3554432e+07 "
    "1.34217728e+08 5.36870912e+08 2.147483648e+09 8.589934592e+09"
)
# What vLLM's users have in their dashboards, written down a second time.
EXPECTED = {
    "num_requests_running": ("gauge", "", ""),
    "num_requests_waiting": ("gauge", "", ""),
    "kv_cache_usage_perc": ("gauge", "", ""),
    "engine_sleep_state": ("gauge", "sleep_state", ""),
    "cache_config_info": ("gauge", CACHE, ""),
    "lora_requests_info": (
        "gauge",
        "max_lora running_lora_adapters waiting_lora_adapters",
        "",
    ),
    "prefix_cache_queries": ("counter", "", ""),
    "prefix_cache_hits": ("counter", "", ""),
    "mm_cache_queries": ("counter", "", ""),
    "mm_cache_hits": ("counter", "", ""),
    "expert_load_tokens": ("counter", "expert", ""),
    "external_prefix_cache_queries": ("counter", "", ""),
    "external_prefix_cache_hits": ("counter", "", ""),
    "kv_offload_total_bytes": ("counter", "transfer_type", ""),
    "kv_offload_usage_bytes": ("gauge", "", ""),
    "kv_offload_lost_blocks": ("counter", "reason", ""),
    "nixl_xfer_time_seconds": (
        "histogram",
        "",
        "0.01 0.025 0.05 0.075 0.1 0.2 0.3 0.5 0.75 1.0 5.0",
    ),
    "nixl_bytes_transferred": (
        "histogram",
        "",
        TRANSFER_BYTES,
    ),
    "nixl_num_descriptors": (
        "histogram",
        "",
        "10.0 20.0 30.0 50.0 75.0 100.0 200.0 400.0 1000.0 2000.0 4000.0 10000.0 20000.0 50000.0",
    ),
    "nixl_num_failed_transfers": ("counter", "", ""),
    "nixl_num_failed_notifications": ("counter", "", ""),
    "nixl_num_kv_expired_reqs": ("counter", "", ""),
    "kv_transfer_sent_bytes": ("counter", "", ""),
    "kv_transfer_sent_blocks": ("counter", "", ""),
    "kv_transfer_sent_seconds": ("counter", "", ""),
    "kv_transfer_failed_sends": ("counter", "", ""),
    "num_preemptions": ("counter", "", ""),
    "resumed_requests": ("counter", "", ""),
    "corrupted_requests": ("counter", "", ""),
    "spec_decode_num_drafts": ("counter", "", ""),
    "spec_decode_num_draft_tokens": ("counter", "", ""),
    "spec_decode_num_accepted_tokens": ("counter", "", ""),
    "spec_decode_num_accepted_tokens_per_pos": ("counter", "position", ""),
    "prompt_tokens": ("counter", "", ""),
    "generation_tokens": ("counter", "", ""),
    "request_success": ("counter", "finished_reason", ""),
    "iteration_tokens_total": ("histogram", "", STEP),
    "request_prompt_tokens": ("histogram", "", TOKENS),
    "request_generation_tokens": ("histogram", "", TOKENS),
    "request_max_num_generation_tokens": ("histogram", "", TOKENS),
    "request_params_n": ("histogram", "", "1.0 2.0 5.0 10.0 20.0"),
    "request_params_max_tokens": ("histogram", "", TOKENS),
    "request_prefill_kv_computed_tokens": ("histogram", "", TOKENS),
    "time_to_first_token_seconds": ("histogram", "", FIRST_S),
    "inter_token_latency_seconds": ("histogram", "", TOKEN_S),
    "request_time_per_output_token_seconds": ("histogram", "", TOKEN_S),
    "e2e_request_latency_seconds": ("histogram", "", REQUEST_S),
    "request_queue_time_seconds": ("histogram", "", REQUEST_S),
    "request_inference_time_seconds": ("histogram", "", REQUEST_S),
    "request_prefill_time_seconds": ("histogram", "", REQUEST_S),
    "request_decode_time_seconds": ("histogram", "", REQUEST_S),
}


def families(metrics: Metrics):
    """What a scrape gives, by name."""
    text = generate_latest(metrics.registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def with_engine(**options):
    """Metrics and an engine that has told its load."""
    metrics = Metrics(**options)
    config = msgspec.structs.replace(
        make_config(),
        kv_offloading_config=KvOffloadingConfig(num_bytes=1, path=None),
        kv_transfer_config=transfer(KvRole.BOTH),
    )
    engine = metrics.add_engine(_speculating(config))
    engine.load = EngineLoad()
    return metrics, engine


def _speculating(config: EngineConfig) -> EngineConfig:
    speculation = SpeculativeConfig(
        method="ngram", num_speculative_tokens=3, prompt_lookup_max=2, prompt_lookup_min=1
    )
    scheduler = msgspec.structs.replace(config.scheduler_config, speculation=speculation)
    return msgspec.structs.replace(config, scheduler_config=scheduler)


def sample(metrics: Metrics, name: str, **labels: str):
    """One value, as the registry gives it."""
    every = {"model_name": "fake", "engine": "0", **labels}
    return metrics.registry.get_sample_value(PREFIX + name, every)


@pytest.fixture(scope="module")
def scraped():
    """A scrape of an idle engine."""
    return families(with_engine()[0])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_series_has_its_type_labels_and_buckets(scraped, name: str):
    """Exactly those of the table: a query written for vLLM finds the same here."""
    kind, labels, buckets = EXPECTED[name]
    family = scraped[PREFIX + name]
    assert family.type == kind
    names = {key for sample in family.samples for key in sample.labels} - {"le"}
    assert names == {"model_name", "engine", *labels.split()}
    bounds = [s.labels["le"] for s in family.samples if s.name.endswith("_bucket")]
    assert bounds == ([*buckets.split(), "+Inf"] if buckets else [])


def test_there_is_no_series_beyond_the_table(scraped):
    """A new one is written down here too, and one that is said to be absent is."""
    assert {name for name in scraped if name.startswith(PREFIX)} == {
        PREFIX + name for name in EXPECTED
    }
    absent = {name.removesuffix("_total") for names in ABSENT for name in names.split(", ")}
    assert absent.isdisjoint(EXPECTED)


def test_every_series_has_samples_before_the_first_request(scraped):
    """A rate over a counter that appears with its first event misses that event."""
    assert [series.name for series in SERIES if not scraped[PREFIX + series.name].samples] == []


def test_gauges_are_0_when_idle():
    """Nothing runs, nothing waits, nothing is held."""
    metrics, _ = with_engine()
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    assert [sample(metrics, name) for name in names] == [0, 0, 0]


def test_every_reason_to_finish_is_there_from_the_start():
    """At 0, so that the first error shows as a rate."""
    metrics, _ = with_engine()
    reasons = ("stop", "length", "abort", "error", "repetition")
    values = [sample(metrics, "request_success_total", finished_reason=r) for r in reasons]
    assert values == [0] * 5


def test_an_engine_is_awake():
    """Of the three states exactly one is 1."""
    metrics, _ = with_engine()
    states = ("awake", "weights_offloaded", "discard_all")
    values = [sample(metrics, "engine_sleep_state", sleep_state=state) for state in states]
    assert values == [1, 0, 0]


def test_every_setting_of_the_cache_is_a_label():
    """A setting added to the pool is added here."""
    assert len(CACHE_CONFIG_LABELS) == len(CacheConfig.__struct_fields__)


def test_the_picker_reads_load_pool_and_adapters():
    """The names and labels are a contract: our own picker reads them through the text alone."""
    metrics, engine = with_engine()
    engine.load = EngineLoad(num_running=3, num_waiting=5, num_used_tokens=64, max_total_tokens=256)
    load = LoadReader(ENGINES["vllm"]).read(generate_latest(metrics.registry).decode())
    assert (load.num_running, load.num_waiting, load.kv_usage) == (3, 5, 0.25)
    assert (load.block_size, load.num_blocks) == (4, 64)
    assert (load.adapters.active, load.adapters.max_active) == (frozenset(), 0)


def test_two_engines_share_families_and_differ_in_a_label():
    """One family a name, as the format demands; `engine` counts from 0."""
    metrics, _ = with_engine()
    metrics.add_engine(make_config()).load = EngineLoad(num_running=2)
    found = families(metrics)["vllm:num_requests_running"].samples
    assert [(s.labels["engine"], s.value) for s in found] == [("0", 0), ("1", 2)]


def test_an_engine_that_takes_its_rank_again_counts_from_zero():
    """It is the same label, and as after any restart what it counts begins anew."""
    metrics = Metrics()
    config = msgspec.structs.replace(make_config(), data_parallel_size=2)
    for rank in (0, 1, 0):
        metrics.add_engine(config.of_rank(rank)).count_tokens(rank + 3, 0)
    found = families(metrics)["vllm:prompt_tokens"].samples
    assert [(s.labels["engine"], s.value) for s in found] == [("0", 3), ("1", 4)]


def test_an_engine_behind_another_server_has_no_load_of_its_own():
    """A gauge that nobody sets would tell a picker that the engine is free."""
    metrics = Metrics()
    metrics.add_engine(make_config())
    assert families(metrics)["vllm:num_requests_waiting"].samples == []
    assert sample(metrics, "generation_tokens_total") == 0


def test_two_registries_share_nothing():
    """No state is the module's: two servers in one process count for themselves."""
    first, engine = with_engine()
    second, _ = with_engine()
    engine.take_step(StepStats(total_prompt_tokens=7), EngineLoad())
    assert sample(first, "prompt_tokens_total") == 7
    assert sample(second, "prompt_tokens_total") == 0


def test_names_keep_their_colon():
    """The library's own choice of a format would turn `vllm:` into `vllm_` for most scrapers."""
    metrics, _ = with_engine()
    assert b"\nvllm:generation_tokens_total{" in expose(metrics.registry)
    assert b"\nvllm_" not in expose(metrics.registry)


def test_the_process_itself_is_measured():
    """The usual series of a Python process are in the same registry."""
    metrics, _ = with_engine()
    assert {"python_info", "process_resident_memory_bytes"} <= set(families(metrics))


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.11", {"time_per_output_token_seconds"}),
        ("0.10", {older.name for older in OLDER_NAMES}),
        ("0.9.2", {older.name for older in OLDER_NAMES}),
    ],
)
def test_older_names_are_shown_up_to_their_last_version(version: str, names: set[str]):
    """Beside the current name, with the same samples."""
    metrics, engine = with_engine(hidden_for=version)
    engine.inter_token.add(0.2, 3)
    shown = {name.removeprefix(PREFIX) for name in families(metrics) if name.startswith(PREFIX)}
    assert shown - set(EXPECTED) == names
    assert sample(metrics, "time_per_output_token_seconds_count") == 3


@pytest.mark.parametrize("version", ["0.12", "1.0", "", "new", "0.10.x"])
def test_a_version_that_shows_nothing_is_refused(version: str):
    """A flag that changes nothing would hide a mistake."""
    with pytest.raises(ConfigError, match="show-hidden-metrics-for-version"):
        Metrics(hidden_for=version)


def test_a_step_counts_its_tokens_and_intervals():
    """A number of equal intervals counts as that many."""
    metrics, engine = with_engine()
    engine.take_step(
        StepStats(num_computed_tokens=9, intervals=[(0.02, 8), (0.5, 1)]), EngineLoad()
    )
    assert sample(metrics, "iteration_tokens_total_sum") == 9
    assert sample(metrics, "inter_token_latency_seconds_count") == 9
    assert sample(metrics, "inter_token_latency_seconds_sum") == pytest.approx(0.66)
    assert sample(metrics, "inter_token_latency_seconds_bucket", le="0.025") == 8


def test_tokens_that_come_together_share_the_time_before_them():
    """A server that sends so many at once made them one after the other."""
    metrics, engine = with_engine()
    request = make_request("r", [1, 2, 3], SamplingParams(output_kind=OutputKind.DELTA))
    remote = RemoteRequest(engine, request)
    with remote.following():
        for token_ids in ([5], [6, 7, 8, 9]):
            answer = CompletionOutput(index=0, token_ids=token_ids)
            remote.take(
                RequestOutput(
                    request_id="r",
                    prompt=None,
                    prompt_token_ids=[1, 2, 3],
                    outputs=[answer],
                    is_finished=False,
                )
            )
    assert sample(metrics, "inter_token_latency_seconds_count") == 4
    assert sample(metrics, "generation_tokens_total") == 5


def test_the_news_of_no_step_is_no_step():
    """An abort is told without one."""
    metrics, engine = with_engine()
    engine.take_step(StepStats(), EngineLoad())
    assert sample(metrics, "iteration_tokens_total_count") == 0


def test_what_ended_counts_the_intervals_that_closed():
    """A sequence that never ran has no queue time; one without a token no prefill."""
    metrics, engine = with_engine()
    ended = [
        SequenceTimes(num_prompt_tokens=8),
        SequenceTimes(queue_s=1.0, num_prompt_tokens=8),
        SequenceTimes(
            queue_s=1.0,
            prefill_s=2.0,
            decode_s=6.0,
            num_prompt_tokens=8,
            num_cached_tokens=4,
            num_output_tokens=4,
        ),
    ]
    engine.take_step(StepStats(ended=ended), EngineLoad())
    names = ("queue", "prefill", "decode", "inference")
    counts = [sample(metrics, f"request_{name}_time_seconds_count") for name in names]
    assert counts == [2, 1, 1, 1]
    assert sample(metrics, "request_inference_time_seconds_sum") == 8
    assert sample(metrics, "request_time_per_output_token_seconds_sum") == 2
    assert sample(metrics, "request_prefill_kv_computed_tokens_sum") == 8 + 4


def test_a_tally_puts_an_amount_into_the_first_bucket_that_holds_it():
    """Bounds are inclusive, buckets cumulative, and what is beyond all bounds is in the last."""
    tally = Tally((1.0, 2.0))
    tally.add(1.0)
    tally.add(1.5, 2)
    tally.add(9.0)
    assert tally.buckets() == [("1.0", 1.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert (tally.sum, tally.count) == (13.0, 4)


def test_token_bounds_end_at_the_longest():
    """1, 2, 5 and their tens, none beyond the model's length."""
    assert token_bounds(20) == (1.0, 2.0, 5.0, 10.0, 20.0)
    assert token_bounds(199)[-1] == 100.0


def test_a_long_name_of_a_model_leaves_the_page_readable():
    """It stands on every line."""
    config = make_config()
    named = msgspec.structs.replace(config.model_config, served_model_names=("m" * 2**20,))
    metrics = Metrics()
    metrics.add_engine(msgspec.structs.replace(config, model_config=named))
    assert len(expose(metrics.registry)) < 500_000
