"""Authorization of calls: denied by default, by path, before the call's content is read.

As over HTTP, an API key gives access to the calls that serve requests, and a control key to the calls that affect other
callers. A server without any keys accepts every caller.
"""

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias

import grpc
from grpc.aio import ServerInterceptor

from weft.core.callers import KeyRing, bearer_key
from weft.core.client import EngineClient
from weft.core.errors import Forbidden, Unauthenticated, WeftError
from weft.core.tenant_client import as_tenant
from weft.core.tenants import ApiKeys
from weft.core.values.types import LoRARequest
from weft.rpc.methods import CONTROL_METHODS, METHODS
from weft.rpc.status import to_status
from weft.wire.health import HEALTH_SERVICE

_OPEN_PREFIX = f"/{HEALTH_SERVICE}/"
_HEALTH_CHECK = METHODS["HealthCheck"].path
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
CallMetadata: TypeAlias = Iterable[tuple[str, str | bytes]]


class Access(Enum):
    """Keys that a call requires, where keys are configured."""

    API = "api"  # holders of an API key; everyone if no key is set
    # Holders of an API key, for requests made with the same key; holders of a control key, for all requests.
    OWN = "own"
    CONTROL = "control"  # holders of a control key; no one if no key is set


# Methods that are not listed have Access.API. Events contain prompt tokens of all callers.
ACCESS_BY_METHOD = MappingProxyType(
    {
        "Abort": Access.OWN,
        "FlushCache": Access.CONTROL,
        "StartProfile": Access.CONTROL,
        "StopProfile": Access.CONTROL,
        "SubscribeKvEvents": Access.CONTROL,
    }
)
# Calls of `vllm.Control` that change the engine. Unlike the calls above, they are off on a server without any keys, as
# over HTTP.
OPERATOR_CALLS = frozenset(
    {
        "Shutdown",
        "LoadLora",
        "UnloadLora",
        "PauseGeneration",
        "ResumeGeneration",
        "Sleep",
        "WakeUp",
        "InitWeightTransferEngine",
        "StartWeightUpdate",
        "StartDraftWeightUpdate",
        "UpdateWeights",
        "FinishWeightUpdate",
        "UpdateWeightVersion",
    }
)
# Methods of `vllm.Control` and `vllm.Inference` that are not listed have Access.API.
ACCESS_BY_VLLM_METHOD = MappingProxyType(
    {"Abort": Access.OWN, **dict.fromkeys(sorted(OPERATOR_CALLS), Access.CONTROL)}
)
_ACCESS_BY_PATH = MappingProxyType(
    {METHODS[name].path: access for name, access in ACCESS_BY_METHOD.items()}
    | {CONTROL_METHODS[name].path: access for name, access in ACCESS_BY_VLLM_METHOD.items()}
)


class Keys:
    """The keys of one server."""

    def __init__(
        self,
        api_keys: ApiKeys | None = None,
        control_keys: Iterable[str] = (),
        *,
        is_health_check_open: bool = False,
        hides_cached_tokens: bool = False,
    ) -> None:
        self._hides_cached_tokens = hides_cached_tokens
        self._api = api_keys or ApiKeys()
        self._control = KeyRing(control_keys)
        self._is_health_check_open = is_health_check_open

    def check(self, path: str, metadata: CallMetadata) -> None:
        """Raises `Unauthenticated` or `Forbidden` for a caller who may not call `path`."""
        if path.startswith(_OPEN_PREFIX) or not (self._api or self._control):
            return
        if path == _HEALTH_CHECK and self._is_health_check_open:
            return
        key = _key_of(metadata)
        is_control = key is not None and self._control.is_valid(key)
        is_api = not self._api or (key is not None and self._api.is_valid(key))
        if not (is_api or is_control):
            raise Unauthenticated("a key is needed: send the metadata authorization: Bearer KEY")
        match _ACCESS_BY_PATH.get(path, Access.API):
            case Access.API if not is_api:
                raise Unauthenticated("this call needs an API key, not a control key")
            case Access.CONTROL if not self._control:
                raise Forbidden("control is off: start the server with --control-api-key")
            case Access.CONTROL if not is_control:
                raise Unauthenticated(
                    "a control key is needed: send the metadata authorization: Bearer KEY"
                )

    def may_control(self, metadata: CallMetadata) -> bool:
        """True if an authorized caller may affect requests of other callers."""
        if not (self._api or self._control):
            return True
        key = _key_of(metadata)
        return key is not None and self._control.is_valid(key)

    @property
    def has_control(self) -> bool:
        """True if there are control keys."""
        return bool(self._control)

    def adapters_of(self, client: EngineClient, metadata: CallMetadata) -> list[LoRARequest]:
        """Returns the adapters that the caller may use: those of its tenant, or all."""
        key = self.owner(metadata)
        tenant = None if key is None else self._api.tenant_of(key)
        loras = client.lora_requests.values()
        return [lora for lora in loras if tenant is None or tenant.may_use(lora.lora_name)]

    def admit(self, client: EngineClient, metadata: CallMetadata) -> EngineClient:
        """Counts a request, and returns the engine as its tenant sees it; raises `RateLimited` beyond the tenant's
        limits.
        """
        if not (self._api or self._hides_cached_tokens):
            return client
        key = self.owner(metadata)
        tenant = None if key is None else self._api.tenant_of(key)
        if tenant is not None:
            tenant.admit()
        return as_tenant(
            client,
            tenant,
            salts=self._api.salts,
            hides_cached_tokens=self._hides_cached_tokens,
        )

    def owner(self, metadata: CallMetadata) -> bytes | None:
        """Owner of a request: its API key, or None if the server has no keys."""
        return _key_of(metadata) if self._api else None


class KeyGate(ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Lets through the calls that `keys` allows."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler:
        """Decides on access before the request is read; unknown methods are refused too."""
        try:
            self._keys.check(
                handler_call_details.method, handler_call_details.invocation_metadata or ()
            )
        except (Unauthenticated, Forbidden) as error:
            return _refusal(error)
        return await continuation(handler_call_details)


def _key_of(metadata: CallMetadata) -> bytes | None:
    """The caller's key; None if there is no key, or more than one."""
    given = [value for name, value in metadata if name == "authorization"]
    if len(given) != 1:
        return None
    return bearer_key(given[0].encode() if isinstance(given[0], str) else given[0])


def _refusal(error: WeftError) -> _Handler:
    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(to_status(error.code), str(error))

    return grpc.stream_stream_rpc_method_handler(refuse)
