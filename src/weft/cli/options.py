"""What each command can be told: one dataclass a command, one field a flag.

A field's name is its flag, its WEFT_ variable and its key in a config file. None means "choose for
me"; `weft.engine.configure` chooses.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from weft.cli.flags import GROUPS, as_flags, pick, sample_flags
from weft.cli.sizes import count_converter
from weft.core.config import EngineOptions
from weft.web.http.options import HttpOptions
from weft.web.options import ApiOptions

API = GROUPS["API"]
MODEL = GROUPS["Model"]
REMOTE = GROUPS["Remote engines"]
SERVER = GROUPS["Server"]
CONNECTION = Group("Connection", sort_key=2)
CHAT = Group("Chat", sort_key=1)

Count = Annotated[int, Parameter(converter=count_converter, metavar="INT")]
MaybeCount = Annotated[int | None, Parameter(converter=count_converter, metavar="INT")]


if TYPE_CHECKING:  # code reads them where they are declared: see `pick`
    ServeFlags = object
    SampleFlags = object
else:
    ServeFlags = as_flags(EngineOptions, ApiOptions, HttpOptions)
    SampleFlags = sample_flags()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ServeOptions(ServeFlags):
    """Flags of `weft serve`, apart from the model itself.

    Those that set one field of `EngineOptions`, `ApiOptions` or `HttpOptions` are declared there.
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
        Path | None,
        Parameter(group=API, help="Chat template (Jinja) to use in place of the model's."),
    ] = None
    tool_call_parser: Annotated[
        str,
        Parameter(
            group=API, help="How the model writes tool calls; auto goes by the chat template."
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        Parameter(
            group=API,
            help="How the model writes thoughts; auto goes by the chat template. One that is named holds for "
            "gRPC too: constraints begin behind the thought.",
        ),
    ] = "auto"

    http: Annotated[bool, Parameter(group=SERVER, help="Serve the HTTP APIs.")] = True
    grpc: Annotated[bool, Parameter(group=SERVER, help="Serve the gRPC protocol.")] = True
    grpc_port: Annotated[
        Count, Parameter(group=SERVER, help="Port of the gRPC server; 0 takes a free one.")
    ] = 50051
    grpc_reflection: Annotated[
        bool, Parameter(group=SERVER, help="Let clients list the services.")
    ] = False
    grpc_open_health_check: Annotated[
        bool,
        Parameter(
            group=SERVER,
            help="Answer HealthCheck without a key: gateways send none. grpc.health.v1 needs none anyway.",
        ),
    ] = False
    api_key: Annotated[
        list[str] | None,
        Parameter(
            group=SERVER,
            negative=(),
            help="Key every call must bring; repeatable. WEFT_API_KEY shows in no process list.",
        ),
    ] = None
    control_api_key: Annotated[
        list[str] | None,
        Parameter(
            group=SERVER,
            negative=(),
            help="Key of what reaches beyond the caller's own requests: /pause, /abort_requests and the like over "
            "HTTP, FlushCache, SubscribeKvEvents and Abort of any id over gRPC; repeatable. Without, these are off; "
            "over gRPC only where there is an --api-key.",
        ),
    ] = None
    grpc_tls_cert: Annotated[
        Path | None, Parameter(group=SERVER, help="Certificate chain (PEM); turns TLS on for gRPC.")
    ] = None
    grpc_tls_key: Annotated[
        Path | None, Parameter(group=SERVER, help="Private key of --grpc-tls-cert (PEM).")
    ] = None
    grpc_tls_client_ca: Annotated[
        Path | None,
        Parameter(group=SERVER, help="Clients must show a certificate signed by this one (PEM)."),
    ] = None
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
        str | None, Parameter(group=REMOTE, help="Key that the servers of --remote ask for.")
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
    api_key: Annotated[str | None, Parameter(group=CONNECTION, help="Key the server asks for.")] = (
        None
    )
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
        str | None, Parameter(group=CHAT, help="What the model is told before you speak.")
    ] = None
    think: Annotated[
        bool | None,
        Parameter(group=CHAT, help="Ask for thoughts before the answer, or for none."),
    ] = None
