"""A program with vLLM's names, which `test_vllm_names.py` runs on weft-vllm."""

import asyncio
import dataclasses

import pytest
from vllm import LLM, AsyncEngineArgs, AsyncLLMEngine, EngineArgs, PoolingParams, SamplingParams
from vllm.config import KVEventsConfig
from vllm.inputs.data import TextPrompt
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.usage.usage_lib import UsageContext
from vllm.utils import FlexibleArgumentParser, random_uuid
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import AggregatedLoggingStatLogger

MODEL = "embedded:tiny"
FRANCE = TextPrompt(prompt="The capital of France is", multi_modal_data=None)  # type: ignore[typeddict-item]


async def several_engines() -> None:
    """vLLM's example of data parallelism, and what Ray Data does with an output."""
    args = AsyncEngineArgs(
        model=MODEL,
        data_parallel_size=2,
        num_threads=2,
        dtype="auto",
        max_model_len=512,
        enforce_eager=True,
    )
    engine = AsyncLLMEngine.from_engine_args(
        args, usage_context=UsageContext.ENGINE_CONTEXT, stat_loggers=[AggregatedLoggingStatLogger]
    )
    assert isinstance(engine, AsyncLLM)
    outputs = [
        output
        async for output in engine.generate(
            prompt=FRANCE,
            sampling_params=SamplingParams(temperature=0, max_tokens=8, logprobs=1, best_of=1),
            request_id=random_uuid(),
            data_parallel_rank=1,
        )
    ]
    last = outputs[-1]
    assert last.finished
    assert isinstance(last, RequestOutput)
    assert "Paris" in last.outputs[0].text
    assert outputs[0].outputs[0].text == last.outputs[0].text[: len(outputs[0].outputs[0].text)]
    assert dataclasses.asdict(next(iter(last.outputs[0].logprobs[0].values())))["rank"] == 1
    last.prompt = "changed"
    assert not await engine.is_sleeping()
    await engine.do_log_stats()
    await engine.check_health()
    assert args.create_engine_config().scheduler_config.max_num_seqs
    assert engine.is_running
    engine.shutdown()
    assert not engine.is_running


async def embeddings() -> None:
    """Data of `encode` are tensors."""
    with pytest.raises(ValueError, match="max_model_len must be a whole number"):
        AsyncEngineArgs(model=MODEL, max_model_len=1.5).create_engine_config()
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=MODEL, runner="pooling"))
    async for output in engine.encode("Hello", PoolingParams(task="embed"), "1"):
        assert isinstance(output, PoolingRequestOutput)
        assert output.outputs.data.cpu().ndim == 1
    engine.shutdown()


def command_line() -> None:
    """Flags of vLLM reach the engine, and unknown options are refused."""
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given = parser.parse_args(
        ["--max_model_len=256", "--enforce-eager", "--tensor-parallel-size", "1"]
    )
    args = EngineArgs.from_cli_args(given)
    assert (args.max_model_len, args.seed) == (256, None)
    llm = LLM.from_engine_args(args)
    assert llm.chat([{"role": "user", "content": "Hello!"}], SamplingParams(max_tokens=2))[
        0
    ].finished
    llm.close()
    with pytest.raises(ValueError, match="no option 'nonsense'"):
        EngineArgs(nonsense=1)
    events = KVEventsConfig(enable_kv_cache_events=True)
    assert events.enable_kv_cache_events


if __name__ == "__main__":
    asyncio.run(several_engines())
    asyncio.run(embeddings())
    command_line()
    print("ok")
