"""`weft serve --engine vllm`: Weft's servers with vLLM's engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.cli.arguments.flags import pick
from weft.cli.options import ServeOptions
from weft.cli.serving.adapters import load_lora_modules, read_lora_modules
from weft.cli.serving.banner import Address, other_block, show_block
from weft.cli.serving.loading import (
    check_api_flags,
    make_served,
    read_template,
    rpc_address,
    to_api_options,
    to_rpc_options,
)
from weft.core.client import EngineClient
from weft.core.config.engine import EngineConfig
from weft.core.errors import ConfigError
from weft.core.observe.metrics import Metrics
from weft.core.observe.tracing import Tracer
from weft.core.values.kv_transfer import KvRole
from weft.core.values.types import LoRARequest
from weft.engine.transfer.settings import read_peers
from weft.model.open import find_tokenizer
from weft.model.tokenizers.templates import read_chat_template
from weft.model.tokenizers.tokenizer import read_tokenizer_files
from weft.rpc.options import RpcOptions
from weft.rpc.prefiller import RpcPrefiller
from weft.rpc.server import RpcServer, credentials
from weft.text.tokenizer import Tokenizer
from weft.vllm.convert.settings import FLAG, read_engine_args, to_settings
from weft.vllm.engine import VllmSeries, read_words
from weft.vllm.launch import Launched, launch
from weft.web.http.endpoint import Endpoint
from weft.web.http.options import HttpOptions
from weft.web.http.state import ServerState
from weft.web.options import ApiOptions
from weft.web.routes import all_endpoints
from weft.web.served import Served


@dataclass(frozen=True, slots=True)
class VllmLoaded:
    """vLLM's engine with a model, and the settings for serving it."""

    launched: Launched
    files: Mapping[str, bytes]
    tokenizer: Tokenizer
    api_options: ApiOptions
    rpc_options: RpcOptions
    chat_template: str | None
    lora_modules: tuple[LoRARequest, ...]
    peers: tuple[str, ...] | None  # engines that this one may fetch computed prompts from

    async def start_engine(self, metrics: Metrics) -> EngineClient:
        """Returns the client of vLLM's engine, with the adapters of --lora-modules loaded. From this call on, /metrics
        includes vLLM's own series.
        """
        client = await self.launched.connect(self.tokenizer)
        metrics.registry.register(VllmSeries())
        await load_lora_modules(client, self.lora_modules)
        return client

    def make_rpc_server(self, client: EngineClient, tracer: Tracer | None) -> RpcServer:
        """Returns a gRPC server for `client`. The server is not started."""
        prefiller = None
        if self.peers is not None:
            prefiller = RpcPrefiller(self.peers, self._block_size, is_foreign=True)
        return RpcServer(client, self.files, self.rpc_options, tracer, prefiller)

    def serve_over_http(
        self, client: EngineClient, state: ServerState
    ) -> tuple[Served, Sequence[Endpoint]]:
        """Returns the objects that the HTTP endpoints use, and the endpoints."""
        served = make_served(client, self.tokenizer, self.chat_template, self.api_options)
        if self.peers is not None:
            from weft.web.inference.prefiller import HttpPrefiller  # noqa: PLC0415 - an HTTP client

            prefiller = HttpPrefiller(self.peers, self._block_size, is_foreign=True)
            served = replace(served, prefiller=prefiller)
        return served, all_endpoints(state)

    @property
    def _block_size(self) -> int:
        return self.launched.config.cache_config.block_size

    def print_ready(self, *, http: Address | None, grpc_port: int | None, load_s: float) -> None:
        """Prints the ready banner."""
        block = other_block(
            self.launched.config.model_config,
            ("engine", f"vLLM {self.launched.version}, {_describe(self.launched.config)}"),
            http=http,
            grpc=None if grpc_port is None else rpc_address(self.rpc_options, grpc_port),
            has_keys=self.rpc_options.has_api_keys,
            done=f"loaded in {load_s:.1f} s",
        )
        show_block(block)


def load(model: str | None, options: ServeOptions) -> VllmLoaded:
    """Checks the options, reads the tokenizer and loads the weights into vLLM's engine, which may take minutes."""
    if model is None:
        raise ConfigError("--engine vllm needs a MODEL: a checkpoint's directory or a Hub id")
    if pick(options, HttpOptions).resume_secret_file is not None:
        raise ConfigError(
            "--resume-secret-file needs an engine of Weft: vLLM's cannot continue a stream"
        )
    rpc_options = to_rpc_options(options)
    credentials(rpc_options)  # an invalid file is reported before the model loads
    template = read_template(options.chat_template)
    check_api_flags(options)
    lora_modules = read_lora_modules(options.lora_modules or ())
    engine = options.engine_options(model)
    extra = read_engine_args(options.engine_args)
    if options.show_hidden_metrics_for_version is not None:
        extra["show_hidden_metrics_for_version"] = options.show_hidden_metrics_for_version
    if options.otlp_traces_endpoint is not None:
        extra["otlp_traces_endpoint"] = options.otlp_traces_endpoint
    words = read_words(options.vllm_words) if options.vllm_words else {}
    if twice := extra.keys() & words.keys():
        raise ConfigError(f"{FLAG} and the command line both set {min(twice)}")
    source = engine.tokenizer or model
    directory = find_tokenizer(source, revision=None if engine.tokenizer else engine.revision)
    files = read_tokenizer_files(directory)
    tokenizer = Tokenizer.from_files(files)
    template = read_chat_template(files, source) if template is None else template
    api_options = to_api_options(options, template)
    settings = to_settings(engine, extra | words, api_options.reasoning_parser)
    peers = _read_peers(settings.get("kv_transfer_config"))
    return VllmLoaded(
        launched=launch(settings, tokenizer),
        files=files,
        tokenizer=tokenizer,
        api_options=api_options,
        rpc_options=rpc_options,
        chat_template=template,
        lora_modules=lora_modules,
        peers=peers,
    )


def _read_peers(transfer: Any) -> tuple[str, ...] | None:
    """Returns the `peers` of --kv-transfer-config: the engines that this engine may fetch computed prompts from.
    `transfer` is JSON, or the value that vLLM's parser made. Returns None if this engine fetches nothing.
    """
    given = transfer if isinstance(transfer, dict) else vars(transfer) if transfer else {}
    if given.get("kv_role") not in (KvRole.CONSUMER, KvRole.BOTH):
        return None
    peers = (given.get("kv_connector_extra_config") or {}).get("peers")
    if peers is not None and not (
        isinstance(peers, list) and all(isinstance(one, str) for one in peers)
    ):
        raise ConfigError("--kv-transfer-config: peers must be a list of addresses or networks")
    return tuple(peer.network for peer in read_peers(peers))


def _describe(config: EngineConfig) -> str:
    cache, scheduler = config.cache_config, config.scheduler_config
    ranks = config.data_parallel_size
    return (
        f"{'' if ranks == 1 else f'{ranks} ranks, each with '}{cache.num_blocks:,} blocks of "
        f"{cache.block_size} tokens, {scheduler.max_num_seqs:,} sequences at once"
    )
