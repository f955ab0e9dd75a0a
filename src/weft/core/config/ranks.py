"""The data-parallel ranks that run on this machine: options of the user, and the configuration read from them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

from weft.core.errors import ConfigError
from weft.core.values.declare import Flag

if TYPE_CHECKING:
    from weft.core.config.engine import EngineConfig

DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_RPC_PORT = 29550


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """Options of the user about ranks. `EngineOptions.data_parallel_size` is the number of ranks on all machines."""

    data_parallel_rank: Annotated[
        int | None,
        Flag(
            "Serve only this data-parallel rank; a load balancer in front has one server per rank.",
            "Data parallelism across nodes",
        ),
    ] = None
    data_parallel_external_lb: Annotated[
        bool,
        Flag(
            "External load balancing: one server per rank. Needs --data-parallel-rank, which implies it.",
            "Data parallelism across nodes",
        ),
    ] = False
    data_parallel_hybrid_lb: Annotated[
        bool,
        Flag(
            "Hybrid load balancing: serve --data-parallel-size-local ranks, starting at "
            "--data-parallel-start-rank; a load balancer in front has one server per node.",
            "Data parallelism across nodes",
        ),
    ] = False
    data_parallel_size_local: Annotated[
        int | None,
        Flag(
            "Number of engines on this node; the other ranks of --data-parallel-size run on other nodes.",
            "Data parallelism across nodes",
        ),
    ] = None
    data_parallel_start_rank: Annotated[
        int | None, Flag("Rank of the first engine on this node.", "Data parallelism across nodes")
    ] = None
    data_parallel_address: Annotated[
        str | None,
        Flag(
            f"Address on which the head node listens for other nodes. Default: {DEFAULT_ADDRESS}.",
            "Data parallelism across nodes",
        ),
    ] = None
    data_parallel_rpc_port: Annotated[
        int | None,
        Flag(
            f"Port of the head node. Default: {DEFAULT_RPC_PORT}.", "Data parallelism across nodes"
        ),
    ] = None
    data_parallel_secret_file: Annotated[
        str | None,
        Flag(
            "File with the secret that the head node and the other nodes share; required.",
            "Data parallelism across nodes",
        ),
    ] = None
    headless: Annotated[
        bool,
        Flag(
            "Run only engines, for the head node at --data-parallel-address; start no API servers.",
            "Data parallelism across nodes",
        ),
    ] = False


class LinkConfig(msgspec.Struct, frozen=True):
    """Address on which a head node listens for its nodes, and the file with the secret that head and nodes share."""

    host: str
    port: int
    secret_path: str


class RanksConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Data-parallel ranks of this machine: `num_local` ranks from `start` on.

    `link` is the connection between a head node and its nodes.
    """

    start: int
    num_local: int
    link: LinkConfig | None = None
    is_headless: bool = False


def local_ranks(config: "EngineConfig") -> range:
    """Returns the ranks whose engines run on this machine."""
    ranks = config.ranks
    if ranks is None:
        return range(config.data_parallel_size)
    return range(ranks.start, ranks.start + ranks.num_local)


def served_ranks(config: "EngineConfig") -> range:
    """Returns the ranks that this server can send requests to."""
    return range(config.data_parallel_size) if is_head(config) else local_ranks(config)


def is_head(config: "EngineConfig") -> bool:
    """True if engines of other machines join this server."""
    return (
        config.ranks is not None and config.ranks.link is not None and not config.ranks.is_headless
    )


def read_ranks(given: RankOptions, size: int) -> RanksConfig | None:
    """Returns the ranks of this machine; None if all ranks run on this machine.

    Raises a `ConfigError` that names the options for options that exclude each other.
    """
    _check_together(given)
    if size < 1:  # the check of all sizes refuses this value later, with the option's name
        return None
    found = _find(given, size)
    if given.data_parallel_secret_file is not None and (found is None or found.link is None):
        raise ConfigError(
            "--data-parallel-secret-file is for a head and its nodes: with --data-parallel-size-local below "
            "--data-parallel-size, or with --headless"
        )
    return found


def _find(given: RankOptions, size: int) -> RanksConfig | None:
    if given.headless:
        return _headless(given, size)
    if given.data_parallel_rank is not None:
        rank = _within("data_parallel_rank", given.data_parallel_rank, 0, size - 1)
        return None if size == 1 else RanksConfig(start=rank, num_local=1)
    start = _within("data_parallel_start_rank", given.data_parallel_start_rank or 0, 0, size - 1)
    num_local = size - start
    if given.data_parallel_size_local is not None:
        is_balanced = given.data_parallel_hybrid_lb or start > 0
        least = 1 if is_balanced else 0
        num_local = _within(
            "data_parallel_size_local", given.data_parallel_size_local, least, size - start
        )
    if num_local == size:
        return None
    if given.data_parallel_hybrid_lb or start:
        return RanksConfig(start=start, num_local=num_local)
    return RanksConfig(start=0, num_local=num_local, link=_link(given))


def _headless(given: RankOptions, size: int) -> RanksConfig:
    if size == 1:
        raise ConfigError(
            "--headless needs --data-parallel-size above 1, with the same value as on the head node"
        )
    start = _within("data_parallel_start_rank", given.data_parallel_start_rank or 0, 0, size - 1)
    num_local = given.data_parallel_size_local
    num_local = size - start if num_local is None else num_local
    _within("data_parallel_size_local", num_local, 1, size - start)
    return RanksConfig(start=start, num_local=num_local, link=_link(given), is_headless=True)


def _check_together(given: RankOptions) -> None:
    has_rank = given.data_parallel_rank is not None
    for name, is_wrong, why in (
        (
            "data_parallel_external_lb",
            given.data_parallel_external_lb and not has_rank,
            "needs --data-parallel-rank, the rank of this server",
        ),
        (
            "data_parallel_rank",
            has_rank
            and (
                given.headless
                or given.data_parallel_hybrid_lb
                or bool(given.data_parallel_start_rank)
            ),
            "cannot be combined with --headless, --data-parallel-hybrid-lb or --data-parallel-start-rank",
        ),
        (
            "data_parallel_rank",
            has_rank and given.data_parallel_size_local not in (None, 1),
            "is for a server of one rank: leave --data-parallel-size-local out, or give 1",
        ),
        (
            "headless",
            given.headless and given.data_parallel_hybrid_lb,
            "cannot be combined with --data-parallel-hybrid-lb, which needs a server on each node",
        ),
    ):
        if is_wrong:
            raise ConfigError(f"--{name.replace('_', '-')} {why}")


def _link(given: RankOptions) -> LinkConfig:
    host = given.data_parallel_address or DEFAULT_ADDRESS
    port = given.data_parallel_rpc_port
    port = _within("data_parallel_rpc_port", DEFAULT_RPC_PORT if port is None else port, 1, 65535)
    secret = given.data_parallel_secret_file
    if secret is None:
        raise ConfigError(
            f"--data-parallel-address {host} without a secret is not supported: any process that reaches port {port} "
            "there could join as an engine; take --data-parallel-secret-file FILE, with the same secret on head and "
            "nodes"
        )
    return LinkConfig(host, port, secret)


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ConfigError(
            f"--{name.replace('_', '-')} must be from {low} to {high} here, not {value}"
        )
    return value
