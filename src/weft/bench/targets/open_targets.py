"""Opens the benchmark target that the flags select: a server over HTTP or gRPC."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, fields
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from weft.bench.options import TargetOptions
from weft.bench.record import Prompt, Record, Target
from weft.bench.targets.engine_target import EngineTarget
from weft.bench.targets.http_target import ENDPOINTS, HttpTarget, first_model, open_wire
from weft.bench.targets.http_wire import HttpWire
from weft.bench.words import IdMaker, Maker, TextMaker, WordMaker, words
from weft.core.address import join_host_port
from weft.core.errors import ConfigError, Unavailable, WeftError
from weft.core.values.declare import refuse_unused
from weft.core.values.params import PARAMETERS
from weft.core.values.types import OutputKind, SamplingParams
from weft.model.hub.short_names import full_name
from weft.model.hub.snapshots import fetch
from weft.model.open import find_model, is_hub_id
from weft.model.tokenizers.tokenizer import read_tokenizer_files
from weft.rpc.client import RpcClient
from weft.rpc.connection import Credentials
from weft.text.tokenizer import Tokenizer

_GRPC_PORT = 50051
_CONNECT_TIMEOUT_S = 10.0
_RETRY_S = 0.25
_SAMPLING = tuple(
    field.name
    for field in fields(TargetOptions)
    if field.name in PARAMETERS and field.default is None
)
_OF_HTTP = ("endpoint", "served_model_name", "tokenizer", "header", "insecure", "extra_body")
_OF_GRPC = ("grpc_tls_ca",)
_CALIBRATION_WORDS = (50, 250)


@dataclass(frozen=True, slots=True)
class Opened:
    """A benchmark target, and the maker of its prompts."""

    target: Target
    maker: Maker


@asynccontextmanager
async def open_target(options: TargetOptions, *, ignore_eos: bool) -> AsyncIterator[Opened]:
    """Connects to the server, after waiting for it as long as the flags allow, and yields its target."""
    unused = _OF_HTTP if options.backend == "grpc" else _OF_GRPC
    refuse_unused(options, TargetOptions(), unused, f"with --backend {options.backend}")
    over = _over_grpc if options.backend == "grpc" else _over_http
    async with over(options, ignore_eos) as opened:
        yield opened


@asynccontextmanager
async def _over_grpc(options: TargetOptions, ignore_eos: bool) -> AsyncIterator[Opened]:
    place = join_host_port(options.host, options.port or _GRPC_PORT)
    place = place if options.base_url is None else options.base_url.removeprefix("grpc://")
    client = await RpcClient.connect(
        place,
        credentials=Credentials(api_key=options.api_key, tls_ca=options.grpc_tls_ca),
        timeout_s=max(options.ready_check_timeout_sec, _CONNECT_TIMEOUT_S),
    )
    try:
        model = client.model_config
        params = sampling_params(
            model.default_sampling_params, _sampling(options), ignore_eos=ignore_eos
        )
        name = options.model or model.served_model_name
        tokenizer = await _tokenizer_of(client)
        vocab_size = model.vocab_size if tokenizer is None else tokenizer.vocab_size
        maker = IdMaker(min(vocab_size, model.vocab_size), tokenizer)
        yield Opened(EngineTarget(client, name, params), maker)
    finally:
        await client.close()


async def _tokenizer_of(client: RpcClient) -> Tokenizer | None:
    try:
        return Tokenizer.from_files(await client.get_tokenizer_files())
    except WeftError:
        return None  # some servers have no tokenizer, and prompts of token ids need none


@asynccontextmanager
async def _over_http(options: TargetOptions, ignore_eos: bool) -> AsyncIterator[Opened]:
    path = options.endpoint or ENDPOINTS[options.backend]
    if not path.endswith("completions"):
        raise ConfigError(f"--endpoint {path}: must end in completions or chat/completions")
    tokenizer = None if options.tokenizer is None else read_tokenizer(options.tokenizer)
    with closing(open_wire(options)) as wire:
        await _wait_ready(wire, options.ready_check_timeout_sec)
        name = options.served_model_name or options.model or await first_model(wire)
        fields = {**_sampling(options), **_extra_body(options)}
        if ignore_eos:
            fields["ignore_eos"] = True
        target = HttpTarget(wire, path=path, model=name, fields=fields, tokenizer=tokenizer)
        maker = TextMaker(tokenizer) if tokenizer else WordMaker(await _tokens_per_word(target))
        yield Opened(target, maker)


async def _wait_ready(wire: HttpWire, timeout_s: float) -> None:
    """Repeats a request until the server answers, because not all servers have an endpoint for readiness."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        with suppress(Unavailable):
            async with wire.request("GET", "/v1/models") as response:
                if response.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    return
        await asyncio.sleep(_RETRY_S)


async def _tokens_per_word(target: HttpTarget) -> float:
    """Returns the number of tokens per word, from the server's token counts of a short and a longer prompt. Constant
    parts of a prompt cancel out in the difference.
    """
    rng = np.random.default_rng(0)
    counts = []
    for num_words in _CALIBRATION_WORDS:
        record = Record(arrived_at=time.perf_counter())
        record.start()
        await target.send(Prompt(words(num_words, rng), 1), record)
        counts.append(record.input_tokens)
    short, long = _CALIBRATION_WORDS
    return max((counts[1] - counts[0]) / (long - short), 0.1) if counts[1] else 1.0


def sampling_params(
    defaults: dict[str, float | int], given: dict[str, Any], *, ignore_eos: bool
) -> SamplingParams:
    known = {k: v for k, v in defaults.items() if k in SamplingParams.__struct_fields__}
    fixed = {"ignore_eos": ignore_eos, "detokenize": False, "output_kind": OutputKind.DELTA}
    return msgspec.convert({**known, **given, **fixed}, SamplingParams)


def _sampling(options: TargetOptions) -> dict[str, Any]:
    given = ((name, getattr(options, name)) for name in _SAMPLING)
    return {name: value for name, value in given if value is not None}


def _extra_body(options: TargetOptions) -> dict[str, Any]:
    if not isinstance(options.extra_body, str):
        return options.extra_body or {}
    try:
        return msgspec.json.decode(options.extra_body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"--extra-body: must be a JSON object ({error})") from error


def read_tokenizer(name: str) -> Tokenizer:
    """Reads the tokenizer of a directory, a built-in model or a Hub model, without weights."""
    directory = Path(name).expanduser()
    if not directory.is_dir():
        source = full_name(name)
        if not is_hub_id(source):
            return Tokenizer.from_files(find_model(name).with_tokenizer().tokenizer_files)
        directory = fetch(source, None, is_tokenizer=True)
    return Tokenizer.from_files(read_tokenizer_files(directory))
