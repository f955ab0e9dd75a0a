"""`weft ps`: lists this user's servers on this machine."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from weft.cli.machine.serve_line import model_in
from weft.cli.shown import print_json, print_table
from weft.core.address import join_host_port
from weft.core.observe.readable import format_bytes
from weft.core.observe.terminal import say

COMMANDS = ("serve", "epp", "up")
_MODULE = "weft.cli.main"
_FEW = 4  # maximum number of words between the interpreter and the command


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A running Weft command. `memory_bytes` and `addresses` include those of its child processes."""

    pid: int
    command: str
    model: str | None
    addresses: list[str]
    memory_bytes: int
    age_s: float


def run(*, json: bool) -> int:
    """Prints the servers; returns 0, also without servers."""
    servers = sorted(find_servers(), key=lambda server: server.pid)
    if json:
        print_json(servers)
    elif not servers:
        say("you have no running server on this machine; weft serve starts one")
    else:
        heads = ("pid", "command", "model", "listens on", "memory", "age")
        print_table(heads, [_cells(server) for server in servers])
    return 0


def find_servers() -> Iterator[ServerProcess]:
    """Yields this user's servers, without their child processes. A server that ends during the search is left out."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real != os.getuid():
                continue
            words = command_of(process.cmdline())
            if words is not None:
                yield _describe(process, words)


def command_of(words: Sequence[str]) -> Sequence[str] | None:
    """Returns the Weft command and its arguments if the command line `words` starts a Weft server; otherwise None."""
    for place, word in enumerate(words[:_FEW]):
        is_ours = Path(word).name == "weft" or (word == _MODULE and words[place - 1] == "-m")
        if is_ours and words[place + 1 : place + 2] and words[place + 1] in COMMANDS:
            return words[place + 1 :]
    return None


def _describe(process: psutil.Process, words: Sequence[str]) -> ServerProcess:
    with process.oneshot():
        family = [process, *process.children(recursive=True)]
        addresses: set[str] = set()
        memory = 0
        for member in family:
            with suppress(psutil.Error):
                memory += member.memory_info().rss
                addresses.update(_listens_on(member))
        return ServerProcess(
            pid=process.pid,
            command=words[0],
            model=model_in(words[0], words[1:], process.environ()),
            addresses=sorted(addresses),
            memory_bytes=memory,
            age_s=round(time.time() - process.create_time(), 1),
        )


def _listens_on(process: psutil.Process) -> Iterator[str]:
    for connection in process.net_connections(kind="inet"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr:
            # gRPC accepts IPv4 connections on an IPv6 socket.
            host = connection.laddr.ip.removeprefix("::ffff:")
            yield join_host_port(host, connection.laddr.port)


def _cells(server: ServerProcess) -> tuple[str, ...]:
    minutes, seconds = divmod(int(server.age_s), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        str(server.pid),
        server.command,
        server.model or "-",
        " ".join(server.addresses) or "-",
        format_bytes(server.memory_bytes),
        f"{hours}:{minutes:02}:{seconds:02}",
    )
