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
from weft.engine.configure import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_QUEUED_REQS,
    DEFAULT_MAX_NUM_QUEUED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
)

MODEL = Group("Model", sort_key=1)
MEMORY = Group("Memory", sort_key=2)
SCHEDULING = Group("Scheduling", sort_key=3)
SERVER = Group("Server", sort_key=4)
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
    quantization: Annotated[
        Literal["int8"] | None,
        Parameter(
            group=MODEL,
            help="Round linear layers, weights and inputs, to this type: half the memory, near the answers.",
        ),
    ] = None
    runner: Annotated[
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
    max_logprobs: Annotated[
        Count,
        Parameter(group=MODEL, help="Most log-probabilities a request may ask for; -1: no limit."),
    ] = 20
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

    host: Annotated[str, Parameter(group=SERVER, help="Address to listen on.")] = "127.0.0.1"
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
    grpc_tls_cert: Annotated[
        Path | None, Parameter(group=SERVER, help="Certificate chain (PEM); turns TLS on.")
    ] = None
    grpc_tls_key: Annotated[
        Path | None, Parameter(group=SERVER, help="Private key of --grpc-tls-cert (PEM).")
    ] = None
    grpc_tls_client_ca: Annotated[
        Path | None,
        Parameter(group=SERVER, help="Clients must show a certificate signed by this one (PEM)."),
    ] = None
    shutdown_timeout: Annotated[
        float, Parameter(group=SERVER, help="Seconds that open requests get on SIGTERM.")
    ] = 30.0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Parameter(group=SERVER, help="Least serious events to log."),
    ] = "info"
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
