"""weft.engine.start.configure"""

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.doubles.secret_file import secret_file
from weft.core.config.elastic import ElasticConfig
from weft.core.config.engine import ComputeConfig, EngineConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.kv_cache import StateCacheConfig
from weft.core.values.types import PoolingKind
from weft.engine.start.configure import resolve
from weft.engine.start.pool_size import DEFAULT_POOL_BYTES
from weft.engine.step.step_size import MAX_ROWS
from weft.model.card import AdapterBytes, ModelCard
from weft.model.pooling import PoolingSpec

GIB = 1 << 30


def card(
    *,
    max_position_embeddings: int = 4096,
    kv_bytes_per_token: int = 1 << 16,
    weight_bytes: int = GIB,
) -> ModelCard:
    return ModelCard(
        name="a-model",
        model_type="llama",
        architectures=("LlamaForCausalLM",),
        vocab_size=1000,
        max_position_embeddings=max_position_embeddings,
        eos_token_ids=(2,),
        bos_token_id=1,
        pad_token_id=None,
        dtype="float32",
        default_sampling_params={"temperature": 0.6},
        num_parameters=10,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        notice=None,
        adapter=AdapterBytes((1 << 20, 1 << 10, 1), 32),
    )


def resolved(model_card: ModelCard | None = None, free: int = 16 * GIB, **flags) -> EngineConfig:
    return resolve(EngineOptions(**flags), model_card or card(), free)


def refusal(model_card: ModelCard | None = None, free: int = 16 * GIB, **flags) -> str:
    with pytest.raises(ConfigError) as caught:
        resolved(model_card, free, **flags)
    return str(caught.value)


def test_grammars_rule_reasoning_only_when_requested():
    """The flag reaches the engine's configuration."""
    assert not resolved().structured_outputs_in_reasoning
    assert resolved(structured_outputs_in_reasoning=True).structured_outputs_in_reasoning


def test_the_pace_of_streams_is_bounded():
    """Nothing said is 25 ms; 0 is no pace; the rest is refused by name."""
    assert resolved().stream_interval_ms == 25
    assert resolved(stream_interval_ms=0.0).stream_interval_ms == 0
    for wrong in (-1.0, 20_000.0, float("nan"), float("inf")):
        assert "--stream-interval-ms" in refusal(stream_interval_ms=wrong)


@pytest.mark.parametrize(
    ("row_bytes", "rows"), [(0, 2048), (1 << 18, 2048), (1 << 19, 1024), (1 << 22, 512)]
)
def test_rows_left_open_take_a_small_part_of_the_memory(row_bytes: int, rows: int):
    """From 2,048 down to 512, which is not gone below."""
    auto = EngineOptions(max_num_batched_tokens="auto")
    config = resolve(auto, card(), 16 * GIB, row_bytes=row_bytes)
    assert config.scheduler_config.max_num_batched_tokens == rows
    assert config.scheduler_config.target_itl_ms == 100


def test_a_number_of_rows_is_that_number():
    """As vLLM has it: nothing but rows counts, unless a target is given too."""
    alone = resolved(max_num_batched_tokens=8192).scheduler_config
    both = resolved(max_num_batched_tokens=8192, target_itl_ms=50.0).scheduler_config
    assert (alone.max_num_batched_tokens, alone.target_itl_ms) == (8192, 0)
    assert (both.max_num_batched_tokens, both.target_itl_ms) == (8192, 50)
    assert (
        resolved(max_num_batched_tokens="auto", target_itl_ms=0.0).scheduler_config.target_itl_ms
        == 0
    )
    unset = resolved(target_itl_ms=50.0).scheduler_config
    assert (unset.max_num_batched_tokens, unset.target_itl_ms) == (512, 50)


def test_rows_stay_few_where_a_prompt_is_lent_step_by_step():
    """Who fetches it has each step's blocks while the next is computed."""
    extra = {"secret_file": secret_file()}
    transfer = {
        "kv_connector": "TcpConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }
    config = resolved(kv_transfer_config=transfer, max_num_batched_tokens="auto")
    assert config.scheduler_config.max_num_batched_tokens == 512


@pytest.mark.parametrize("wrong", [-1.0, 20_000.0, float("nan")])
def test_what_is_no_time_is_no_target(wrong: float):
    """Refused by name, with what is allowed."""
    assert "--target-itl-ms must be between 0 and 10000" in refusal(target_itl_ms=wrong)


def test_a_target_is_refused_where_no_token_follows_another():
    """It would change nothing."""
    spec = PoolingSpec(hidden_size=8, kind=PoolingKind.CLS, normalize=True)
    assert "generates no text" in refusal(replace(card(), pooling=spec), target_itl_ms=50.0)


def test_what_is_not_given_is_chosen():
    """Nothing in an EngineConfig is left open; the length is the model's own."""
    config = resolved()
    assert config.model_config.max_model_len == 4096
    assert config.model_config.served_model_names == ("embedded:tiny",)
    assert config.model_config.default_sampling_params == {"temperature": 0.6}
    assert config.cache_config.block_size == 16
    assert config.cache_config.block_bytes == 16 << 16
    assert config.scheduler_config.policy == "fcfs"


def test_what_is_given_stays():
    """Every option arrives in the configuration."""
    config = resolved(
        model="/models/one",
        revision="main",
        served_model_name=["one", "uno"],
        max_model_len=2048,
        max_num_seqs=3,
        max_num_batched_tokens=64,
        block_size=32,
        num_gpu_blocks_override=100,
        enable_prefix_caching=False,
        scheduling_policy="priority",
        max_num_queued_reqs=7,
        max_num_queued_tokens=9000,
        max_logprobs=5,
    )
    model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
    assert (model.model, model.revision) == ("/models/one", "main")
    assert model.served_model_names == ("one", "uno")
    assert (model.max_model_len, model.max_logprobs) == (2048, 5)
    assert (cache.block_size, cache.num_blocks, cache.enable_prefix_caching) == (32, 100, False)
    assert (scheduler.max_num_seqs, scheduler.max_num_batched_tokens) == (3, 64)
    assert (scheduler.max_num_queued_reqs, scheduler.max_num_queued_tokens) == (7, 9000)
    assert scheduler.policy == "priority"


def test_a_small_model_takes_no_more_than_its_sequences_can_fill():
    """The default pool holds max_num_seqs sequences of full length, and not more."""
    small = card(max_position_embeddings=512, kv_bytes_per_token=1024, weight_bytes=1 << 20)
    assert resolved(small, max_num_seqs=4).cache_config.max_total_tokens == 4 * 512


def test_the_default_pool_has_an_upper_bound():
    """However much memory is free, a pool nobody asked for stays at a few gigabytes."""
    cache = resolved(free=512 * GIB, max_num_seqs=1000).cache_config
    assert cache.num_blocks * cache.block_bytes == DEFAULT_POOL_BYTES


def test_the_default_pool_leaves_memory_for_the_rest():
    """Weights and pool together take four fifths of the free memory at most."""
    cache = resolved(free=3 * GIB).cache_config
    taken = GIB + cache.num_blocks * cache.block_bytes
    assert 0.79 * 3 * GIB < taken <= 0.8 * 3 * GIB


def test_kv_cache_bytes_become_whole_blocks():
    """--kv-cache-bytes is an upper bound."""
    assert resolved(kv_cache_bytes=GIB + 5).cache_config.num_blocks == GIB // (16 << 16)


def test_minus_one_logprobs_means_the_vocabulary():
    """--max-logprobs -1 lifts the limit."""
    assert resolved(max_logprobs=-1).model_config.max_logprobs == 1000


def test_a_model_without_kv_gets_blocks_all_the_same():
    """embedded:echo keeps no KV; its pool only counts."""
    assert resolved(card(kv_bytes_per_token=0)).cache_config.num_blocks == 256 * 128


@pytest.mark.parametrize(
    "name",
    [
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "block_size",
        "num_gpu_blocks_override",
        "kv_cache_bytes",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
    ],
)
@pytest.mark.parametrize("value", [0, -1, 2**70])
def test_a_number_out_of_range_is_refused_by_the_name_of_its_flag(name: str, value: int):
    """The message names the flag, the value and what is allowed."""
    flag = "--" + name.replace("_", "-")
    assert re.match(rf"{flag} .*{value}|{flag} {value} ", refusal(**{name: value}))


def test_a_step_has_no_more_rows_than_the_core_takes():
    """Else the first step that is so large would end the engine."""
    allowed = resolved(max_num_batched_tokens=MAX_ROWS)
    assert allowed.scheduler_config.max_num_batched_tokens == MAX_ROWS
    assert refusal(max_num_batched_tokens=MAX_ROWS + 1) == (
        "--max-num-batched-tokens must be between 1 and 1048576, not 1048577"
    )


def test_a_length_beyond_the_models_positions_is_refused():
    """A model computes nonsense past its positions."""
    assert refusal(max_model_len=4097) == (
        "--max-model-len 4097 is beyond the 4096 positions that a-model has"
    )


def test_a_pool_beyond_the_memory_is_refused_with_two_ways_out():
    """The usual pool, or the largest there is memory for; both work as written."""
    message = refusal(free=4 * GIB, num_gpu_blocks_override=1_000_000)
    advice = [parsed(flags) for flags in re.findall(r'"(--.*?)"', message)]
    pools = [resolved(free=4 * GIB, **flags).cache_config.num_blocks for flags in advice]
    assert pools[0] < pools[1] == 3 * GIB // (16 << 16)


@pytest.mark.parametrize(
    ("rank", "ranks"), [(8, (32, 32, 32)), (16, (32, 32, 64)), (33, (64, 96, 128))]
)
def test_memory_is_reserved_for_adapters(rank, ranks):
    """For as many as may be loaded, on every matrix; ranks side by side are padded together."""
    size = sum(a * b for a, b in zip(ranks, (1 << 20, 1 << 10, 1), strict=True))
    model = card(weight_bytes=GIB)
    flags = {"enable_lora": True, "max_loras": 3, "max_lora_rank": rank}
    least = GIB + 3 * size + 256 * (1 << 20)  # one sequence of full length
    assert resolved(model, free=least, num_gpu_blocks_override=256, **flags).lora_config
    text = refusal(model, free=least - 1, num_gpu_blocks_override=256, **flags)
    assert "weights and 3 LoRA adapters" in text
    assert resolved(model, free=GIB + 256 * (1 << 20), num_gpu_blocks_override=256)


def test_weights_beyond_the_memory_are_refused_with_the_numbers():
    """No flag helps there, so none is named."""
    message = refusal(card(weight_bytes=8 * GIB), free=4 * GIB)
    assert "8 GiB" in message
    assert "4 GiB" in message
    assert "--" not in message


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"served_model_name": ["a", " "]}, "--served-model-name"),
        ({"scheduling_policy": "lifo"}, '--scheduling-policy "lifo"'),
        ({"max_logprobs": -2}, "--max-logprobs"),
        ({"logprobs_mode": "raw"}, "--logprobs-mode"),
        ({"kv_cache_bytes": GIB, "num_gpu_blocks_override": 5}, "not both"),
        ({"compute": "tpu"}, "--compute"),
        ({"quantization": "int3"}, "--quantization"),
        ({"num_threads": 0}, "--num-threads"),
        ({"num_threads": 2000}, "--num-threads"),
        # The reference has no threads of its own to set.
        ({"num_threads": 2, "compute": "reference"}, "--num-threads"),
        ({"mamba_block_size": 64}, "--mamba-block-size: a-model has no recurrent states"),
        ({"data_parallel_size": 0}, "--data-parallel-size must be between 1 and 64"),
        ({"data_parallel_size": 65}, "--data-parallel-size must be between 1 and 64"),
        (
            {"data_parallel_size": 3, "num_threads": 2, "compute": "native"},
            "--num-threads 2 leaves",
        ),
        (
            {
                "data_parallel_size": 2,
                "compute": "reference",
                "weight_transfer_config": '{"backend": "shared_memory"}',
            },
            "--weight-transfer-config needs --data-parallel-size 1 with --compute reference",
        ),
        (
            {
                "data_parallel_size": 2,
                "kv_events_config": {"enable_kv_cache_events": True, "endpoint": "ipc:///x"},
            },
            "endpoint must be tcp://HOST:PORT with --data-parallel-size",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_followed_is_refused_by_the_name_of_its_flag(flags: dict, words: str):
    """Nothing is quietly replaced, or ignored."""
    assert words in refusal(**flags)


def parsed(flags: str) -> dict[str, int]:
    pairs = re.findall(r"--([a-z-]+) (\d+)", flags)
    return {name.replace("-", "_"): int(value) for name, value in pairs}


def test_a_pool_too_small_for_one_sequence_is_refused_with_two_ways_out():
    """Less length for the same pool, or a pool for the length; both work as written."""
    message = refusal(num_gpu_blocks_override=10)
    assert "needs 256 blocks" in message
    shorter, larger = (parsed(flags) for flags in re.findall(r'"(--.*?)"', message))
    assert shorter == {"max_model_len": 160, "num_gpu_blocks_override": 10}
    assert larger == {"max_model_len": 4096, "num_gpu_blocks_override": 256}


def test_states_count_with_the_blocks_that_hold_them():
    """A block takes more than its tokens' keys and values, and advice knows it."""
    plain, hybrid = card(), replace(card(), state_bytes_per_block=1 << 20)
    assert resolved(hybrid).cache_config.block_bytes == (1 << 20) + (1 << 20)
    assert resolved(plain).cache_config.block_bytes == 1 << 20
    num_blocks = resolved(hybrid, kv_cache_bytes=1 << 30).cache_config.num_blocks
    assert num_blocks == (1 << 30) >> 21


RECURRENT = {"state_bytes_per_slot": 1 << 20}


def test_states_have_slots_beside_the_pool():
    """Two for each sequence that may run, and what they take is not there for blocks."""
    recurrent = replace(card(), **RECURRENT)
    cache = resolved(recurrent, max_num_seqs=4).cache_config
    assert cache.states == StateCacheConfig(num_slots=8, slot_bytes=1 << 20, mamba_block_size=512)
    assert resolved(max_num_seqs=4).cache_config.states is None
    assert "states take" in refusal(replace(card(), state_bytes_per_slot=1 << 50))


def test_slots_take_half_of_what_is_spare_at_most():
    """But two, without which nothing runs."""
    recurrent = replace(card(), state_bytes_per_slot=GIB // 8)
    states = resolved(recurrent, max_num_seqs=512).cache_config.states
    assert 2 <= states.num_slots < 1024
    assert states.num_bytes <= 4 * GIB


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mamba_block_size": 24}, "--mamba-block-size must be a multiple of --block-size"),
        ({"mamba_block_size": 0}, "mamba-block-size"),
        ({"kv_offloading_size": 1e-5}, "that a block and a state take"),
    ],
)
def test_what_does_not_go_with_slots_is_refused_by_name(options, message):
    """And so is a tier that has no room for a block with its state."""
    assert message in refusal(replace(card(), **RECURRENT), **options)


def test_drafts_that_came_true_are_computed_again_where_layers_keep_states():
    """Their states do not go through what may be wrong."""
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    of_blocks, of_slots = {"state_bytes_per_block": 1 << 10}, RECURRENT
    for states, recomputes in (({}, False), (of_blocks, True), (of_slots, True)):
        config = resolved(replace(card(), **states), speculative_config=drafts).scheduler_config
        assert config.speculation.recomputes is recomputes


@given(
    free=st.integers(GIB, 64 * GIB),
    weights=st.integers(1, 64 * GIB),
    kv=st.integers(1, 1 << 20),
    length=st.integers(2, 1 << 20),
    block_size=st.integers(1, 1024),
    blocks=st.none() | st.integers(1, 1 << 16),
)
@example(free=GIB, weights=1, kv=879_164, length=7, block_size=1024, blocks=None)
def test_every_advice_works(free, weights, kv, length, block_size, blocks):
    """Whatever the numbers: flags that a refusal offers are accepted when given as written."""
    model = card(max_position_embeddings=length, kv_bytes_per_token=kv, weight_bytes=weights)
    try:
        config = resolved(model, free, block_size=block_size, num_gpu_blocks_override=blocks)
    except ConfigError as refused:
        advice = [parsed(flags) for flags in re.findall(r'"(--.*?)"', str(refused))]
        for flags in advice:
            assert resolved(model, free, block_size=block_size, **flags)
    else:
        assert config.cache_config.max_total_tokens >= length
        assert config.cache_config.num_blocks * block_size * kv + weights <= free


def test_engines_share_memory_and_threads():
    """Each has what one alone would have of its part, beside the weights, which there are once; what is given
    for one engine is not divided.
    """
    half = resolved(free=8 * GIB, num_threads=2, compute="native", memory_share=0.5)
    both = resolved(
        free=16 * GIB - card().weight_bytes,
        num_threads=5,
        compute="native",
        memory_share=0.5,
        data_parallel_size=2,
    )
    assert both.cache_config == half.cache_config
    assert both.compute_config == half.compute_config
    assert (
        resolved(data_parallel_size=2, num_gpu_blocks_override=300).cache_config.num_blocks == 300
    )
    assert both.of_rank(1).data_parallel_rank == 1
    assert half.of_rank(0) is half


def test_one_more_engine_takes_its_pool_and_what_is_not_shared():
    """The threads are those of all, however many there come to be."""
    flags = {"enable_elastic_ep": True, "num_threads": 4, "num_gpu_blocks_override": 300}
    config = resolved(compute="native", data_parallel_size=2, **flags)
    pool_bytes = 300 * config.cache_config.block_bytes
    assert config.elastic_config == ElasticConfig(num_threads=4, engine_bytes=pool_bytes)
    assert config.of_size(4).compute_config.num_threads == 1
    assert resolved(compute="native", **flags).of_rank(0).data_parallel_rank == 0


def test_an_encoder_keeps_its_weights_as_they_are():
    """Rounding them is refused by the flag."""
    assert "--quantization int8" in refusal(replace(card(), is_causal=False), quantization="int8")


def test_an_encoder_takes_a_whole_prompt_in_a_step():
    """So a step of fewer rows than a prompt may have tokens is refused."""
    encoder = replace(card(), is_causal=False)
    told = refusal(encoder, max_num_batched_tokens=64, max_model_len=128)
    assert "--max-num-batched-tokens 64 is less than --max-model-len 128" in told
    whole = resolved(encoder, max_num_batched_tokens=128, max_model_len=128)
    assert whole.scheduler_config.max_num_batched_tokens == 128


@pytest.mark.parametrize("compute", ["reference", "native"])
def test_the_threads_of_an_encoder_can_be_set(compute):
    """Both ways to compute it share a step out among them."""
    encoder = replace(card(), is_causal=False)
    config = resolved(encoder, compute=compute, num_threads=3).compute_config
    assert config == ComputeConfig(compute=compute, num_threads=3)


def test_what_computes_is_decided():
    """Nothing is left to choose: what computes, how many threads, and what was asked for."""
    compute = resolved(compute="native", num_threads=3, quantization="int8").compute_config
    assert compute == ComputeConfig(compute="native", num_threads=3, quantization="int8")
    left_open = resolved().compute_config
    assert left_open is not None
    assert left_open.compute in {"native", "reference"}
    assert left_open.num_threads >= 1


def test_sizes_are_suggested_as_people_write_them():
    """In MiB, rounded up to where the pool holds what it must."""
    with pytest.raises(ConfigError, match=r"try .*--kv-cache-bytes \d+MiB"):
        resolved(kv_cache_bytes=1 << 20)


def test_where_memory_is_full_a_size_is_suggested_in_kib():
    """A whole MiB more would not fit."""
    small = card(kv_bytes_per_token=1 << 10)
    free = GIB + 256 * (16 << 10) + (16 << 10)  # one sequence of full length, and a block
    message = refusal(small, free=free, kv_cache_bytes=GIB)
    assert "--kv-cache-bytes 4112KiB" in message
    assert resolved(small, free=free, kv_cache_bytes=4112 << 10)
