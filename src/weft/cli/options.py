"""The commands with their arguments, and the options of each command: one dataclass per command, one field per flag.

A field's name gives the flag, the WEFT_ variable and the key of the configuration file. None means that
`weft.engine.start.configure` chooses the value. A command's code is imported when the command is called, so that
`--help` is quick.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from weft.cli.arguments.flags import SHORT, LogFormatFlag, flags, pick, sample_flags
from weft.cli.commands import call
from weft.core.config.engine_options import EngineOptions
from weft.core.config.ranks import RankOptions, RanksConfig, read_ranks
from weft.core.values.declare import Flag
from weft.rpc.options import RpcOptions
from weft.web.http.options import HttpOptions
from weft.web.model_pool.pool_options import PoolOptions
from weft.web.options import ApiOptions
from weft.web.store.store_options import StoreOptions

if TYPE_CHECKING:  # code imports them from their own modules
    SampleFlags = object
else:
    SampleFlags = sample_flags()


@flags(EngineOptions, ApiOptions)
class LoadOptions:
    """Flags of every command that starts an engine for the APIs: model loading, and the behaviour of the APIs. A flag
    that sets one field of `EngineOptions` or `ApiOptions` is declared in that class.
    """

    lora_modules: Annotated[
        list[str] | None,
        Flag(
            'LoRA adapter to load at startup: NAME=DIRECTORY, or JSON such as {"name": "sql", "path": '
            '"/adapters/sql"}; repeatable.',
            "Model",
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        Flag("Chat template (Jinja) that replaces the model's: a file, or the text itself.", "API"),
    ] = None

    def engine_options(self, model: str = EngineOptions().model) -> EngineOptions:
        """Returns the options of the engine for `model`."""
        return pick(self, EngineOptions, model=model)


@flags(HttpOptions, RpcOptions, RankOptions, PoolOptions, StoreOptions)
class ServeOptions(LoadOptions):
    """Flags of `weft serve`, apart from the model.

    A flag that sets a field of `HttpOptions`, `RpcOptions`, `RankOptions`, `PoolOptions` or `StoreOptions` is declared
    in that class.
    """

    http: Annotated[bool, Flag("Start the HTTP server.", "Server")] = True
    grpc: Annotated[bool, Flag("Start the gRPC server.", "Server")] = True
    engine: Annotated[
        Literal["weft", "vllm"],
        Flag("Inference engine: weft, or vllm (needs the extra weft-serve[vllm]).", "Model"),
    ] = "weft"
    engine_args: Annotated[
        str | None,
        Flag(
            'Arguments of vLLM\'s engine as JSON, such as {"tensor_parallel_size": 2}; needs --engine vllm. '
            "vLLM's flags may also be given directly on the command line.",
            "Model",
            is_json=True,
        ),
    ] = None
    remote: Annotated[
        list[str] | None,
        Flag(
            "Serve the HTTP APIs for these gRPC servers, grpc://HOST:PORT[,...], which all serve the same model. "
            "No engine and no gRPC server are started.",
            "Remote engines",
        ),
    ] = None
    remote_api_key: Annotated[
        str | None, Flag("API key of the --remote servers.", "Remote engines")
    ] = None
    remote_control_api_key: Annotated[
        str | None, Flag("Control API key of the --remote servers.", "Remote engines")
    ] = None
    remote_tls_ca: Annotated[
        Path | None,
        Flag(
            "CA certificate (PEM) for the --remote servers; enables TLS.",
            "Remote engines",
        ),
    ] = None
    api_server_count: Annotated[
        int,
        Flag(
            "Number of API server processes, all on the same ports. Use more than one if a single process cannot "
            "keep up with the streams.",
            "Server",
        ),
    ] = 1
    shutdown_timeout: Annotated[
        float, Flag("Maximum seconds for open requests to finish after SIGTERM.", "Server")
    ] = 30.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Flag("Minimum level of events to log.", "Server"),
    ] = "info"
    log_format: LogFormatFlag = "text"
    enable_log_requests: Annotated[
        bool,
        Flag(
            "Log a line for each request: its id, prompt length and parameters. With --log-level debug, also its "
            "prompt.",
            "Server",
        ),
    ] = False
    max_log_len: Annotated[
        int,
        Flag(
            "Maximum characters, and maximum token ids, of a prompt in the log of --enable-log-requests.",
            "Server",
        ),
    ] = 1000
    otlp_traces_endpoint: Annotated[
        str | None,
        Flag(
            "OTLP endpoint for traces, such as http://localhost:4317 (needs the extra weft-serve[otel]). OTEL_* "
            "environment variables configure the exporter.",
            "Server",
        ),
    ] = None
    disable_log_stats: Annotated[
        bool,
        Flag("Do not log engine statistics every 5 seconds.", "Server", negatable=False),
    ] = False
    show_hidden_metrics_for_version: Annotated[
        str | None,
        Flag(
            "Also expose metrics under the older names that this vLLM version still had, such as 0.11.",
            "Server",
        ),
    ] = None
    config: Annotated[
        Path | None, Flag("Configuration file with these settings: TOML, YAML or JSON.", "Server")
    ] = None

    def ranks(self) -> RanksConfig | None:
        """The data parallel ranks that this server runs; None if it runs all ranks."""
        size = self.engine_options().data_parallel_size
        return read_ranks(pick(self, RankOptions), size)

    translated: Annotated[list[str] | None, Flag("", "Server", is_hidden=True)] = None
    vllm_words: Annotated[list[str] | None, Flag("", "Server", is_hidden=True)] = None


@flags()
class BatchOptions(LoadOptions):
    """Flags of `weft batch`."""

    input_file: Annotated[Path, Flag("File of requests, one per line (JSON Lines).", "Batch")]
    output_file: Annotated[
        Path,
        Flag(
            "File to append answers to. Requests that already have an answer in it are skipped.",
            "Batch",
        ),
    ]
    url: Annotated[
        str | None,
        Flag(
            "Server to send requests to, http://HOST:PORT of its HTTP port; no engine is started.",
            "Batch",
        ),
    ] = None
    api_key: Annotated[str | None, Flag("API key of the server.", "Batch")] = None
    max_concurrency: Annotated[int, Flag("Maximum number of concurrent requests.", "Batch")] = 128
    max_tries: Annotated[
        int, Flag("Maximum number of attempts for a request that a busy server refuses.", "Batch")
    ] = 8
    skip_bad_lines: Annotated[
        bool,
        Flag(
            "Skip and report input lines that are not valid requests; the exit status is then 1.",
            "Batch",
            negatable=False,
        ),
    ] = False


@flags()
class ConnectOptions:
    """Address and credentials of a server, for the commands that connect to one."""

    address: Annotated[
        str,
        Flag(
            "Address of the server: HOST:PORT or grpc://HOST:PORT of its gRPC port, or http://HOST:PORT of the HTTP "
            "port of any server with OpenAI's API.",
            "Connection",
        ),
    ] = "127.0.0.1:50051"
    model: Annotated[
        str | None,
        Flag(
            "Name of the model on an HTTP server. Default: the first model that the server lists.",
            "Connection",
        ),
    ] = None
    api_key: Annotated[str | None, Flag("API key of the server.", "Connection")] = None
    grpc_tls_ca: Annotated[
        Path | None,
        Flag("CA certificate (PEM) to trust; enables TLS for gRPC.", "Connection"),
    ] = None
    connect_timeout: Annotated[
        float, Flag("Seconds to wait until the server is ready.", "Connection")
    ] = 5.0


@flags()
class SampleOptions(SampleFlags):
    """Sampling options. An option that is not set has the model's default."""


@flags()
class ChatOptions:
    """Flags of `weft chat`, apart from connection and sampling."""

    system: Annotated[str | None, Flag("System message of the conversation.", "Chat")] = None
    think: Annotated[bool | None, Flag("Turn reasoning before the answer on or off.", "Chat")] = (
        None
    )
    reasoning: Annotated[
        Literal["fold", "show", "hide"],
        Flag(
            "How to show reasoning: fold (one line, which /reasoning unfolds), show or hide.",
            "Chat",
        ),
    ] = "fold"
    verbose: Annotated[
        bool,
        Flag("Show the tokens per second of each answer.", "Chat", negatable=False),
    ] = False
    history: Annotated[
        bool, Flag("Keep the input history in XDG_STATE_HOME/weft/chat_history.", "Chat")
    ] = True
    json: Annotated[
        bool,
        Flag("Print the answer as one line of JSON.", "Output", negatable=False),
    ] = False


@flags()
class CompleteOptions:
    """Flags of `weft complete`, apart from connection and sampling."""

    json: Annotated[
        bool, Flag("Print the completion as one line of JSON.", "Output", negatable=False)
    ] = False


@flags(EngineOptions)
class RunOptions:
    """Flags of `weft run`, in addition to those of `weft chat`."""

    port: Annotated[
        int, Flag("HTTP port of the server that runs while you chat; 0 takes a free one.", "Server")
    ] = 0
    log_file: Annotated[
        Path | None,
        Flag("Log file of the server. Default: XDG_STATE_HOME/weft/run.log.", "Server"),
    ] = None
    log_format: LogFormatFlag = "text"


Model = Annotated[str | None, Parameter(alias=SHORT["model"])]


def serve(model: Model = None, *more: str, options: ServeOptions = ServeOptions()) -> int:
    """Serve a model over HTTP and gRPC until SIGTERM or Ctrl-C.

    Parameters
    ----------
    model
        A checkpoint's directory, a GGUF file, a Hub id (Qwen/Qwen3-0.6B, or OWNER/NAME:FILE.gguf), a short name
        (qwen3:0.6b; weft models names lists them), or one that is built in:
        embedded:tiny (the default), embedded:tiny-vision, embedded:tiny-whisper, embedded:random?layers=2&...,
        embedded:echo.
        NAME=MODEL gives it a name.
    more
        Further models, in the same forms. A request names its model, which is loaded when it is needed.
    """
    return call("weft.cli.serving.serve:serve", model, *more, options=options)


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
