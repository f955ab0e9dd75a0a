"""The ready block: the last thing on the screen of a server that has started."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from weft import __version__
from weft.cli.sizes import format_bytes
from weft.core.config import EngineConfig, ModelConfig
from weft.model.card import ModelCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where one of the servers listens; one that `has_page` is for browsers too."""

    host_port: str
    has_tls: bool
    has_page: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What there is to say about a server. At least one of `http` and `grpc` is there."""

    card: ModelCard
    config: EngineConfig
    computed: str
    free_bytes: int
    http: Address | None
    grpc: Address | None
    has_keys: bool
    load_s: float


def ready_block(ready: Ready) -> str:
    """Model, memory, limits, address and a command to copy."""
    rows = [
        ("model", _model(ready)),
        *([("", ready.card.notice)] if ready.card.notice else []),
        ("memory", _memory(ready)),
        ("limits", _limits(ready)),
        ("compute", ready.computed),
        *([("HTTP", _http(ready.http, ready.has_keys))] if ready.http else []),
        *([("gRPC", _grpc(ready.grpc, ready.has_keys))] if ready.grpc else []),
        ("try", _command(ready)),
    ]
    name = ready.config.model_config.served_model_name
    return _block(f"serves {name}, loaded in {ready.load_s:.1f} s", rows)


def remote_block(
    model: ModelConfig,
    targets: Sequence[str],
    *,
    http: Address,
    has_keys: bool,
    reach_s: float,
) -> str:
    """The same of a server whose engines are elsewhere."""
    rows = [
        ("model", f"{model.model_type}, context {model.max_model_len:,} tokens"),
        ("engines", ", ".join(targets)),
        ("HTTP", _http(http, has_keys)),
        ("try", _http_command(http, has_keys)),
    ]
    return _block(f"serves {model.served_model_name}, reached in {reach_s:.1f} s", rows)


def _block(title: str, rows: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {name:<8}{text}".rstrip() for name, text in rows]
    return "\n".join([f"Weft {__version__} {title}", *lines])


def _model(ready: Ready) -> str:
    card, model = ready.card, ready.config.model_config
    return (
        f"{model.model}: {card.model_type}, {_count(card.num_parameters)} parameters, "
        f"{card.dtype}, context {model.max_model_len:,} tokens"
    )


def _memory(ready: Ready) -> str:
    cache = ready.config.cache_config
    if cache.block_bytes == 0:
        return f"weights {format_bytes(ready.card.weight_bytes)}, of {format_bytes(ready.free_bytes)} free"
    return (
        f"KV pool {format_bytes(cache.num_blocks * cache.block_bytes)} = {cache.num_blocks:,} "
        f"blocks of {cache.block_size} = {cache.max_total_tokens:,} tokens, weights "
        f"{format_bytes(ready.card.weight_bytes)}, of {format_bytes(ready.free_bytes)} free"
    )


def _limits(ready: Ready) -> str:
    scheduler = ready.config.scheduler_config
    return (
        f"{scheduler.max_num_seqs:,} sequences at once, {scheduler.max_num_batched_tokens:,} "
        f"tokens a step, {scheduler.max_num_queued_reqs:,} requests waiting"
    )


def _http(address: Address, has_keys: bool) -> str:
    page = "for a browser; " if address.has_page else ""
    return f"{http_url(address)} ({page}/v1, /metrics, /docs; {_security(address, has_keys)})"


def http_url(address: Address) -> str:
    """The address as clients are given it."""
    return f"{'https' if address.has_tls else 'http'}://{address.host_port}"


def _grpc(address: Address, has_keys: bool) -> str:
    return f"{address.host_port} (vllm.grpc.engine.VllmEngine; {_security(address, has_keys)})"


def _security(address: Address, has_keys: bool) -> str:
    lock = "TLS" if address.has_tls else "no TLS"
    key = "key needed" if has_keys else "no key"
    return f"{lock}, {key}"


def _command(ready: Ready) -> str:
    if ready.grpc is not None and ready.config.pooler_config is None:
        return _grpc_command(ready.grpc, ready.has_keys)
    if ready.http is None:
        return "a client of the gRPC call Embed"
    return _http_command(ready.http, ready.has_keys)


def _http_command(address: Address, has_keys: bool) -> str:
    words = ["curl", f"{http_url(address)}/v1/models"]
    if address.has_tls:
        words += ["--cacert", "CA.pem"]
    if has_keys:
        words += ["--header", '"Authorization: Bearer KEY"']
    return " ".join(words)


def _grpc_command(address: Address, has_keys: bool) -> str:
    words = [program(), "complete"]
    if address.host_port != "127.0.0.1:50051":
        words += ["--address", address.host_port]
    if address.has_tls:
        words += ["--grpc-tls-ca", "CA.pem"]
    if has_keys:
        words += ["--api-key", "KEY"]
    return " ".join([*words, '"The capital of France is"'])


def program() -> str:
    """`weft` as the reader can type it: by its name if that finds it, else by its path."""
    called = sys.argv[0]
    found = shutil.which("weft")
    if not called.endswith("weft") or (found and os.path.samefile(found, called)):
        return "weft"
    return os.path.relpath(called)


def _count(number: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return str(number)
