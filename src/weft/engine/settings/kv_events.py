"""`--kv-events-config`: converts the user's value, with vLLM's fields, to the endpoint of cache events."""

import os
import re
import socket
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from weft.core.errors import ConfigError
from weft.core.values.kv_cache import TCP_ENDPOINT, KvEventsConfig, at_rank
from weft.engine.settings.given import check_between, read_json

FLAG = "--kv-events-config"
DEFAULT_PORT = 5557
MAX_BUFFER_STEPS = 100_000
MAX_QUEUED = 1_000_000
MAX_TOPIC_BYTES = 255
HASHES_VARIABLE = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of `--kv-events-config`; defaults are vLLM's, except `endpoint`, which is on loopback."""

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] | None = None
    endpoint: str | None = None
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


def read_kv_events(
    value: str | dict[str, Any] | None, environment: Mapping[str, str] = os.environ
) -> KvEventsConfig | None:
    """Reads the setting; None disables publication.

    Raises a `ConfigError` that names the flag, the field and the allowed values.
    """
    if value is None:
        return None
    given = read_json(FLAG, value, _Given)
    check_between(f"{FLAG}: buffer_steps", given.buffer_steps, 1, MAX_BUFFER_STEPS)
    check_between(f"{FLAG}: hwm", given.hwm, 1, MAX_QUEUED)
    # The value has no effect: a batch is sent with its step, and never queued.
    check_between(f"{FLAG}: max_queue_size", given.max_queue_size, 1, MAX_QUEUED)
    if len(given.topic.encode()) > MAX_TOPIC_BYTES:
        raise ConfigError(f"{FLAG}: topic must have at most {MAX_TOPIC_BYTES} bytes")
    for name in ("endpoint", "replay_endpoint"):
        _check_endpoint(name, getattr(given, name))
    if not given.enable_kv_cache_events or given.publisher == "null":
        return None
    return KvEventsConfig(
        endpoint=given.endpoint or f"tcp://127.0.0.1:{DEFAULT_PORT}",
        binds=given.endpoint is None or _is_ours(given.endpoint),
        replay_endpoint=given.replay_endpoint,
        buffer_steps=given.buffer_steps,
        hwm=given.hwm,
        topic=given.topic,
        has_int_hashes=environment.get(HASHES_VARIABLE, "1").lower() not in {"0", "false"},
    )


def check_is_countable(config: KvEventsConfig) -> None:
    """Raises `ConfigError` for an endpoint that would be the same for every rank."""
    bound = {"endpoint": config.endpoint if config.binds else None}
    for name, endpoint in {**bound, "replay_endpoint": config.replay_endpoint}.items():
        if endpoint is not None and at_rank(endpoint, 1) == endpoint:
            raise ConfigError(
                f"{FLAG}: {name} must be tcp://HOST:PORT with --data-parallel-size above 1, whose "
                f"engines count ports from there; got {endpoint[:80]!a}"
            )


def _is_ours(endpoint: str) -> bool:
    """True if the publisher binds to the endpoint, by vLLM's rule; False if it connects to the endpoint of a
    subscriber.

    The publisher also binds to the name of a network interface, such as lo.
    """
    found = TCP_ENDPOINT.fullmatch(endpoint)
    if found is None or found["host"] == "*" or "::" in found["host"]:
        return True
    return found["host"] in {name for _, name in socket.if_nameindex()}


def _check_endpoint(name: str, endpoint: str | None) -> None:
    if endpoint is None:
        return
    found = TCP_ENDPOINT.fullmatch(endpoint)
    is_port = found is not None and 1 <= int(found["port"]) <= 2**16 - 1
    if not is_port and not re.fullmatch("ipc://.+", endpoint):
        raise ConfigError(
            f"{FLAG}: {name} must be tcp://HOST:PORT or ipc://PATH, not {endpoint[:80]!a}; "
            "HOST is * for every interface"
        )
