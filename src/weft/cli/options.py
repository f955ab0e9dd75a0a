"""The options of each command: one dataclass a command, one field a flag.

A field's name is its flag, its WEFT_ variable and its key in a config file. None means "choose for
me"; `weft.engine.configure` chooses.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from weft.cli.flags import GROUPS, as_flags, pick, sample_flags
from weft.core.config import EngineOptions
from weft.rpc.options import RpcOptions
from weft.web.http.options import HttpOptions
from weft.web.options import ApiOptions

API = GROUPS["API"]
MODEL = GROUPS["Model"]
REMOTE = GROUPS["Remote engines"]
SERVER = GROUPS["Server"]
CONNECTION = GROUPS["Connection"]
CHAT = GROUPS["Chat"]

if TYPE_CHECKING:  # code reads them where they are declared: see `pick`
    ServeFlags = object
    SampleFlags = object
else:
    ServeFlags = as_flags(EngineOptions, ApiOptions, HttpOptions, RpcOptions)
    SampleFlags = sample_flags()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeOptions(ServeFlags):
    """Flags of `weft serve`, apart from the model itself.

    Those that set one field of `EngineOptions`, `ApiOptions`, `HttpOptions` or `RpcOptions` are declared there.
    """

    lora_modules: Annotated[
        list[str] | None,
        Parameter(
            group=MODEL,
            negative=(),
            help='Adapter to load at the start, NAME=DIRECTORY or JSON such as {"name": "sql", '
            '"path": "/adapters/sql"}; repeatable.',
        ),
    ] = None

    chat_template: Annotated[
        str | None,
        Parameter(
            group=API,
            help="Chat template (Jinja) in place of the model's: a file, or the text itself.",
        ),
    ] = None

    http: Annotated[bool, Parameter(group=SERVER, help="Serve the HTTP APIs.")] = True
    grpc: Annotated[bool, Parameter(group=SERVER, help="Serve the gRPC protocol.")] = True
    remote: Annotated[
        list[str] | None,
        Parameter(
            group=REMOTE,
            negative=(),
            help="Serve the HTTP APIs of these gRPC servers of one model, grpc://HOST:PORT[,...], "
            "and run no engine; gRPC is not opened.",
        ),
    ] = None
    remote_api_key: Annotated[
        str | None, Parameter(group=REMOTE, help="Key for the servers of --remote.")
    ] = None
    remote_control_api_key: Annotated[
        str | None,
        Parameter(group=REMOTE, help="Control key of the servers of --remote."),
    ] = None
    remote_tls_ca: Annotated[
        Path | None,
        Parameter(
            group=REMOTE,
            help="Certificate (PEM) to trust for the servers of --remote; turns TLS on.",
        ),
    ] = None
    shutdown_timeout: Annotated[
        float, Parameter(group=SERVER, help="Seconds that open requests get on SIGTERM.")
    ] = 30.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Parameter(group=SERVER, help="Least serious events to log."),
    ] = "info"
    disable_log_stats: Annotated[
        bool,
        Parameter(
            group=SERVER, negative=(), help="Log no line about a busy engine's load every 5 s."
        ),
    ] = False
    show_hidden_metrics_for_version: Annotated[
        str | None,
        Parameter(
            group=SERVER,
            help="Show metrics also under the names they had up to this version of vLLM, such as 0.11.",
        ),
    ] = None
    config: Annotated[
        Path | None, Parameter(group=SERVER, help="File with these settings: TOML, YAML or JSON.")
    ] = None

    translated: Annotated[list[str] | None, Parameter(show=False, negative=())] = None

    def engine_options(self, model: str = EngineOptions().model) -> EngineOptions:
        """The part that concerns the engine."""
        return pick(self, EngineOptions, model=model)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """Where the server is; shared by the commands that talk to one."""

    address: Annotated[
        str, Parameter(group=CONNECTION, help="HOST:PORT of the server's gRPC port.")
    ] = "127.0.0.1:50051"
    api_key: Annotated[str | None, Parameter(group=CONNECTION, help="Key for the server.")] = None
    grpc_tls_ca: Annotated[
        Path | None,
        Parameter(group=CONNECTION, help="Certificate (PEM) to trust; turns TLS on."),
    ] = None
    connect_timeout: Annotated[
        float, Parameter(group=CONNECTION, help="Seconds to wait for the server.")
    ] = 5.0


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SampleOptions(SampleFlags):
    """How to sample; what is not given is the model's own default."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What is particular to a conversation."""

    system: Annotated[
        str | None, Parameter(group=CHAT, help="System message, before the first of yours.")
    ] = None
    think: Annotated[
        bool | None,
        Parameter(group=CHAT, help="Switch reasoning before the answer on or off."),
    ] = None
