"""The module in which vLLM defines `LLM`."""

from vllm.llm import LLM

__all__ = ["LLM"]
