"""The module in which older releases of vLLM define the forms of prompts."""

from vllm.inputs import EmbedsPrompt, PromptType, TextPrompt, TokensPrompt

__all__ = ["EmbedsPrompt", "PromptType", "TextPrompt", "TokensPrompt"]
