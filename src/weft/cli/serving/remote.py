"""`weft serve --remote`: serves the HTTP APIs for engines that other servers run."""

import asyncio
from collections.abc import Sequence

from weft.cli.arguments.flags import flag_names, pick
from weft.cli.options import ServeOptions
from weft.cli.serving.banner import Address, other_block, show_block
from weft.cli.serving.loading import check_api_flags, make_served, read_template, to_api_options
from weft.cli.serving.resuming import read_resume_secret, with_resuming
from weft.core.client import EngineClient
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.observe.metrics import Metrics
from weft.core.values.declare import refuse_unused
from weft.model.tokenizers.templates import read_chat_template
from weft.rpc.connection import Credentials
from weft.rpc.fleet import Fleet
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer
from weft.text.tokenizer import open_tokenizer
from weft.web.http.endpoint import Endpoint
from weft.web.http.options import HttpOptions
from weft.web.http.state import ServerState
from weft.web.routes import all_endpoints
from weft.web.served import Served

_SCHEMES = ("grpc://", "grpcs://")
_TIMEOUT_S = 10.0


class Remote:
    """The remote servers. Their model is known once `start_engine` has connected to them."""

    def __init__(self, options: ServeOptions, targets: Sequence[str]) -> None:
        self._options = options
        self._targets = targets
        self._template = read_template(options.chat_template)
        self._resume_secret = read_resume_secret(options)
        self._files: dict[str, bytes] = {}

    async def start_engine(self, metrics: Metrics) -> Fleet:
        """Connects to all remote servers, reads their configuration and returns their common client."""
        fleet = await Fleet.connect(
            self._targets,
            credentials=Credentials(
                api_key=self._options.remote_api_key,
                control_api_key=self._options.remote_control_api_key,
                tls_ca=self._options.remote_tls_ca,
            ),
            timeout_s=_TIMEOUT_S,
            metrics=metrics,
        )
        try:
            self._files = await fleet.get_tokenizer_files()
            self._tokenizer = await asyncio.to_thread(open_tokenizer, self._files, self._targets[0])
        except BaseException:
            fleet.shutdown()
            await fleet.wait_closed()
            raise
        self._fleet = fleet
        return fleet

    def make_rpc_server(self, client: object, tracer: object) -> RpcServer | None:
        """Returns None: gRPC clients can connect to the remote servers directly, or through a picker."""
        del client, tracer
        return None

    def serve_over_http(
        self, client: EngineClient, state: ServerState
    ) -> tuple[Served, Sequence[Endpoint]]:
        """Returns the objects that the HTTP endpoints use for the remote servers, and the endpoints."""
        template = self._template
        if template is None:
            template = read_chat_template(self._files, self._targets[0])
        options = to_api_options(self._options, template)
        endpoints = all_endpoints(state)
        if self._resume_secret is not None:
            endpoints = with_resuming(endpoints, state, self._resume_secret, self._fleet)
        return make_served(client, self._tokenizer, template, options), endpoints

    def print_ready(self, *, http: Address | None, grpc_port: int | None, load_s: float) -> None:
        """Prints the ready banner."""
        del grpc_port
        assert http is not None, "reach refuses --no-http"
        block = other_block(
            self._fleet.model_config,
            ("engines", ", ".join(self._targets)),
            http=http,
            has_keys=pick(self._options, HttpOptions).has_api_keys,
            done=f"reached in {load_s:.1f} s",
        )
        show_block(block)


def reach(model: str | None, options: ServeOptions) -> Remote:
    """Checks the options and returns the remote servers, without connecting to them."""
    refuse_engine_settings(model, options)
    if not options.http:
        raise ConfigError("--remote and --no-http together leave nothing to serve")
    check_api_flags(options)
    return Remote(options, to_targets(options))


def to_targets(options: ServeOptions) -> list[str]:
    """Returns the host:port of each remote server, in the given order."""
    given = [part.strip() for text in options.remote or () for part in text.split(",")]
    targets = []
    for text in given:
        scheme = next((scheme for scheme in _SCHEMES if text.startswith(scheme)), "")
        target = text.removeprefix(scheme).removesuffix("/")
        host, _, port = target.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in target:
            raise ConfigError(f"--remote {text!r}: must be grpc://HOST:PORT")
        if scheme == "grpcs://" and options.remote_tls_ca is None:
            raise ConfigError(f"--remote {text!r}: TLS needs --remote-tls-ca")
        if target in targets:
            raise ConfigError(f"--remote names {target} twice")
        targets.append(target)
    return targets


def refuse_engine_settings(model: str | None, options: ServeOptions) -> None:
    """Raises `ConfigError` for settings of an engine, which would have no effect: the remote servers have their own."""
    if model is not None:
        raise ConfigError(f"MODEL ({model}) and --remote exclude each other")
    names = flag_names(EngineOptions, RpcOptions)
    refuse_unused(options, ServeOptions(), names, "with --remote: set it where the engine runs")
