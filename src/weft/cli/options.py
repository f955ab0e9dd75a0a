"""The options of each command: one dataclass a command, one field a flag; and the commands with their arguments.

A field's name is its flag, its WEFT_ variable and its key in a config file. None means "choose for
me"; `weft.engine.configure` chooses. What a command does is imported when it is called, for a quick `--help`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from weft.cli.commands import call
from weft.cli.flags import SHORT, LogFormatFlag, flags, pick, sample_flags
from weft.core.config import EngineOptions
from weft.core.declare import Flag
from weft.core.ranks import RankOptions, RanksConfig, read_ranks
from weft.rpc.options import RpcOptions
from weft.web.http.options import HttpOptions
from weft.web.options import ApiOptions

if TYPE_CHECKING:  # code reads them where they are declared
    SampleFlags = object
else:
    SampleFlags = sample_flags()


@flags(EngineOptions, ApiOptions)
class LoadOptions:
    """What is loaded, and how the APIs answer: flags of every command that starts an engine for them.

    Those that set one field of `EngineOptions` or `ApiOptions` are declared there.
    """

    lora_modules: Annotated[
        list[str] | None,
        Flag(
            'Adapter to load at the start, NAME=DIRECTORY or JSON such as {"name": "sql", '
            '"path": "/adapters/sql"}; repeatable.',
            "Model",
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        Flag("Chat template (Jinja) in place of the model's: a file, or the text itself.", "API"),
    ] = None

    def engine_options(self, model: str = EngineOptions().model) -> EngineOptions:
        """The part that concerns the engine."""
        return pick(self, EngineOptions, model=model)


@flags(HttpOptions, RpcOptions, RankOptions)
class ServeOptions(LoadOptions):
    """Flags of `weft serve`, apart from the model itself.

    Those that set one field of `HttpOptions`, `RpcOptions` or `RankOptions` are declared there.
    """

    http: Annotated[bool, Flag("Serve the HTTP APIs.", "Server")] = True
    grpc: Annotated[bool, Flag("Serve the gRPC protocol.", "Server")] = True
    engine: Annotated[
        Literal["weft", "vllm"],
        Flag("What runs the model: Weft, or vLLM, which is to be installed (weft[vllm]).", "Model"),
    ] = "weft"
    engine_args: Annotated[
        str | None,
        Flag(
            'Arguments of vLLM\'s engine, with --engine vllm; JSON, such as {"tensor_parallel_size": 2}. '
            "Its flags may stand on the command line too.",
            "Model",
            is_json=True,
        ),
    ] = None
    remote: Annotated[
        list[str] | None,
        Flag(
            "Serve the HTTP APIs of these gRPC servers of one model, grpc://HOST:PORT[,...], "
            "and run no engine; gRPC is not opened.",
            "Remote engines",
        ),
    ] = None
    remote_api_key: Annotated[
        str | None, Flag("Key for the servers of --remote.", "Remote engines")
    ] = None
    remote_control_api_key: Annotated[
        str | None, Flag("Control key of the servers of --remote.", "Remote engines")
    ] = None
    remote_tls_ca: Annotated[
        Path | None,
        Flag(
            "Certificate (PEM) to trust for the servers of --remote; turns TLS on.",
            "Remote engines",
        ),
    ] = None
    api_server_count: Annotated[
        int,
        Flag(
            "Processes that talk with clients, on the same ports; more than one where one cannot write the "
            "events of all streams.",
            "Server",
        ),
    ] = 1
    shutdown_timeout: Annotated[
        float, Flag("Seconds that open requests get on SIGTERM.", "Server")
    ] = 30.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Flag("Least serious events to log.", "Server"),
    ] = "info"
    log_format: LogFormatFlag = "text"
    otlp_traces_endpoint: Annotated[
        str | None,
        Flag(
            "Where to send traces, such as http://localhost:4317 (needs weft[otel]); OTEL_ variables say more.",
            "Server",
        ),
    ] = None
    disable_log_stats: Annotated[
        bool,
        Flag("Log no line about a busy engine's load every 5 s.", "Server", negatable=False),
    ] = False
    show_hidden_metrics_for_version: Annotated[
        str | None,
        Flag(
            "Show metrics also under the names they had up to this version of vLLM, such as 0.11.",
            "Server",
        ),
    ] = None
    config: Annotated[
        Path | None, Flag("File with these settings: TOML, YAML or JSON.", "Server")
    ] = None

    def ranks(self) -> RanksConfig | None:
        """Which ranks this server has, where it does not have all of them."""
        size = self.engine_options().data_parallel_size
        return read_ranks(pick(self, RankOptions), size)

    translated: Annotated[list[str] | None, Flag("", "Server", is_hidden=True)] = None
    vllm_words: Annotated[list[str] | None, Flag("", "Server", is_hidden=True)] = None


@flags()
class BatchOptions(LoadOptions):
    """Flags of `weft batch`."""

    input_file: Annotated[Path, Flag("Requests, one a line (JSON Lines).", "Batch")]
    output_file: Annotated[
        Path,
        Flag("Where answers are added; those that it holds are not asked for again.", "Batch"),
    ]
    url: Annotated[
        str | None,
        Flag("Server to send them to, http://HOST:PORT; no engine is started.", "Batch"),
    ] = None
    api_key: Annotated[str | None, Flag("Key for the server.", "Batch")] = None
    max_concurrency: Annotated[int, Flag("Requests that are open at once.", "Batch")] = 128
    max_tries: Annotated[
        int, Flag("How often a request is sent that a busy server cannot answer.", "Batch")
    ] = 8


@flags()
class ConnectOptions:
    """Where the server is; shared by the commands that talk to one."""

    address: Annotated[str, Flag("HOST:PORT of the server's gRPC port.", "Connection")] = (
        "127.0.0.1:50051"
    )
    api_key: Annotated[str | None, Flag("Key for the server.", "Connection")] = None
    grpc_tls_ca: Annotated[
        Path | None, Flag("Certificate (PEM) to trust; turns TLS on.", "Connection")
    ] = None
    connect_timeout: Annotated[float, Flag("Seconds to wait for the server.", "Connection")] = 5.0


@flags()
class SampleOptions(SampleFlags):
    """How to sample; what is not given is the model's own default."""


@flags()
class ChatOptions:
    """What is particular to a conversation."""

    system: Annotated[str | None, Flag("System message, before the first of yours.", "Chat")] = None
    think: Annotated[bool | None, Flag("Switch reasoning before the answer on or off.", "Chat")] = (
        None
    )
    reasoning: Annotated[
        Literal["fold", "show", "hide"],
        Flag("Of the reasoning show one line, which /reasoning unfolds; all; or nothing.", "Chat"),
    ] = "fold"
    verbose: Annotated[
        bool,
        Flag("Say how many tokens a second each answer had.", "Chat", negatable=False),
    ] = False
    history: Annotated[
        bool, Flag("Remember what you type, in XDG_STATE_HOME/weft/chat_history.", "Chat")
    ] = True
    json: Annotated[
        bool,
        Flag("Print the one answer as a line of JSON, for scripts.", "Output", negatable=False),
    ] = False


@flags()
class CompleteOptions:
    """How the continuation is printed."""

    json: Annotated[
        bool, Flag("Print it as a line of JSON, for scripts.", "Output", negatable=False)
    ] = False


@flags(EngineOptions)
class RunOptions:
    """Flags of `weft run`, beside those of `weft chat`: the engine's."""

    port: Annotated[
        int, Flag("Port of the HTTP APIs, open while you chat; 0 takes a free one.", "Server")
    ] = 0
    log_file: Annotated[
        Path | None,
        Flag("Where the server logs; XDG_STATE_HOME/weft/run.log if unset.", "Server"),
    ] = None
    log_format: LogFormatFlag = "text"


Model = Annotated[str | None, Parameter(alias=SHORT["model"])]


def serve(model: Model = None, *, options: ServeOptions = ServeOptions()) -> int:
    """Serve a model over HTTP and gRPC until SIGTERM or Ctrl-C.

    Parameters
    ----------
    model
        A checkpoint's directory, a GGUF file, a Hub id (Qwen/Qwen3-0.6B, or OWNER/NAME:FILE.gguf), or one
        that is built in:
        embedded:tiny (the default), embedded:random?layers=2&..., embedded:echo.
    """
    return call("weft.cli.serving.serve:serve", model, options=options)


def complete(
    prompt: str | None = None,
    *,
    options: CompleteOptions = CompleteOptions(),
    connect: ConnectOptions = ConnectOptions(),
    sample: SampleOptions = SampleOptions(),
) -> int:
    """Continue a text with the served model.

    Parameters
    ----------
    prompt
        The text; read from standard input if not given.
    """
    return call("weft.cli.chat.complete:complete", prompt, options, connect, sample)


def chat(
    message: str | None = None,
    *,
    options: ChatOptions = ChatOptions(),
    connect: ConnectOptions = ConnectOptions(),
    sample: SampleOptions = SampleOptions(),
) -> int:
    """Talk with the served model.

    Parameters
    ----------
    message
        Say this, print the answer and leave. Without it you talk on the terminal; what is piped in
        is one message.
    """
    return call("weft.cli.chat.chat:chat", message, options, connect, sample)


def run(
    model: Model = None,
    message: str | None = None,
    *,
    options: RunOptions = RunOptions(),
    chat: ChatOptions = ChatOptions(),
    sample: SampleOptions = SampleOptions(),
) -> int:
    """Serve a model on this machine for as long as you chat with it.

    Parameters
    ----------
    model
        As for weft serve; embedded:tiny if not given.
    message
        As for weft chat.
    """
    return call("weft.cli.run:run", model, message, options, chat, sample)


def batch(model: Model = None, *, options: BatchOptions) -> int:
    """Answer the requests of a file in OpenAI's Batch format, all that is free at once.

    Parameters
    ----------
    model
        What `weft serve` takes; embedded:tiny if not given.
    """
    return call("weft.cli.batch.batch:batch", model, options)
