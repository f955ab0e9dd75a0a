"""The objects that endpoints use: the engine client, its tokenizer and chat template, and the API options."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from weft.core.client import EngineClient
from weft.core.config.engine import ModelConfig, PoolerConfig
from weft.core.tenant_client import as_tenant
from weft.core.tenants import Tenant
from weft.core.values.types import LoRARequest, Request, RequestOptions
from weft.text.templates.chat import ChatTemplate, RequestTemplates
from weft.text.tokenizer import Tokenizer
from weft.web.mcp.servers import ToolServers
from weft.web.options import ApiOptions

if TYPE_CHECKING:  # imports an HTTP client, which few servers need
    from weft.web.inference.prefiller import HttpPrefiller


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the APIs tell of a model, whether it is in memory or not. `template` is the text of the chat template, and
    `known_since` Unix time in whole seconds.
    """

    model_config: ModelConfig
    pooler: PoolerConfig | None
    lora_requests: Mapping[str, LoRARequest]
    options: ApiOptions
    template: str | None
    known_since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The objects that every handler gets. `started_at` is Unix time in whole seconds. `request_templates` is None if
    requests may not contain chat templates, `tool_servers` is None if requests may not call tools of MCP servers, and
    `prefiller` is None if this engine does not fetch prompts from other engines. `stores_responses` is False if there
    are several API servers, because a later request may reach another API server. `hold` keeps the model in memory
    during its block, for work that goes on after its exchange.
    """

    client: EngineClient
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    started_at: int
    request_templates: RequestTemplates | None = None
    tool_servers: ToolServers | None = None
    options: ApiOptions = field(default_factory=ApiOptions)
    prefiller: "HttpPrefiller | None" = None
    stores_responses: bool = True
    hold: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def facts(self) -> ModelFacts:
        """What the APIs tell of the model."""
        template = self.chat_template
        return ModelFacts(
            model_config=self.client.model_config,
            pooler=self.client.info.pooler,
            lora_requests=self.client.lora_requests,
            options=self.options,
            template=None if template is None else template.source,
            known_since=self.started_at,
        )

    def seen_by(self, tenant: Tenant | None, *, salts: bool, hides_cached_tokens: bool) -> "Served":
        """Returns the model for requests of `tenant`."""
        if tenant is None and not hides_cached_tokens:
            return self
        client = as_tenant(
            self.client, tenant, salts=salts, hides_cached_tokens=hides_cached_tokens
        )
        return replace(self, client=client)

    async def prefilled(self, request: Request, options: RequestOptions) -> Request:
        """The request; if a router chose a prefill server, after that server computes the prompt."""
        chosen = options.prefiller
        # Another server can compute only prompts of token ids.
        if chosen is None or self.prefiller is None or request.prompt_embeds:
            return request
        return await self.prefiller.compute(request, chosen)

    def close(self) -> None:
        """Releases resources of requests; takes seconds if a tool server hangs."""
        if self.tool_servers is not None:
            self.tool_servers.close()

    def lora_request(self, model: str) -> LoRARequest | None:
        """Returns the adapter that a request for `model` needs, None for the base model; `NotFound` if no model has
        that name.
        """
        client = self.client
        return client.model_config.find_lora(model, client.lora_requests)
