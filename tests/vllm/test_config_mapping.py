"""What vLLM decided, read by names that 0.32 has, and its methods, called by theirs. No vLLM is needed."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import weft.vllm
from tests.vllm.test_mapping import LISTED, fields, stats
from weft.core.config.engine import LoraConfig, PoolerConfig
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.types import PoolingKind
from weft.vllm.convert.config import to_engine_config, to_eos_ids, with_pooler

SOURCES = sorted(Path(weft.vllm.__file__).parent.glob("*.py"))
METHODS = {
    name.removeprefix("AsyncLLM."): {field for owner, field in LISTED if owner == name}
    for name, _ in LISTED
    if name.startswith("AsyncLLM.")
}
# Set by its constructor.
ATTRIBUTES = {
    "vllm_config",
    "model_config",
    "renderer",
    "output_handler",
    "logger_manager",
    "profiler",
}


def given(**changes):
    """A configuration of vLLM's with just its own names."""
    model = {
        "model": "/models/m", "hf_config": SimpleNamespace(model_type="llama"),
        "architectures": ["LlamaForCausalLM"], "dtype": "torch.bfloat16", "max_model_len": 512,
        "get_vocab_size": lambda: 400, "max_logprobs": 20, "logprobs_mode": "raw_logprobs",
        "get_diff_sampling_param": lambda: {"temperature": 0.6, "stop": ["x"]},
        "revision": None, "runner_type": "generate", "attn_type": "decoder",
    }  # fmt: skip
    values = {
        "model_config": stats("ModelConfig", **model),
        "cache_config": stats(
            "CacheConfig", block_size=128, num_gpu_blocks=21, cache_dtype="auto",
            enable_prefix_caching=True,
        ),
        "scheduler_config": stats(
            "SchedulerConfig", max_num_seqs=8, max_num_batched_tokens=2048, policy="priority",
            max_num_queued_reqs=None, max_num_queued_tokens=9, enable_chunked_prefill=True,
        ),
        "parallel_config": stats("ParallelConfig", data_parallel_size=2),
        "structured_outputs_config": stats("StructuredOutputsConfig", enable_in_reasoning=True),
        "lora_config": stats("LoRAConfig", max_loras=3, max_lora_rank=16),
    }  # fmt: skip
    return stats("VllmConfig", **{**values, **changes})


def test_what_vllm_decided_is_our_configuration():
    """Blocks are those of one rank; what is no number of sampling is left out, and what is open is 0."""
    made = to_engine_config(given(), names=["small"], eos_token_ids=(2,), bos_token_id=1)
    model, scheduler = made.model_config, made.scheduler_config
    assert (model.served_model_names, model.architectures) == (("small",), ("LlamaForCausalLM",))
    assert (model.dtype, model.vocab_size, model.max_model_len) == ("bfloat16", 400, 512)
    assert model.default_sampling_params == {"temperature": 0.6}
    assert model.logprobs_mode is LogprobsMode.RAW_LOGPROBS
    assert (made.cache_config.num_blocks, made.cache_config.block_size) == (10, 128)
    assert (scheduler.max_num_queued_reqs, scheduler.max_num_queued_tokens) == (0, 9)
    assert made.lora_config == LoraConfig(max_loras=3, max_lora_rank=16)
    assert (made.data_parallel_size, made.structured_outputs_in_reasoning) == (2, True)
    assert with_pooler(made, given().model_config, ["generate"]) is made


def test_an_encoder_has_no_blocks():
    """vLLM says that it has one, which would be a limit of prompts."""
    config = given()
    config.model_config.attn_type = "encoder_only"
    made = to_engine_config(config, names=["e"], eos_token_ids=(), bos_token_id=None)
    assert made.cache_config.num_blocks == 0


def test_a_model_that_pools_says_how():
    """Its tasks of one result and of each token, and its dimensions."""
    model = given().model_config
    model.pooler_config = stats("PoolerConfig", seq_pooling_type="CLS", use_activation=None)
    model.runner_type = "pooling"
    model.embedding_size, model.is_matryoshka, model.matryoshka_dimensions = 64, True, [8, 32]
    config = given(model_config=model)
    made = to_engine_config(config, names=["e"], eos_token_ids=(), bos_token_id=None)
    assert with_pooler(made, model, ["embed", "token_embed"]).pooler_config == PoolerConfig(
        kinds={"embed": PoolingKind.CLS, "token_embed": PoolingKind.EACH},
        normalize=True, embedding_size=64, is_matryoshka=True, dimensions=(8, 32),
    )  # fmt: skip


def test_ends_of_answers_are_the_tokenizers_first():
    """Each once, whether the file has one or several."""
    assert to_eos_ids(2, {"eos_token_id": [7, 2]}) == (2, 7)
    assert to_eos_ids(None, {"eos_token_id": 7}) == (7,)
    assert to_eos_ids(None, {}) == ()


def calls():
    """What our modules ask of an `AsyncLLM`: the name, and the names of arguments."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and _is_llm(node.value):
                yield node.attr, set()
            if isinstance(node, ast.Call) and _is_llm(getattr(node.func, "value", None)):
                yield node.func.attr, {word.arg for word in node.keywords if word.arg}


def _is_llm(node: ast.AST | None) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) in ("_llm", "llm")


def test_what_is_asked_of_vllms_engine_it_has():
    """Methods with these arguments, and no name that only another release knows."""
    asked = list(calls())
    assert {"generate", "encode", "abort", "sleep", "scale_elastic_ep"} <= {
        name for name, _ in asked
    }
    for name, arguments in asked:
        if name not in ATTRIBUTES:
            assert arguments <= METHODS[name], name


@pytest.mark.parametrize(
    "kind", ["ProfilerConfig", "MultiModalConfig", "ModelConfig", "VllmConfig"]
)
def test_what_is_read_elsewhere_is_there(kind):
    """By `controls`, `client`, `engine` and `media`."""
    read = {
        "ProfilerConfig": {"profiler"},
        "MultiModalConfig": {"media_io_kwargs"},
        "ModelConfig": {
            "allowed_media_domains", "allowed_local_media_path", "multimodal_config", "dtype",
            "try_get_generation_config", "max_model_len",
        },
        "VllmConfig": {
            "profiler_config", "weight_transfer_config", "kv_transfer_config", "parallel_config",
        },
    }  # fmt: skip
    assert read[kind] <= fields(kind)
    assert {"enable_elastic_ep"} <= fields("ParallelConfig")
