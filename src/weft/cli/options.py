"""What each command can be told: one dataclass a command, one field a flag.

A field's name is its flag, its WEFT_ variable and its key in a config file. None means "choose for
me"; `weft.engine.configure` chooses.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from weft.cli.sizes import count_converter, size_converter
from weft.core.config import EngineOptions
from weft.engine.defaults import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_MAX_LORA_RANK,
    DEFAULT_MAX_LORAS,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_QUEUED_REQS,
    DEFAULT_MAX_NUM_QUEUED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_STREAM_INTERVAL_MS,
)

MODEL = Group("Model", sort_key=1)
MEMORY = Group("Memory", sort_key=2)
SCHEDULING = Group("Scheduling", sort_key=3)
API = Group("API", sort_key=4)
SERVER = Group("Server", sort_key=5)
REMOTE = Group("Remote engines", sort_key=6)
CONNECTION = Group("Connection", sort_key=2)
CHAT = Group("Chat", sort_key=1)
SAMPLING = Group("Sampling", sort_key=3)

Size = Annotated[int | None, Parameter(converter=size_converter, metavar="SIZE")]
Count = Annotated[int, Parameter(converter=count_converter, metavar="INT")]
MaybeCount = Annotated[int | None, Parameter(converter=count_converter, metavar="INT")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Flags of `weft serve`, apart from the model itself."""

    served_model_name: Annotated[
        list[str] | None,
        Parameter(group=MODEL, negative=(), help="Name clients use; repeat for aliases."),
    ] = None
    revision: Annotated[
        str | None, Parameter(group=MODEL, help="Branch, tag or commit of a Hub model.")
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Parameter(group=MODEL, help="Round the weights to this type; auto keeps their own."),
    ] = "auto"
    runner: Annotated[
        Literal["auto", "generate", "pooling"],
        Parameter(
            group=MODEL,
            help="Generate text, or pool hidden states: embed, classify, score; auto asks the model's files.",
        ),
    ] = "auto"
    pooler_config: Annotated[
        str | None,
        Parameter(
            group=MODEL,
            metavar="JSON",
            help="How to embed: pooling_type, normalize, enable_chunked_processing, max_embed_len.",
        ),
    ] = None
    quantization: Annotated[
        Literal["int8"] | None,
        Parameter(
            group=MODEL,
            help="Round linear layers, weights and inputs, to this type: half the memory, near the answers.",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "int8"],
        Parameter(
            group=MODEL,
            help="Round keys and values to this type: twice the tokens in the same memory; auto leaves them.",
        ),
    ] = "auto"
    compute: Annotated[
        Literal["auto", "reference", "native"],
        Parameter(group=MODEL, help="What computes: C++, or the slow reference in numpy."),
    ] = "auto"
    num_threads: Annotated[
        MaybeCount,
        Parameter(group=MODEL, help="Threads that compute; the CPUs of this process if unset."),
    ] = None
    max_model_len: Annotated[
        Size,
        Parameter(
            group=MODEL,
            help="Longest prompt and answer together, in tokens; the model's own if unset.",
        ),
    ] = None
    enable_lora: Annotated[
        bool,
        Parameter(group=MODEL, help="Serve LoRA adapters too. Memory is kept free for them."),
    ] = False
    max_loras: Annotated[
        MaybeCount,
        Parameter(
            group=MODEL,
            help=f"Most adapters that are loaded at once, {DEFAULT_MAX_LORAS} if unset; the one used "
            "least lately gives way.",
        ),
    ] = None
    max_lora_rank: Annotated[
        MaybeCount,
        Parameter(
            group=MODEL, help=f"Highest rank of an adapter; {DEFAULT_MAX_LORA_RANK} if unset."
        ),
    ] = None
    lora_modules: Annotated[
        list[str] | None,
        Parameter(
            group=MODEL,
            negative=(),
            help='Adapter to load at the start, NAME=DIRECTORY or JSON such as {"name": "sql", '
            '"path": "/adapters/sql"}; repeatable.',
        ),
    ] = None
    allow_runtime_lora_updating: Annotated[
        bool,
        Parameter(
            group=API,
            help="Let holders of a control key load and unload adapters, from any directory.",
        ),
    ] = False
    max_logprobs: Annotated[
        Count,
        Parameter(group=MODEL, help="Most log-probabilities a request may ask for; -1: no limit."),
    ] = 20
    logprobs_mode: Annotated[
        Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"],
        Parameter(
            group=MODEL,
            help="What log-probabilities are of: the model's logits, or what is left to draw from.",
        ),
    ] = "raw_logprobs"
    structured_outputs_in_reasoning: Annotated[
        bool,
        Parameter(
            group=MODEL, help="Let structured output rule a thought too, not its answer only."
        ),
    ] = False
    kv_cache_bytes: Annotated[
        Size,
        Parameter(
            group=MEMORY,
            help="Memory for the KV pool, such as 4GiB; sized from what is free if unset.",
        ),
    ] = None
    num_gpu_blocks_override: Annotated[
        MaybeCount, Parameter(group=MEMORY, help="The KV pool as a number of blocks.")
    ] = None
    block_size: Annotated[
        MaybeCount,
        Parameter(group=MEMORY, help=f"Tokens in a block; {DEFAULT_BLOCK_SIZE} if unset."),
    ] = None
    enable_prefix_caching: Annotated[
        bool, Parameter(group=MEMORY, help="Reuse the KV of prompts that start alike.")
    ] = True

    max_num_seqs: Annotated[
        MaybeCount,
        Parameter(
            group=SCHEDULING,
            help=f"Most sequences that run at once; {DEFAULT_MAX_NUM_SEQS} if unset.",
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        Size,
        Parameter(
            group=SCHEDULING,
            help=f"Most tokens computed in one step; {DEFAULT_MAX_NUM_BATCHED_TOKENS} if unset.",
        ),
    ] = None
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"],
        Parameter(group=SCHEDULING, help="First come first served, or by request priority."),
    ] = "fcfs"
    speculative_config: Annotated[
        str | None,
        Parameter(
            group=SCHEDULING,
            help=(
                'Draft tokens from what was said before; JSON, such as {"method": "ngram", '
                '"num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}.'
            ),
        ),
    ] = None
    max_num_queued_reqs: Annotated[
        MaybeCount,
        Parameter(
            group=SCHEDULING,
            help=f"Requests that may wait, {DEFAULT_MAX_NUM_QUEUED_REQS} if unset; more are refused.",
        ),
    ] = None
    max_num_queued_tokens: Annotated[
        Size,
        Parameter(
            group=SCHEDULING,
            help=f"Prompt tokens that may wait, {DEFAULT_MAX_NUM_QUEUED_TOKENS} if unset; more are refused.",
        ),
    ] = None

    chat_template: Annotated[
        Path | None,
        Parameter(group=API, help="Chat template (Jinja) to use in place of the model's."),
    ] = None
    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        Parameter(
            group=API,
            help="How the template gets contents: as text, or as lists of parts; auto reads it off the template.",
        ),
    ] = "auto"
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
    enable_auto_tool_choice: Annotated[
        bool, Parameter(group=API, help="Let the model choose whether to call a tool.")
    ] = True
    exclude_tools_when_tool_choice_none: Annotated[
        bool, Parameter(group=API, help='Hide the tools from the model when tool_choice is "none".')
    ] = False
    response_role: Annotated[
        str, Parameter(group=API, help="Role of the messages that are answered.")
    ] = "assistant"
    return_tokens_as_token_ids: Annotated[
        bool, Parameter(group=API, help="Write the tokens of log-probabilities as token_id:ID.")
    ] = False
    enable_prompt_tokens_details: Annotated[
        bool, Parameter(group=API, help="Say how many prompt tokens came from the prefix cache.")
    ] = True
    enable_force_include_usage: Annotated[
        bool, Parameter(group=API, help="End every stream with its usage, asked for or not.")
    ] = False
    max_n: Annotated[
        Count, Parameter(group=API, help="Most answers that one request may ask for.")
    ] = 128
    stream_interval_ms: Annotated[
        float | None,
        Parameter(
            group=API,
            help="Tokens of one stream that come within so many ms of its last event leave together, "
            f"{DEFAULT_STREAM_INTERVAL_MS:g} if unset; 0: every token by itself.",
        ),
    ] = None

    host: Annotated[str, Parameter(group=SERVER, help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        Count, Parameter(group=SERVER, help="Port of the HTTP server; 0 takes a free one.")
    ] = 8000
    http: Annotated[bool, Parameter(group=SERVER, help="Serve the HTTP APIs.")] = True
    grpc: Annotated[bool, Parameter(group=SERVER, help="Serve the gRPC protocol.")] = True
    grpc_port: Annotated[
        Count, Parameter(group=SERVER, help="Port of the gRPC server; 0 takes a free one.")
    ] = 50051
    grpc_reflection: Annotated[
        bool, Parameter(group=SERVER, help="Let clients list the services.")
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
            help="Key of /pause, /abort_requests and the like over HTTP; repeatable. Without, they are off.",
        ),
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        Parameter(
            group=SERVER,
            negative=(),
            help="Web origin whose pages may use the HTTP APIs, or *; repeatable.",
        ),
    ] = None
    ssl_certfile: Annotated[
        Path | None, Parameter(group=SERVER, help="Certificate chain (PEM); turns TLS on for HTTP.")
    ] = None
    ssl_keyfile: Annotated[
        Path | None, Parameter(group=SERVER, help="Private key of --ssl-certfile (PEM).")
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

    def engine_options(self, model: str) -> EngineOptions:
        """The part that concerns the engine."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        wanted = given.keys() & set(EngineOptions.__struct_fields__)
        return EngineOptions(model=model, **{name: given[name] for name in wanted})


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
@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """How to sample; what is not given is the model's own default."""

    max_tokens: Annotated[Size, Parameter(group=SAMPLING, help="Most tokens to generate.")] = None
    temperature: Annotated[
        float | None, Parameter(group=SAMPLING, help="0 takes the likeliest token each time.")
    ] = None
    top_p: Annotated[
        float | None, Parameter(group=SAMPLING, help="Sample from this share of probability.")
    ] = None
    top_k: Annotated[
        MaybeCount, Parameter(group=SAMPLING, help="Sample from this many tokens; 0: all.")
    ] = None
    min_p: Annotated[
        float | None,
        Parameter(group=SAMPLING, help="Drop tokens less likely than this share of the best."),
    ] = None
    seed: Annotated[MaybeCount, Parameter(group=SAMPLING, help="Same seed, same answer.")] = None
    stop: Annotated[
        list[str] | None,
        Parameter(group=SAMPLING, negative=(), help="End before this text; repeat for several."),
    ] = None


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
