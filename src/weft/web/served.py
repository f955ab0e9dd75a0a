"""What the endpoints serve: one engine, its tokenizer and template, and how the APIs are to behave."""

from dataclasses import dataclass, field

from weft.core.client import EngineClient
from weft.core.types import LoRARequest
from weft.text.chat import ChatTemplate, RequestTemplates
from weft.text.tokenizer import Tokenizer
from weft.web.options import ApiOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Handed to every handler. `started_at` is Unix time in whole seconds.

    `request_templates` is None where requests may not bring templates of their own.
    """

    client: EngineClient
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    started_at: int
    request_templates: RequestTemplates | None = None
    options: ApiOptions = field(default_factory=ApiOptions)

    def lora_request(self, model: str) -> LoRARequest | None:
        """What a request for `model` has to bring to the engine; `NotFound` if nothing has that name."""
        client = self.client
        return client.model_config.find_lora(model, client.lora_requests)
