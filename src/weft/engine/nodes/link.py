"""Link between the head node and the engines of other nodes: handshake, check of a joining engine, and messages.

A node connects once for each of its ranks. The connection begins with the handshake of `weft.engine.ipc.handshake`.
Then the node sends its engine's configuration, and the head answers whether the engine can join. Afterwards commands
flow to the engine and events to the head, as between a server and a local engine.
"""

import socket
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from weft import __version__
from weft.core.config.engine import EngineConfig
from weft.core.config.ranks import LinkConfig
from weft.engine.ipc.channel import Channel
from weft.engine.ipc.handshake import CONNECT_S, PeerError, ProvenSocket
from weft.engine.ipc.messages import Command, Event
from weft.engine.transfer.settings import read_secret_file

# A connection to a machine that does not respond is closed after 10 + 3 * 5 seconds.
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_UNACKNOWLEDGED_MS = 25_000
# Settings that may differ between engines: sizes that depend on the machine, and features of one machine.
_MAY_DIFFER = frozenset(
    {
        "api_server_directory",
        "cache_config.num_blocks",
        "compute_config.num_threads",
        "data_parallel_rank",
        "engine_restarts",  # the head supervises its own engines; an engine of a node is restarted there
        "kv_events_config",
        "kv_offloading_config",
        "kv_transfer_config.engine_id",
        "kv_transfer_config.host",
        "kv_transfer_config.peers",
        "kv_transfer_config.port",
        "kv_transfer_config.secret_path",
        "profiler_config",
        "ranks",
        # Files are compared by their content (`fingerprint`, `tokenizer`); only the head uses the other settings.
        *(
            f"model_config.{name}"
            for name in (
                "bos_token_id",
                "default_sampling_params",
                "eos_token_ids",
                "max_logprobs",
                "max_new_tokens",
                "model",
                "packed_cache_bytes",
                "pad_token_id",
                "revision",
                "served_model_names",
            )
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Joined:
    """An engine of another node that has joined and begins to load: its configuration and its channel."""

    config: EngineConfig
    channel: "Channel[FromNode]"


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request of another node's engine to join: its configuration, and a digest of its tokenizer file."""

    config: EngineConfig
    tokenizer: str


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head's answer to `Join`. After a `final` refusal the node need not try again."""

    refusal: str | None = None
    is_final: bool = False


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """The node shuts down: its engine takes no more requests, and has `timeout_s` seconds to finish running ones."""

    timeout_s: float


class MustLeave(msgspec.Struct, frozen=True, tag=True):
    """The engine that has joined must leave, for the given reason."""

    reason: str


FromHead: TypeAlias = Command | MustLeave
FromNode: TypeAlias = Event | Leaving
_VERSION = msgspec.msgpack.Decoder(str)
_JOIN = msgspec.msgpack.Decoder(Join)
_VERDICT = msgspec.msgpack.Decoder(Verdict)


class JoinRefused(PeerError):
    """The head refuses the engine, and would refuse it again."""


class LinkSocket(ProvenSocket):
    """The connection between head and node until the engine has joined."""

    magic = b"WEFTDPL2"

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (*_KEEPALIVE, ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS)):
            if hasattr(socket, name):  # Linux has all of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def detach(self) -> socket.socket:
        """Returns a duplicate of the connection's socket, which outlives this object."""
        return self._socket.dup()

    def join(self, secret: bytes, joining: Join) -> None:
        """Joins the head as a node. Raises `JoinRefused` if the head would refuse another attempt too."""
        self.prove_as_client(secret)
        self.send(__version__)
        _check_version(self.receive(_VERSION))
        self.send(joining)
        verdict = self.receive(_VERDICT)
        if verdict.refusal is not None:
            kind = JoinRefused if verdict.is_final else PeerError
            raise kind(f"the head refuses: {verdict.refusal}")

    def meet(self, secret: bytes) -> Join:
        """Receives a node's request to join, at the head; the caller then sends the head's verdict."""
        self.prove_as_server(secret)
        self.send(__version__)
        _check_version(self.receive(_VERSION))
        return self.receive(_JOIN)


def connect(link: LinkConfig, secret: bytes, joining: Join) -> socket.socket:
    """Connects to the head and joins an engine; returns the connected socket. Blocks for at most a few seconds."""
    with LinkSocket(socket.create_connection((link.host, link.port), CONNECT_S)) as made:
        made.join(secret, joining)
        return made.detach()


def read_link_secret(link: LinkConfig) -> bytes:
    """Returns the secret that head and nodes share, read from the file in `link`."""
    return read_secret_file("--data-parallel-secret-file", link.secret_path)


def difference(ours: EngineConfig, theirs: EngineConfig) -> str | None:
    """Describes the first setting that differs although it must be equal for all engines; None if all are equal."""
    here, there = (dict(_flat("", msgspec.to_builtins(each))) for each in (ours, theirs))
    for name in sorted(here.keys() | there.keys()):
        if not _may_differ(name) and here.get(name) != there.get(name):
            return f"{name} is {there.get(name)!r:.80} there, and {here.get(name)!r:.80} here"
    return None


def _check_version(found: str) -> None:
    if found != __version__:
        raise PeerError(f"the peer is Weft {found[:40]!a}, this is {__version__!a}")


def _may_differ(name: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in _MAY_DIFFER)


def _flat(prefix: str, value: Any) -> "list[tuple[str, Any]]":
    if not isinstance(value, dict) or not value:
        return [(prefix, value)]
    return [
        pair
        for name, one in value.items()
        for pair in _flat(f"{prefix}.{name}" if prefix else name, one)
    ]
