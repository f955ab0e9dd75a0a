"""Forms of prompts, which are plain dicts."""

from weft.core.values.prompts import EmbedsPrompt, TextPrompt, TokensPrompt
from weft.core.values.types import PromptType, StreamingInput

__all__ = ["EmbedsPrompt", "PromptType", "StreamingInput", "TextPrompt", "TokensPrompt"]
