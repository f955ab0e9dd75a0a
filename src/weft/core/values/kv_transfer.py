"""Transfer of a prompt's KV from a prefill engine to a decode engine, and the parameters of the transfer.

`KvTransferParams` follows vLLM's contract: a router sends a request with `do_remote_decode` to the engine that computes
the prompt, and passes the parameters in this engine's answer unchanged to the engine that continues the prompt.
"""

import ipaddress
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from weft.core.errors import BadRequest

KEY = "kv_transfer_params"  # key in `SamplingParams.extra_args`, in request bodies and in answers
_NO_PART = f"{KEY} needs an engine that was started with --kv-transfer-config"
# Maximum time for which an engine that stops waits until others have fetched the blocks of the requests that it has
# handed over.
HAND_OVER_S = 5.0
MAX_BLOCKS = 1 << 16  # maximum number of blocks of one request

_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_BlockId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class KvRole(StrEnum):
    """Role of an engine in KV transfers."""

    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"
    BOTH = "kv_both"

    @property
    def lends(self) -> bool:
        """True if the engine computes prompts for other engines and lends the blocks."""
        return self is not KvRole.CONSUMER

    @property
    def fetches(self) -> bool:
        """True if the engine continues prompts that other engines have computed."""
        return self is not KvRole.PRODUCER


class KvConnector(StrEnum):
    """Protocol by which blocks are sent between engines."""

    TCP = "TcpConnector"
    SHM = "ShmConnector"


class KvPeer(msgspec.Struct, frozen=True):
    """Engines that blocks may be fetched from: all hosts in a network, at any port or only at `port`."""

    network: str
    port: int | None = None

    def has(self, host: str, port: int) -> bool:
        """True if the address and port belong to these engines."""
        address = ipaddress.ip_address(host)
        return self.port in (None, port) and address in ipaddress.ip_network(self.network)


class KvTransferConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Role of an engine in KV transfers. The engine lends at `host` and `port`, and fetches only from `peers`.

    Both sides prove that they know the secret in `secret_path`. A `port` of 0 selects any free port. A lease ends after
    `lease_s` seconds, a fetch after `fetch_timeout_s` seconds. With `fails_requests` a failed fetch is an error of the
    request; otherwise this engine computes the prompt itself.
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
        """Networks of the peers; servers in these networks may use any port."""
        return [peer.network for peer in self.peers]

    def is_peer(self, host: str, port: int) -> bool:
        """True if blocks may be fetched from this address, which a caller has given."""
        return any(peer.has(host, port) for peer in self.peers)

    def of_rank(self, rank: int) -> "KvTransferConfig":
        """Returns the configuration of the engine with this rank: its own engine id, and the port plus the rank."""
        engine_id = f"{self.engine_id}-{rank}"
        return msgspec.structs.replace(
            self, engine_id=engine_id, port=self.port and self.port + rank
        )


class KvTransferParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a KV transfer. `do_remote_decode`: lend the prompt's blocks. `do_remote_prefill`: fetch the blocks.

    `remote_block_ids` has one group of block ids, in the order of the prompt. With `do_chunked_transfer` (an extension
    of vLLM's contract) a prompt that takes several steps is lent from the first step on, and a stream announces the
    blocks at once.
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
    """Blocks of a prompt that another engine stores."""

    engine_id: str
    request_id: str
    block_ids: list[int]
    host: str
    port: int

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which the other engine lends the blocks."""
        return self.host, self.port


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """The server ("host:port") that a router chose to compute a prompt, and the caller's API key."""

    address: str
    authorization: str | None = None


def read_params(given: Any) -> KvTransferParams | None:
    """Returns the caller's parameters, checked; None if they request no transfer.

    Raises a `BadRequest` that names the invalid field.
    """
    try:
        params = msgspec.convert(given, KvTransferParams)
    except msgspec.ValidationError as error:
        raise BadRequest(KEY, f"{KEY}: {error}") from None
    if params.do_remote_decode and params.do_remote_prefill:
        raise BadRequest(KEY, f"{KEY}: do_remote_decode and do_remote_prefill cannot both be true")
    if params.do_chunked_transfer and not params.do_remote_decode:
        raise BadRequest(KEY, f"{KEY}: do_chunked_transfer needs do_remote_decode")
    if params.do_remote_prefill:
        for name in ("engine_id", "request_id", "block_ids", "host", "port"):
            if getattr(params, f"remote_{name}") is None:
                raise BadRequest(KEY, f"{KEY}: do_remote_prefill needs remote_{name}")
        _check_address(params.remote_host)
    return params if params.do_remote_decode or params.do_remote_prefill else None


def _check_address(host: str | None) -> None:
    """Raises `BadRequest` for a host name: a caller must not make this server look up DNS names."""
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        raise BadRequest(KEY, f"{KEY}: remote_host must be an IP address, got {host!a}") from None


def check_params(given: Any, role: KvRole | None, num_answers: int) -> None:
    """Raises `BadRequest` for a transfer that an engine of this role cannot do."""
    params = read_params(given)
    if params is None:
        return
    if role is None:
        raise BadRequest(KEY, _NO_PART)
    if params.do_remote_decode and not role.lends:
        raise BadRequest(
            KEY, f"{KEY}: do_remote_decode is not allowed on an engine with kv_role {role}"
        )
    if params.do_remote_prefill and not role.fetches:
        raise BadRequest(
            KEY, f"{KEY}: do_remote_prefill is not allowed on an engine with kv_role {role}"
        )
    if params.do_remote_decode and num_answers > 1:
        raise BadRequest(KEY, f"{KEY}: do_remote_decode needs n=1, got {num_answers}")


def check_extra_args(
    given: Any, role: KvRole | None, num_answers: int, *, is_foreign: bool = False
) -> None:
    """Checks `SamplingParams.extra_args`, which may hold transfer parameters and nothing else.

    Parameters for another engine (`is_foreign`) must be an object; that engine's connector checks the rest.
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
    """Returns the transfer parameters of a request body in the form of `SamplingParams.extra_args`.

    `do_chunked_transfer` is allowed only for answers that can announce the blocks before the answer begins.
    """
    if given and given.get("do_chunked_transfer") and not is_announced:
        raise BadRequest(
            KEY,
            f"{KEY}: do_chunked_transfer is only supported for streams of /inference/v1/generate",
        )
    return {KEY: given} if given else None


def lends_prompt(extra_args: dict[str, Any] | None) -> bool:
    """True if a checked request lends its blocks when it ends."""
    return bool(extra_args and extra_args[KEY].get("do_remote_decode"))


def lends_chunks(extra_args: dict[str, Any] | None) -> bool:
    """True if a checked request lends computed blocks while the rest of its prompt is computed."""
    return lends_prompt(extra_args) and bool(
        extra_args and extra_args[KEY].get("do_chunked_transfer")
    )


def remote_prompt(extra_args: dict[str, Any] | None) -> RemotePrompt | None:
    """Returns the location of a checked request's blocks at another engine; None if no other engine computed the
    prompt.
    """
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


class GivenAnswer(msgspec.Struct, frozen=True):
    """The tokens that an unfinished answer has so far, and its counts of draft tokens."""

    token_ids: list[int] = []
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """The answers so far of a request that another engine has begun; None stands for an answer that has ended.

    `number` counts the engines that have begun the request. `num_losses` counts those of them that have ended since any
    answer last got a token; a drained engine does not count. Only a server with this `fingerprint` may continue the
    request; empty means any engine of the group.
    """

    answers: list[GivenAnswer | None]
    fingerprint: str = ""
    number: int = 1
    num_losses: int = 1

    @property
    def open_indexes(self) -> list[int]:
        """Indexes of the answers that have not ended."""
        return [index for index, answer in enumerate(self.answers) if answer is not None]

    @property
    def num_open_answers(self) -> int:
        """Number of answers that have not ended."""
        return len(self.open_indexes)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all unfinished answers."""
        return sum(len(answer.token_ids) for answer in self.answers if answer is not None)
