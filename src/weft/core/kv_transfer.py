"""Prefill and decode apart: what one engine gives another of a prompt's keys and values, and how it is named.

`KvTransferParams` is vLLM's contract: a router sends a request with `do_remote_decode` to the engine that
computes the prompt, and what comes back with the answer goes unchanged to the engine that continues it.
"""

import ipaddress
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from weft.core.errors import BadRequest

KEY = "kv_transfer_params"  # in `SamplingParams.extra_args`, in bodies and in answers
_NO_PART = f"{KEY} needs an engine that was started with --kv-transfer-config"
MAX_BLOCKS = 1 << 16  # of one request

_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_BlockId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class KvRole(StrEnum):
    """What an engine does of a transfer."""

    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"
    BOTH = "kv_both"

    @property
    def lends(self) -> bool:
        """Whether it computes prompts for others."""
        return self is not KvRole.CONSUMER

    @property
    def fetches(self) -> bool:
        """Whether it continues prompts that others have computed."""
        return self is not KvRole.PRODUCER


class KvConnector(StrEnum):
    """What blocks travel in."""

    TCP = "TcpConnector"
    SHM = "ShmConnector"


class KvPeer(msgspec.Struct, frozen=True):
    """Engines that blocks may be fetched from: those of a network, at this port alone if it has one."""

    network: str
    port: int | None = None

    def has(self, host: str, port: int) -> bool:
        """Whether an engine at this address and port is one of them."""
        address = ipaddress.ip_address(host)
        return self.port in (None, port) and address in ipaddress.ip_network(self.network)


class KvTransferConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine takes part in transfers. It lends at `host` and `port`, and fetches from `peers` alone.

    Both sides prove that they know what `secret_path` holds. A `port` of 0 is any that is free. A lease ends after
    `lease_s`, and a fetch after `fetch_timeout_s`. With `fails_requests` a prompt that cannot be fetched is an error
    of its request; else it is computed here.
    """

    connector: KvConnector
    role: KvRole
    engine_id: str
    host: str
    port: int
    peers: tuple[KvPeer, ...]
    secret_path: str | None
    lease_s: float
    fetch_timeout_s: float
    fails_requests: bool

    @property
    def networks(self) -> list[str]:
        """Where servers of the peers may be, at any port."""
        return [peer.network for peer in self.peers]

    def is_peer(self, host: str, port: int) -> bool:
        """Whether blocks may be fetched from this address, which a caller has named."""
        return any(peer.has(host, port) for peer in self.peers)

    def of_rank(self, rank: int) -> "KvTransferConfig":
        """Of one of several engines, which count ids and ports from the first."""
        engine_id = f"{self.engine_id}-{rank}"
        return msgspec.structs.replace(
            self, engine_id=engine_id, port=self.port and self.port + rank
        )


class KvTransferParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With `do_remote_decode`: lend the prompt's blocks. With `do_remote_prefill`: fetch these from there.

    There is one group of block ids, in order of the prompt. With `do_chunked_transfer` (ours, not vLLM's) a
    prompt that is computed in several steps is lent from the first of them on: a stream says so at once.
    """

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    do_chunked_transfer: bool = False
    remote_engine_id: _Label | None = None
    remote_request_id: _Label | None = None
    remote_block_ids: (
        Annotated[
            list[Annotated[list[_BlockId], msgspec.Meta(max_length=MAX_BLOCKS)]],
            msgspec.Meta(min_length=1, max_length=1),
        ]
        | None
    ) = None
    remote_host: _Label | None = None
    remote_port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    tp_size: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1


class RemotePrompt(msgspec.Struct, frozen=True):
    """Blocks of a prompt that lie at another engine."""

    engine_id: str
    request_id: str
    block_ids: list[int]
    host: str
    port: int

    @property
    def address(self) -> tuple[str, int]:
        """Where that engine lends."""
        return self.host, self.port


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """The server, host:port, that a router chose to compute a prompt, and the key of the caller."""

    address: str
    authorization: str | None = None


def read_params(given: Any) -> KvTransferParams | None:
    """What a caller gave, checked; None where it wants nothing. `BadRequest` names the field."""
    try:
        params = msgspec.convert(given, KvTransferParams)
    except msgspec.ValidationError as error:
        raise BadRequest(KEY, f"{KEY}: {error}") from None
    if params.do_remote_decode and params.do_remote_prefill:
        raise BadRequest(
            KEY, f"{KEY}: do_remote_decode and do_remote_prefill are not both possible"
        )
    if params.do_chunked_transfer and not params.do_remote_decode:
        raise BadRequest(KEY, f"{KEY}: do_chunked_transfer needs do_remote_decode")
    if params.do_remote_prefill:
        for name in ("engine_id", "request_id", "block_ids", "host", "port"):
            if getattr(params, f"remote_{name}") is None:
                raise BadRequest(KEY, f"{KEY}: do_remote_prefill needs remote_{name}")
        _check_address(params.remote_host)
    return params if params.do_remote_decode or params.do_remote_prefill else None


def _check_address(host: str | None) -> None:
    """Refuse a name: nobody looks one up because a caller said so."""
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        raise BadRequest(KEY, f"{KEY}: remote_host must be an IP address, got {host!a}") from None


def check_params(given: Any, role: KvRole | None, num_answers: int) -> None:
    """Refuse what an engine of this role cannot do."""
    params = read_params(given)
    if params is None:
        return
    if role is None:
        raise BadRequest(KEY, _NO_PART)
    if params.do_remote_decode and not role.lends:
        raise BadRequest(KEY, f"{KEY}: do_remote_decode is not for an engine of kv_role {role}")
    if params.do_remote_prefill and not role.fetches:
        raise BadRequest(KEY, f"{KEY}: do_remote_prefill is not for an engine of kv_role {role}")
    if params.do_remote_decode and num_answers > 1:
        raise BadRequest(KEY, f"{KEY}: do_remote_decode goes with n=1, got {num_answers}")


def check_extra_args(
    given: Any, role: KvRole | None, num_answers: int, *, is_foreign: bool = False
) -> None:
    """Of what `SamplingParams` may carry beside its fields, this is all that is known.

    What is said to another engine is an object, which its own connector reads and judges.
    """
    if not isinstance(given, dict) or given.keys() - {KEY}:
        raise BadRequest("extra_args", f"extra_args must be a dict that holds {KEY} alone")
    if given and not is_foreign:
        check_params(given[KEY], role, num_answers)
    elif given and not isinstance(given[KEY], dict):
        raise BadRequest(KEY, f"{KEY} must be an object")
    elif given and role is None:
        raise BadRequest(KEY, _NO_PART)


def to_extra_args(
    given: dict[str, Any] | None, *, is_announced: bool = False
) -> dict[str, Any] | None:
    """Where `SamplingParams` carries what a body says of transfers.

    Only an answer in which blocks can be announced before it begins may ask for `do_chunked_transfer`.
    """
    if given and given.get("do_chunked_transfer") and not is_announced:
        raise BadRequest(
            KEY, f"{KEY}: do_chunked_transfer goes with streams of /inference/v1/generate alone"
        )
    return {KEY: given} if given else None


def lends_prompt(extra_args: dict[str, Any] | None) -> bool:
    """Whether a checked request is to lend its blocks when it ends."""
    return bool(extra_args and extra_args[KEY].get("do_remote_decode"))


def lends_chunks(extra_args: dict[str, Any] | None) -> bool:
    """Whether it is to lend what is computed of its prompt while the rest still is."""
    return lends_prompt(extra_args) and bool(
        extra_args and extra_args[KEY].get("do_chunked_transfer")
    )


def remote_prompt(extra_args: dict[str, Any] | None) -> RemotePrompt | None:
    """Where the prompt of a checked request lies, if another engine has computed it."""
    if not (extra_args and extra_args[KEY].get("do_remote_prefill")):
        return None
    found = extra_args[KEY]
    [block_ids] = found["remote_block_ids"]
    return RemotePrompt(
        engine_id=found["remote_engine_id"],
        request_id=found["remote_request_id"],
        block_ids=block_ids,
        host=found["remote_host"],
        port=found["remote_port"],
    )
