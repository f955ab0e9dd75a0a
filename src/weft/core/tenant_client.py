"""`TenantClient`: an engine client that applies the rules of one tenant."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, cast

import msgspec

from weft.core.client import AnyParams, EngineClient, PromptSource, Sink
from weft.core.errors import NotFound
from weft.core.tenants import BEHIND_ALL, Tenant
from weft.core.values.media import Owner
from weft.core.values.speech import ClipOutput, Speech
from weft.core.values.types import (
    LoRARequest,
    OutputKind,
    PoolingRequestOutput,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)

T = TypeVar("T", RequestOutput, PoolingRequestOutput)


def as_tenant(
    client: EngineClient, tenant: Tenant | None, *, salts: bool, hides_cached_tokens: bool
) -> EngineClient:
    """Returns a client that applies the rules of `tenant`; `client` itself if tenant and options have no effect."""
    if tenant is None and not hides_cached_tokens:
        return client
    view = TenantClient(client, tenant, salts=salts, hides_cached_tokens=hides_cached_tokens)
    return cast("EngineClient", view)


class TenantClient:
    """An engine client that applies the tenant's priority, adapters and salt, and counts the tenant's tokens.

    All other methods are those of the wrapped client. With `hides_cached_tokens` outputs report no cached tokens.
    """

    def __init__(
        self, client: EngineClient, tenant: Tenant | None, *, salts: bool, hides_cached_tokens: bool
    ) -> None:
        self._client = client
        self._tenant = tenant
        self._salts = salts
        self._hides = hides_cached_tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def lora_requests(self) -> Mapping[str, LoRARequest]:
        """Adapters that the tenant may use."""
        loras, tenant = self._client.lora_requests, self._tenant
        if tenant is None:
            return loras
        return {name: lora for name, lora in loras.items() if tenant.may_use(name)}

    async def prepare(
        self, prompt: PromptSource, params: AnyParams, options: RequestOptions
    ) -> Request:
        """Prepares a request, and counts the prompt's tokens for the tenant's rate limit."""
        request = await self._client.prepare(prompt, params, self._own(options))
        tenant = self._tenant
        if tenant is None:
            return request
        tenant.spend(len(request.prompt_token_ids))
        if not self._salts:
            return request
        return msgspec.structs.replace(request, cache_salt=tenant.salted(request.cache_salt))

    def run(self, request: Request) -> AsyncGenerator[RequestOutput, None]:
        return self._followed(self._client.run(request), _Meter(self._tenant, request))

    def run_into(self, request: Request, sink: Sink) -> AsyncGenerator[RequestOutput, None]:
        meter = _Meter(self._tenant, request)
        return self._followed(self._client.run_into(request, _Passing(self, sink, meter)), meter)

    async def run_pooling(self, request: Request) -> AsyncGenerator[PoolingRequestOutput, None]:
        async with aclosing(self._client.run_pooling(request)) as outputs:
            async for output in outputs:
                yield self._shown(output)

    def run_speech(
        self, speech: Speech, params: SamplingParams, options: RequestOptions
    ) -> AsyncGenerator[ClipOutput, None]:
        return self._client.run_speech(speech, params, self._own(options))

    def _own(self, options: RequestOptions) -> RequestOptions:
        tenant, lora = self._tenant, options.lora_request
        if tenant is None:
            return options
        if lora is not None and not tenant.may_use(lora.lora_name):
            raise NotFound(f"The model {lora.lora_name[:64]!a} does not exist", "model")
        priority = tenant.rules.priority
        is_own = priority is None or options.priority == BEHIND_ALL
        return msgspec.structs.replace(
            options,
            priority=options.priority if is_own else priority,
            media_owner=Owner(tenant=tenant.rules.name, is_apart=self._salts),
        )

    async def _followed(
        self, running: AsyncGenerator[RequestOutput, None], meter: "_Meter"
    ) -> AsyncGenerator[RequestOutput, None]:
        async with aclosing(running) as outputs:
            async for output in outputs:
                meter.count(output)
                yield self._shown(output)

    def _shown(self, output: T) -> T:
        if not self._hides or not output.num_cached_tokens:
            return output
        return msgspec.structs.replace(output, num_cached_tokens=0)


class _Meter:
    """Counts the new tokens of a request's answers, for every output kind, for the tenant's rate limit."""

    def __init__(self, tenant: Tenant | None, request: Request) -> None:
        self._tenant = tenant
        self._has_deltas = request.params.output_kind is OutputKind.DELTA
        self._counted: dict[int, int] = {}

    def count(self, output: RequestOutput) -> None:
        if self._tenant is None:
            return
        for answer in output.outputs:
            num_tokens = len(answer.token_ids)
            if not self._has_deltas:
                before = self._counted.get(answer.index, 0)
                self._counted[answer.index], num_tokens = num_tokens, num_tokens - before
            self._tenant.spend(num_tokens)


class _Passing:
    """A sink that counts and filters outputs like the client's other methods, and passes them to the caller's sink."""

    def __init__(self, client: TenantClient, sink: Sink, meter: _Meter) -> None:
        self._client = client
        self._sink = sink
        self._meter = meter

    @property
    def is_open(self) -> bool:
        return self._sink.is_open

    def take(self, output: RequestOutput) -> None:
        self._meter.count(output)
        self._sink.take(self._client._shown(output))
