"""An engine's load and prefix-cache events over gRPC (vLLM's and SGLang's protocols), as the picker's values."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import grpc

from weft.core.checks.object_ids import STORE_METADATA, is_store_name
from weft.core.values.prompts import pack_tokens
from weft.epp.pool.endpoint import Endpoint, Load, as_count, as_share
from weft.epp.prefix.events import (
    MAX_BATCH_BYTES,
    MAX_BLOCK_SIZE,
    Cleared,
    Event,
    Stored,
    block_hash,
    removals,
    tier_of,
)
from weft.epp.prefix.keys import Extra
from weft.pb import (
    common_pb2,
    sglang_scheduler_pb2,
    sglang_scheduler_pb2_grpc,
    vllm_engine_pb2,
    vllm_engine_pb2_grpc,
)
from weft.wire.ports import client_args

CALL_TIMEOUT_S = 5.0
_TIER_NAMES = {
    common_pb2.KV_CACHE_TIER_UNSPECIFIED: "gpu",
    common_pb2.KV_CACHE_TIER_DEVICE: "gpu",
    common_pb2.KV_CACHE_TIER_HOST: "cpu",
    common_pb2.KV_CACHE_TIER_DISK: "disk",
    common_pb2.KV_CACHE_TIER_EXTERNAL: "external",
}
_OPTIONS = (
    *client_args(max_message_bytes=MAX_BATCH_BYTES),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Without this, a new endpoint at a former endpoint's address would share its channel.
    ("grpc.use_local_subchannel_pool", 1),
)


class EngineFailed(OSError):
    """Error of a call to an engine. The text is gRPC's status code and detail."""


class EngineRefused(EngineFailed, ConnectionRefusedError):
    """Error: the engine refuses connections."""


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """A message of the event stream. A load record has no events."""

    sequence: int
    events: Iterable[Event]  # decoded lazily
    load: Load | None
    is_load_only: bool


# The generated client and messages of an engine type. Their fields for load and cache events have the same names.
_SERVICES: Final[Mapping[str, tuple[Callable[[grpc.aio.Channel], Any], Any]]] = MappingProxyType(
    {
        "vllm-grpc": (vllm_engine_pb2_grpc.VllmEngineStub, vllm_engine_pb2),
        "sglang-grpc": (sglang_scheduler_pb2_grpc.SglangSchedulerStub, sglang_scheduler_pb2),
    }
)
GRPC_ENGINES: Final = tuple(_SERVICES)


class EngineConnection:
    """A gRPC channel to one engine. Events may require a control key, other calls an API key."""

    def __init__(
        self,
        endpoint: Endpoint,
        api_key: str | None = None,
        control_api_key: str | None = None,
        engine: str = "vllm-grpc",
    ) -> None:
        self.port: int | None = endpoint.grpc_port
        self._key = _metadata(api_key)
        self._control_key = _metadata(control_api_key or api_key)
        self._channel = grpc.aio.insecure_channel(endpoint.grpc_host_port, options=_OPTIONS)
        make_stub, self._messages = _SERVICES[engine]
        self._stub = make_stub(self._channel)

    async def load(self) -> Load:
        """Returns the current load, summed over the ranks. Raises `EngineFailed`."""
        request = self._messages.GetLoadsRequest()
        try:
            call = self._stub.GetLoads(request, timeout=CALL_TIMEOUT_S, metadata=self._key)
            reply, metadata = await call, await call.initial_metadata()
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from error
        return replace(to_load(reply), store=_store(metadata))

    async def model_name(self) -> str:
        """Returns the name of the served model. Raises `EngineFailed`."""
        request = self._messages.GetModelInfoRequest()
        try:
            reply = await self._stub.GetModelInfo(
                request, timeout=CALL_TIMEOUT_S, metadata=self._key
            )
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from error
        return str(reply.served_model_name or reply.model_path)

    async def batches(self) -> AsyncGenerator[EngineBatch, None]:
        """Yields the engine's buffered batches, then new batches and load records. Raises `EngineFailed`."""
        request = common_pb2.SubscribeKvEventsRequest(load_records_before_first_batch=True)
        call = self._stub.SubscribeKvEvents(request, metadata=self._control_key)
        try:
            async for message in call:
                yield to_batch(message)
        except grpc.aio.AioRpcError as error:
            raise _failed(error) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close(None)


def _metadata(key: str | None) -> tuple[tuple[str, str], ...]:
    return () if key is None else (("authorization", f"Bearer {key}"),)


def _store(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Returns the name of the server's store; "" if the server names none."""
    names = (value for key, value in metadata if key == STORE_METADATA)
    return next((name for name in names if isinstance(name, str) and is_store_name(name)), "")


def to_load(
    reply: vllm_engine_pb2.GetLoadsResponse | sglang_scheduler_pb2.GetLoadsResponse,
) -> Load:
    """Returns the sum of the loads of all ranks."""
    usages = [as_share(rank.token_usage) for rank in reply.loads]
    return Load(
        num_waiting=as_count(sum(rank.num_waiting_reqs for rank in reply.loads)),
        num_running=as_count(sum(rank.num_running_reqs for rank in reply.loads)),
        kv_usage=sum(usages) / len(usages) if usages else 0.0,
    )


def to_batch(message: common_pb2.KvEventBatch) -> EngineBatch:
    """Converts a message of the protocol to a value."""
    has_load = message.HasField("load")
    return EngineBatch(
        sequence=message.sequence_number,
        events=_events(message),
        load=_load(message.load) if has_load else None,
        is_load_only=has_load and message.load.load_only,
    )


def _events(message: common_pb2.KvEventBatch) -> Iterator[Event]:
    for event in message.events:
        match event.WhichOneof("data"):
            case "stored":
                yield from _stored(event.stored)
            case "removed":
                yield from _removed(event.removed)
            case "cleared":
                yield Cleared()
            case _:
                pass  # an unknown kind of event, of a newer server: no effect on known blocks


def _stored(stored: common_pb2.KvBlocksStored) -> Iterator[Event]:
    """Yields an event for each run of blocks that have the same size."""
    parent = block_hash(stored.parent_block_hash) if stored.HasField("parent_block_hash") else None
    for block in stored.blocks:
        tokens = pack_tokens(block.token_ids)
        if not 0 < len(tokens) <= 4 * MAX_BLOCK_SIZE:
            break  # later blocks have no known parent
        extra = _extra(block, stored, is_first=parent is None)
        yield Stored(
            hashes=[block_hash(block.block_hash)],
            parent=parent,
            tokens=tokens,
            block_size=len(tokens) // 4,
            tier=_tier(stored),
            group=stored.group_idx if stored.HasField("group_idx") else None,
            lora_name=stored.lora_name or None,
            extras=[extra] if extra else [],
        )
        parent = block_hash(block.block_hash)


def _extra(
    block: common_pb2.KvBlock, stored: common_pb2.KvBlocksStored, *, is_first: bool
) -> Extra:
    """Returns the extra keys of a block as in ZeroMQ events: media, then the cache salt. vLLM repeats adapter and salt
    among the keys.
    """
    extra: list[str | int | None] = []
    for key in block.extra_keys:
        match key.WhichOneof("key"):
            # The root of the chain already includes the adapter's name.
            case "text" if key.text != stored.lora_name:
                extra.append(key.text)
            case "number":
                extra.append(key.number)
            case "blob":
                extra.append(key.blob.hex())
            case "multimodal":
                extra += [key.multimodal.identifier, key.multimodal.offset]
            case _:
                pass
    if is_first and stored.cache_salt and stored.cache_salt not in extra:
        extra.append(stored.cache_salt)
    return extra


def _removed(removed: common_pb2.KvBlocksRemoved) -> Iterator[Event]:
    group = removed.group_idx if removed.HasField("group_idx") else None
    return removals(removed.block_hashes, _tier(removed), group)


def _tier(event: common_pb2.KvBlocksStored | common_pb2.KvBlocksRemoved) -> str:
    if event.HasField("medium") and event.medium:
        return tier_of(event.medium)
    return _TIER_NAMES.get(event.tier, "gpu")


def _load(load: common_pb2.EngineLoad) -> Load:
    return Load(
        num_waiting=as_count(load.waiting_requests),
        num_running=as_count(load.running_requests),
        kv_usage=as_share(load.token_usage),
    )


def _failed(error: grpc.aio.AioRpcError) -> EngineFailed:
    text = f"{error.code().name}: {error.details()}"
    is_refused = error.code() is grpc.StatusCode.UNAVAILABLE and "refused" in text
    return EngineRefused(text) if is_refused else EngineFailed(text)
