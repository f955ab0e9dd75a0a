"""The ready banner: the last lines that a server prints during its start."""

import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from weft import __version__
from weft.core.config.engine import EngineConfig, ModelConfig
from weft.core.config.ranks import is_head, local_ranks
from weft.core.config.speculation import SpeculativeConfig
from weft.core.observe.readable import format_bytes
from weft.core.observe.terminal import colours, harmless
from weft.core.values.kv_cache import KvOffloadingConfig
from weft.model.card import ModelCard

Row = tuple[str, str]
_INDENT = 10
_MAX_LISTED = 20  # models in the banner
_COPIED = "try"  # rows with commands to copy
_STYLES = {"try": "0;1", "warn": "33"}  # bold, yellow


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of a server. `has_page` is True if a browser can open the address. With a Unix socket at `socket`,
    `host_port` is what the header Host may say.
    """

    host_port: str
    has_tls: bool
    has_page: bool = False
    socket: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Contents of the ready banner. At least one of `http` and `grpc` is set."""

    card: ModelCard
    config: EngineConfig
    computed: str
    free_bytes: int
    http: Address | None
    grpc: Address | None
    has_keys: bool
    load_s: float
    num_api_servers: int = 1
    parsers: str | None = None  # None if the model generates no text
    has_template: bool = False
    cautions: Sequence[str] = ()


def ready_block(ready: Ready) -> list[str]:
    """Returns the lines of the banner, the title first: settings, addresses, commands to copy, next steps."""
    rows = [
        ("model", _model(ready)),
        *([("", ready.card.notice)] if ready.card.notice else []),
        ("memory", _memory(ready)),
        *(
            [("", _tier(ready.config.kv_offloading_config))]
            if ready.config.kv_offloading_config
            else []
        ),
        ("limits", _limits(ready)),
        *(("drafts", text) for text in _drafts(ready.config.scheduler_config.speculation)),
        ("compute", _compute(ready)),
        *([("parser", ready.parsers)] if ready.parsers else []),
        *(("warn", text) for text in ready.cautions),
        *([("HTTP", _http(ready.http, ready.has_keys))] if ready.http else []),
        *([("gRPC", _grpc(ready.grpc, ready.has_keys))] if ready.grpc else []),
        *(("try", command) for command in _commands(ready)),
        ("next", _next(ready.http, has_cautions=bool(ready.cautions))),
    ]
    name = ready.config.model_config.served_model_name
    return _block(f"serves {name}, loaded in {ready.load_s:.1f} s", rows)


def other_block(
    model: ModelConfig,
    engine: Row,
    *,
    http: Address | None,
    grpc: Address | None = None,
    has_keys: bool,
    done: str,
) -> list[str]:
    """Returns the lines of the banner for a server whose engine is vLLM or runs on remote servers."""
    rows = [
        ("model", f"{model.model_type}, context {model.max_model_len:,} tokens"),
        engine,
        *([("HTTP", _http(http, has_keys))] if http else []),
        *([("gRPC", _grpc(grpc, has_keys))] if grpc else []),
        *([("try", _curl(http, has_keys, "/v1/models"))] if http else []),
        ("next", _next(http)),
    ]
    return _block(f"serves {model.served_model_name}, {done}", rows)


def pool_block(
    models: Sequence[str],
    memory: str,
    *,
    http: Address,
    grpc: Address | None,
    has_keys: bool,
    load_s: float,
) -> list[str]:
    """Lines of the banner for a server with several models; `models` describes each, the default one first."""
    rows = [
        *(("model", text) for text in models[:_MAX_LISTED]),
        *([("", f"and {len(models) - _MAX_LISTED} more")] if len(models) > _MAX_LISTED else []),
        ("memory", memory),
        ("HTTP", _http(http, has_keys)),
        *([("gRPC", f"{_grpc(grpc, has_keys)}, for the first model")] if grpc else []),
        ("try", _curl(http, has_keys, "/v1/models")),
        ("next", _next(http)),
    ]
    return _block(f"serves {len(models)} models, loaded in {load_s:.1f} s", rows)


def show_block(lines: Sequence[str], file: TextIO | None = None) -> None:
    """Prints the lines of the banner. On a terminal, they are wrapped to its width, and coloured if the terminal
    supports colours.
    """
    file = sys.stdout if file is None else file
    if file.isatty():
        width = os.get_terminal_size(file.fileno()).columns or 80
        lines = list(_fitted([harmless(line) for line in lines], width, has_colour=colours(file)))
    print("\n".join(lines), file=file, flush=True)


def _fitted(lines: Sequence[str], width: int, *, has_colour: bool) -> Iterator[str]:
    """Yields the lines wrapped to `width`. A wrapped command remains a valid shell command."""
    for number, line in enumerate(lines):
        name = line[:_INDENT].strip() if number else "title"
        room = max(width - 1, 2 * _INDENT)
        folded = [line]
        if name == _COPIED:
            folded = list(_continued(line, room))
        else:
            indent = " " * _INDENT if number else ""
            folded = textwrap.wrap(line, room, subsequent_indent=indent, break_on_hyphens=False)
        if has_colour:
            folded = [_styled(name, piece) for piece in folded]
        yield from folded


def _continued(line: str, room: int) -> Iterator[str]:
    """Yields a long command as several lines that a shell reads as one command; each further line begins with a
    flag.
    """
    if len(line) <= room:
        yield line
        return
    piece, *flags = re.split(r" (?=--\w)", line)
    for flag in flags:
        if len(piece) + len(flag) + len("  \\") > room:
            yield f"{piece} \\"
            piece = " " * _INDENT + flag
        else:
            piece = f"{piece} {flag}"
    yield piece


def _styled(name: str, line: str) -> str:
    if name == "title":
        return f"\x1b[1;32m{line}\x1b[0m"
    label, text = line[:_INDENT], line[_INDENT:]
    return f"\x1b[36m{label}\x1b[{_STYLES.get(name, '0')}m{text}\x1b[0m"


def _block(title: str, rows: Sequence[Row]) -> list[str]:
    lines = [f"  {name:<8}{text}".rstrip() for name, text in rows]
    return [f"Weft {__version__} {title}", *lines]


def _model(ready: Ready) -> str:
    card, model = ready.card, ready.config.model_config
    most = card.max_position_embeddings
    rest = f" (the model has {most:,})" if model.max_model_len < most else ""
    return (
        f"{model.model}: {card.model_type}, {describe_parameters(card)}, "
        f"{card.dtype}, context {model.max_model_len:,} tokens{rest}"
    )


def describe_parameters(card: ModelCard) -> str:
    """Describes a model's number of parameters and, for a mixture of experts, the number active per token."""
    has_idle = card.num_active_parameters < card.num_parameters
    active = f" ({_count(card.num_active_parameters)} active per token)" if has_idle else ""
    return f"{_count(card.num_parameters)} parameters{active}"


def _memory(ready: Ready) -> str:
    cache = ready.config.cache_config
    if cache.block_bytes == 0:
        return f"weights {format_bytes(ready.card.weight_bytes)}, of {format_bytes(ready.free_bytes)} free"
    states = cache.num_blocks * ready.card.state_bytes_per_block
    part = f" (including {format_bytes(states)} of states)" if states else ""
    slots = cache.states
    beside = (
        ""
        if slots is None
        else f"states {format_bytes(slots.num_bytes)} = {slots.num_slots:,} slots, "
    )
    return (
        f"KV pool {format_bytes(cache.num_blocks * cache.block_bytes)}{part} = {cache.num_blocks:,} "
        f"blocks of {cache.block_size} = {cache.max_total_tokens:,} tokens, {beside}weights "
        f"{format_bytes(ready.card.weight_bytes)}, of {format_bytes(ready.free_bytes)} free"
    )


def _compute(ready: Ready) -> str:
    size, num_servers = ready.config.data_parallel_size, ready.num_api_servers
    servers = "" if num_servers == 1 else f"{num_servers} API servers; "
    if size == 1:
        return f"{servers}{ready.computed}"
    return f"{servers}{_engines(ready.config)}; each {ready.computed}"


def _engines(config: EngineConfig) -> str:
    size, here = config.data_parallel_size, local_ranks(config)
    if len(here) == size:
        return f"{size} engines"
    if is_head(config):
        return f"{size} engines, {size - len(here)} of them on other nodes"
    return f"{len(here)} of {size} engines, from rank {here.start} on"


def _tier(offloading: KvOffloadingConfig) -> str:
    where = "memory" if offloading.path is None else offloading.path
    return f"second tier of the prefix cache {format_bytes(offloading.num_bytes)} in {where}"


def _drafts(speculation: SpeculativeConfig | None) -> Iterator[str]:
    """Yields the row about the draft model; nothing without a draft model."""
    if speculation is not None and speculation.draft is not None:
        draft = speculation.draft
        yield (
            f"{speculation.num_speculative_tokens} tokens a step by {draft.model}, weights "
            f"{format_bytes(draft.weight_bytes)}, KV in the pool, while that pays"
        )


def _limits(ready: Ready) -> str:
    scheduler = ready.config.scheduler_config
    target_ms = scheduler.target_itl_ms
    pause = f" ({target_ms:g} ms beside streams)" if target_ms else ""
    return (
        f"{scheduler.max_num_seqs:,} sequences at once, {scheduler.max_num_batched_tokens:,} "
        f"tokens a step{pause}, {scheduler.max_num_queued_reqs:,} requests waiting"
    )


def _http(address: Address, has_keys: bool) -> str:
    page = "for a browser; " if address.has_page else ""
    return f"{place(address)} ({page}/v1, /metrics, /docs; {_security(address, has_keys)})"


def http_url(address: Address) -> str:
    """Returns the URL under which clients reach the HTTP server."""
    return f"{'https' if address.has_tls else 'http'}://{address.host_port}"


def place(address: Address) -> str:
    """Returns the URL of the HTTP server, or the path of its Unix socket."""
    return http_url(address) if address.socket is None else f"unix:{address.socket}"


def _grpc(address: Address, has_keys: bool) -> str:
    return f"{address.host_port} (vllm.grpc.engine.VllmEngine; {_security(address, has_keys)})"


def _security(address: Address, has_keys: bool) -> str:
    lock = "TLS" if address.has_tls else "no TLS"
    key = "key needed" if has_keys else "no key"
    return f"{lock}, {key}"


def _commands(ready: Ready) -> Iterator[str]:
    """Yields a shell command for each API. Every printed command works as it is."""
    if ready.config.pooler_config is not None:
        if ready.http is None:
            yield "a client of the gRPC call Embed"
        elif ready.card.pooling is not None and ready.card.pooling.head is None:
            yield _curl(ready.http, ready.has_keys, "/v1/embeddings", {"input": "Hello!"})
        else:
            yield _curl(ready.http, ready.has_keys, "/v1/models")
        return
    if ready.config.sounds_config is not None:
        if ready.http is not None:
            transcribe = _curl(ready.http, ready.has_keys, "/v1/audio/transcriptions")
            yield f"{transcribe} -F file=@speech.wav"
        return
    if ready.grpc is not None:
        yield _client(ready.grpc, ready.has_keys, has_template=ready.has_template)
    if ready.http is not None and ready.has_template:
        body: object = {"messages": [{"role": "user", "content": "Hello!"}]}
        yield _curl(ready.http, ready.has_keys, "/v1/chat/completions", body)
    elif ready.http is not None:
        body = {"prompt": "The capital of France is"}
        yield _curl(ready.http, ready.has_keys, "/v1/completions", body)


def _curl(address: Address, has_keys: bool, path: str, body: object = None) -> str:
    words = ["curl", f"{http_url(address)}{path}"]
    if address.socket is not None:
        words += ["--unix-socket", str(address.socket)]
    if address.has_tls:
        words += ["--cacert", "CA.pem"]
    if has_keys:
        words += ["--header", "Authorization: Bearer KEY"]
    if body is not None:
        words += ["--json", json.dumps(body)]
    return shlex.join(words)


def _client(address: Address, has_keys: bool, *, has_template: bool) -> str:
    words = [*program(), "chat" if has_template else "complete"]
    if address.host_port != "127.0.0.1:50051":
        words += ["--address", address.host_port]
    if address.has_tls:
        words += ["--grpc-tls-ca", "CA.pem"]
    if has_keys:
        words += ["--api-key", "KEY"]
    return shlex.join(words if has_template else [*words, "The capital of France is"])


def _next(http: Address | None, *, has_cautions: bool = False) -> str:
    weft = shlex.join(program())
    parts = []
    if http is not None:
        if http.has_page:
            parts.append(f"{http_url(http)} in a browser")
        url = "" if http.host_port == "127.0.0.1:8000" else f" --url {http_url(http)}"
        if http.socket is None:
            parts.append(f"{weft} top{url} watches it")
    if has_cautions:
        parts.append(f"run {weft} doctor for fixes")
    return "; ".join([*parts, "Ctrl-C ends it"])


def program() -> list[str]:
    """Returns the words that start `weft` in the user's shell: its name if it is on the PATH, otherwise its path or the
    Python module.
    """
    called = sys.argv[0]
    found = shutil.which("weft")
    is_script = os.path.basename(called) == "weft"
    if found and (not is_script or os.path.samefile(found, called)):
        return ["weft"]
    if is_script:
        return [os.path.relpath(called)]
    return [sys.executable, "-m", "weft.cli.entry"]


def _count(number: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return str(number)
