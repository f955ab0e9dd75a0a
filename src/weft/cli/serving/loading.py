"""Second part of a start: imports the servers' modules while the engine reads the weights."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from weft.cli.arguments.flags import pick
from weft.cli.options import ServeOptions
from weft.cli.serving.adapters import load_lora_modules, read_lora_modules
from weft.cli.serving.banner import Address, Ready, ready_block, show_block
from weft.cli.serving.cautions import cautions
from weft.cli.serving.resuming import read_resume_secret, with_resuming
from weft.compute.backends import backend_of
from weft.compute.native import trim_heap
from weft.core.address import join_host_port
from weft.core.client import EngineClient
from weft.core.config.ranks import is_head
from weft.core.errors import ConfigError
from weft.core.observe.metrics import Metrics
from weft.core.observe.tracing import Tracer
from weft.core.values.types import LoRARequest
from weft.engine.clients.child import EngineChild
from weft.engine.clients.data_parallel import DataParallelClient
from weft.engine.clients.process_client import OnLoading, ProcessClient
from weft.engine.start.fit import Fitted
from weft.rpc.fingerprint import Fingerprints
from weft.rpc.options import RpcOptions
from weft.rpc.prefiller import RpcPrefiller
from weft.rpc.server import RpcServer, credentials
from weft.text.parsers.table import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    choose_reasoning_parser,
    choose_tool_parser,
    make_output_parser,
)
from weft.text.templates.chat import (
    RESERVED_NAMES,
    ChatTemplate,
    RequestTemplates,
    TemplateOptions,
)
from weft.text.templates.render_processes import RenderLimits
from weft.text.tokenizer import Tokenizer
from weft.web.http.endpoint import Endpoint
from weft.web.http.options import HttpOptions
from weft.web.http.state import ServerState
from weft.web.mcp.servers import ToolServers, read_servers
from weft.web.options import ApiOptions
from weft.web.routes import all_endpoints
from weft.web.served import Served

# Characters that file names do not contain: such a value is a template.
_MARKS_OF_TEMPLATES = ("{{", "{%", "\n")
_WANTS_PARTS = {"auto": None, "string": False, "openai": True}


@dataclass(slots=True)
class Loaded:
    """A model with all settings for serving it."""

    found: Fitted
    api_options: ApiOptions
    rpc_options: RpcOptions
    chat_template: str | None
    parsers: str  # description of the chosen parsers
    lora_modules: tuple[LoRARequest, ...] = ()
    num_api_servers: int = 1
    resume_secret: bytes | None = None
    # Of the gRPC server, so that the HTTP server does not read the weight files once more.
    _fingerprints: Fingerprints | None = field(default=None, init=False)

    async def start_engine(
        self,
        metrics: Metrics,
        child: EngineChild | None = None,
        on_loading: OnLoading = lambda num_bytes, all_bytes: None,
    ) -> EngineClient:
        """Starts the processes that load the weights, and loads the adapters of --lora-modules. Returns the client of
        the engines.

        `child` is the process of the first engine if that process was launched earlier.
        """
        found = self.found
        given = (found.checkpoint, found.config, metrics, child, on_loading)
        client: EngineClient
        if is_head(found.config):
            from weft.engine.nodes.head import start_head  # noqa: PLC0415 - of heads alone

            client = await start_head(*given)
        else:
            kind = DataParallelClient if found.config.has_group else ProcessClient
            client = await kind.start(*given)
        trim_heap()  # reading a tokenizer of 150,000 tokens takes 80 MB for a moment
        await load_lora_modules(client, self.lora_modules)
        return client

    def make_rpc_server(self, client: EngineClient, tracer: Tracer | None) -> RpcServer:
        """Returns a gRPC server for `client`. The server is not started."""
        transfer, prefiller = self.found.config.kv_transfer_config, None
        if transfer is not None and transfer.role.fetches:
            prefiller = RpcPrefiller(transfer.networks, self.found.config.cache_config.block_size)
        files = self.found.checkpoint.tokenizer_files
        server = RpcServer(client, files, self.rpc_options, tracer, prefiller)
        self._fingerprints = server.service.fingerprints
        return server

    def serve_over_http(
        self, client: EngineClient, state: ServerState
    ) -> tuple[Served, Sequence[Endpoint]]:
        """Returns the objects that HTTP endpoints use, and the endpoints."""
        endpoints = all_endpoints(state)
        if self.resume_secret is not None:
            prints = self._fingerprints
            if prints is None:
                files = self.found.checkpoint.tokenizer_files
                prints = Fingerprints(client, files, self.rpc_options.reasoning_parser)
            state.chores.append(lambda _: prints.keep())
            endpoints = with_resuming(endpoints, state, self.resume_secret, prints)
        return self.served(client), endpoints

    def served(self, client: EngineClient) -> Served:
        """Returns the objects that HTTP endpoints use."""
        tokenizer = client.renderer
        assert isinstance(tokenizer, Tokenizer), "an engine of ours has one of ours"
        served = make_served(client, tokenizer, self.chat_template, self.api_options)
        served = replace(served, stores_responses=self.num_api_servers == 1)
        transfer = self.found.config.kv_transfer_config
        if transfer is not None and transfer.role.fetches:
            from weft.web.inference.prefiller import HttpPrefiller  # noqa: PLC0415 - an HTTP client

            block_size = self.found.config.cache_config.block_size
            served = replace(served, prefiller=HttpPrefiller(transfer.networks, block_size))
        return served

    def print_ready(self, *, http: Address | None, grpc_port: int | None, load_s: float) -> None:
        """Prints the ready block."""
        found = self.found
        compute = found.config.compute_config
        assert compute is not None
        ready = Ready(
            card=found.checkpoint.card,
            config=found.config,
            computed=backend_of(found.config).describe(found.checkpoint.card, compute),
            free_bytes=found.free_bytes,
            http=http,
            grpc=None if grpc_port is None else rpc_address(self.rpc_options, grpc_port),
            has_keys=self.rpc_options.has_api_keys,
            load_s=load_s,
            num_api_servers=self.num_api_servers,
            parsers=self.parsers if found.config.pooler_config is None else None,
            has_template=self.chat_template is not None,
            cautions=tuple(cautions(found)),
        )
        show_block(ready_block(ready))


def rpc_address(options: RpcOptions, port: int) -> Address:
    """Returns the address of the gRPC server for the banner."""
    return Address(
        host_port=join_host_port(options.host, port), has_tls=options.tls_cert is not None
    )


def load(found: Fitted, options: ServeOptions) -> Loaded:
    """Reads the tokenizer and checks the settings for serving.

    Raises `ConfigError` with the reason if the tokenizer or the options are invalid.
    """
    rpc_options = to_rpc_options(options)
    # Read here first, so that an invalid file is reported before the model loads.
    credentials(rpc_options)
    template = read_template(options.chat_template)
    check_api_flags(options)
    lora_modules = read_lora_modules(options.lora_modules or ())
    found = found.with_tokenizer()
    template = found.checkpoint.chat_template if template is None else template
    api_options = to_api_options(options, template)
    return Loaded(
        found=found,
        api_options=api_options,
        rpc_options=rpc_options,
        chat_template=template,
        parsers=_describe_parsers(options, api_options),
        lora_modules=lora_modules,
        num_api_servers=options.api_server_count,
        resume_secret=read_resume_secret(options),
    )


def _describe_parsers(options: ServeOptions, chosen: ApiOptions) -> str:
    given = pick(options, ApiOptions)

    def one(name: str | None, wanted: str | None) -> str:
        return f"{name or 'none'} ({'by the chat template' if wanted == 'auto' else 'as given'})"

    tools = one(chosen.tool_call_parser, given.tool_call_parser)
    return f"tool calls {tools}, reasoning {one(chosen.reasoning_parser, given.reasoning_parser)}"


def make_served(
    client: EngineClient, tokenizer: Tokenizer, chat_template: str | None, options: ApiOptions
) -> Served:
    """Returns the objects that the HTTP endpoints use, for the client of any kind of engine."""
    how = TemplateOptions(
        default_kwargs=read_template_kwargs(options.default_chat_template_kwargs),
        wants_parts=_WANTS_PARTS[options.chat_template_content_format],
        tool_parser=options.tool_call_parser,
        limits=RenderLimits.for_texts(client.info.limits.max_text_chars),
    )
    tokens = tokenizer.special_tokens
    template = None if chat_template is None else ChatTemplate(chat_template, tokens, how)
    trusts_requests = options.trust_request_chat_template
    tool_servers = read_servers(options)
    return Served(
        client=client,
        tokenizer=tokenizer,
        chat_template=template,
        started_at=int(time.time()),
        request_templates=RequestTemplates(tokens, how) if trusts_requests else None,
        tool_servers=None if tool_servers is None else ToolServers(tool_servers),
        options=options,
    )


def to_api_options(options: ServeOptions, chat_template: str | None) -> ApiOptions:
    """Returns the options of the APIs. A parser that is "auto" is chosen by the chat template."""
    source = chat_template or ""
    given = pick(options, ApiOptions)
    name = given.tool_call_parser
    tool = choose_tool_parser(source) if name == "auto" else _named(name)
    name = given.reasoning_parser
    reasoning = choose_reasoning_parser(source) if name == "auto" else _named(name)
    # Raises an error if the two parsers do not go together.
    make_output_parser(reasoning=reasoning, tool=tool)
    return pick(options, ApiOptions, tool_call_parser=tool, reasoning_parser=reasoning)


def to_rpc_options(options: ServeOptions) -> RpcOptions:
    """Returns the options of the gRPC server."""
    http, api = pick(options, HttpOptions), pick(options, ApiOptions)
    reasoning = api.reasoning_parser
    return pick(
        options,
        RpcOptions,
        host=http.host,
        api_keys=http.api_keys,
        api_key_file=http.api_key_file,
        salt_by_key=http.salt_by_key,
        hide_cached_tokens=http.hide_cached_tokens,
        control_api_keys=http.control_api_keys,
        # Gateways render prompts themselves, so a parser that "auto" chose by the template may not fit.
        reasoning_parser=None if reasoning in ("auto", "none") else reasoning,
        allow_runtime_lora_updating=api.allow_runtime_lora_updating,
    )


def check_api_flags(options: ServeOptions) -> None:
    """Raises `ConfigError` for an unknown parser or invalid template arguments; called before the model is read."""
    api = pick(options, ApiOptions)
    read_template_kwargs(api.default_chat_template_kwargs)
    for flag, name, known in (
        ("--tool-call-parser", api.tool_call_parser, TOOL_PARSERS.keys()),
        ("--reasoning-parser", api.reasoning_parser, REASONING_PARSERS.keys()),
    ):
        if name not in ("auto", "none") and name not in known:
            raise ConfigError(
                f"{flag} {name!r} is unknown; must be auto, none, {', '.join(sorted(known))}"
            )


def _named(name: str | None) -> str | None:
    return None if name == "none" else name


def read_template(given: str | None) -> str | None:
    """Returns the chat template of --chat-template, which is a file's path or the template itself. Raises `ConfigError`
    for an invalid template.
    """
    if given is None:
        return None
    if any(mark in given for mark in _MARKS_OF_TEMPLATES):
        _check_template(given, "--chat-template")
        return given
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--chat-template: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--chat-template {path}: not UTF-8 text") from error
    _check_template(text, f"--chat-template {path}")
    return text


def read_template_kwargs(text: str | None) -> dict[str, Any]:
    """Returns the object of --default-chat-template-kwargs. Raises `ConfigError` for any other value."""
    if text is None:
        return {}
    flag = "--default-chat-template-kwargs"
    try:
        kwargs = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f'{flag} {text!r} must be a JSON object such as {{"enable_thinking": false}}: {error}'
        ) from error
    for name in kwargs.keys() & RESERVED_NAMES:
        raise ConfigError(f"{flag} must not contain {name!r}: requests set this value")
    return kwargs


def _check_template(text: str, where: str) -> None:
    try:
        ChatTemplate(text, {})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
