"""vLLM's newer name of `AsyncLLMEngine`."""

from vllm.engine.async_llm_engine import AsyncLLM

__all__ = ["AsyncLLM"]
