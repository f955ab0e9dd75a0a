"""What the endpoints serve: one engine, its tokenizer and template, and how the APIs are to behave."""

from dataclasses import dataclass, field
from typing import Literal

from weft.core.client import EngineClient
from weft.core.lora import find_lora
from weft.core.types import LoRARequest
from weft.text.chat import ChatTemplate
from weft.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """How the APIs behave, whoever asks; each field is the flag of `weft serve` with its name.

    `tool_call_parser` and `reasoning_parser` are names of `weft.text.parsers`, None for none; "auto"
    has been resolved by the chat template before this is made.
    """

    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    enable_auto_tool_choice: bool = True
    exclude_tools_when_tool_choice_none: bool = False
    response_role: str = "assistant"
    return_tokens_as_token_ids: bool = False
    enable_prompt_tokens_details: bool = True
    enable_force_include_usage: bool = False
    max_n: int = 128
    allow_runtime_lora_updating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Handed to every handler. `started_at` is Unix time in whole seconds."""

    client: EngineClient
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    started_at: int
    options: ApiOptions = field(default_factory=ApiOptions)

    def lora_request(self, model: str) -> LoRARequest | None:
        """What a request for `model` has to bring to the engine; `NotFound` if nothing has that name."""
        client = self.client
        return find_lora(model, client.model_config.served_model_names, client.lora_requests)
