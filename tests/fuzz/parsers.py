"""Every parser of bytes that come from outside, with sound input and the errors that it may raise."""

import asyncio
import base64
import io
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import torch
from mcp_types import CallToolResult, ListToolsResult
from msgspec import structs
from PIL import Image
from pydantic import ValidationError
from safetensors.numpy import save

from tests.contract.engines import resolved
from tests.doubles.fake_engine import make_config
from tests.doubles.videos import video
from tests.epp.server.messages import ALL_PARSERS, CHAT, Stream, request_headers
from tests.model.checkpoints import write_checkpoint
from tests.model.gguf.files import write_gguf
from weft.core.checks.validate import Limits
from weft.core.errors import WeftError
from weft.core.values.media import Media, MediaConfig, MediaItem
from weft.engine.ipc import handshake
from weft.engine.ipc.channel import Channel
from weft.engine.ipc.messages import Abort, Ping, Stop
from weft.engine.nodes import link
from weft.engine.transfer import wire
from weft.engine.transfer.tcp import TcpPeer
from weft.epp.pool.exposition import SeriesReader, read_page
from weft.epp.prefix.events import Malformed, Stored, decode_batch
from weft.epp.request.parsers.parser import Call
from weft.epp.request.parsers.table import ParserTable
from weft.epp.request.readers import open_reader
from weft.epp.request.reading import read
from weft.epp.request.values import Refused
from weft.epp.server.streams.stream import ProtocolError
from weft.media.pictures import check_pictures, decode_picture
from weft.media.sounds.recordings import decode_sound
from weft.media.videos import decode_frames, read_facts
from weft.model.files.safetensors_files import read_header as read_safetensors
from weft.model.gguf.header import read_header as read_gguf
from weft.model.tokenizers.tokenizer import read_tokenizer
from weft.pb import vllm_engine_pb2 as pb
from weft.pb import vllm_inference_pb2 as inference_pb
from weft.pb.ext_proc_pb2 import ProcessingRequest
from weft.rpc.convert.inference_request import to_inference
from weft.rpc.convert.request import to_generation
from weft.text.prompt_embeds import read_base64
from weft.web.http.form import decode_form
from weft.web.mcp.client import _listed, _to_result


@dataclass(frozen=True, slots=True)
class Parser:
    """`read` takes bytes, and may raise what `refusals` name: those reach whoever sent them as a sentence."""

    seeds: tuple[bytes, ...]
    read: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...] = field(default=(WeftError,))


def parsers(directory: Path) -> MappingProxyType[str, Parser]:
    """By name; files are written to the directory."""
    return MappingProxyType(
        {**_of_models(directory), **_of_picker(), **_of_peers(), **_of_callers()}
    )


# -- files of models ----------------------------------------------------------------------------


def _of_models(directory: Path) -> dict[str, Parser]:
    checkpoint = write_checkpoint(directory / "model")
    gguf = write_gguf(directory / "model.gguf", checkpoint, lambda _name: "F32").read_bytes()
    tensors = (checkpoint / "model.safetensors").read_bytes()
    tokenizer = (checkpoint / "tokenizer.json").read_bytes()
    config = (checkpoint / "tokenizer_config.json").read_bytes()
    small = save({"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.int8)})
    damaged = directory / "damaged"

    def read_file(read: Callable[[Path], object], data: bytes) -> None:
        damaged.write_bytes(data)
        read(damaged)

    def read_texts(name: str, data: bytes) -> None:
        files = {"tokenizer.json": tokenizer, "tokenizer_config.json": config, name: data}
        read_tokenizer(files, "model", 4096)

    return {
        "gguf": Parser((gguf,), partial(read_file, read_gguf)),
        "safetensors": Parser((tensors, small), partial(read_file, read_safetensors)),
        "tokenizer": Parser((tokenizer,), partial(read_texts, "tokenizer.json")),
        "tokenizer_config": Parser((config,), partial(read_texts, "tokenizer_config.json")),
    }


# -- what reaches a picker ----------------------------------------------------------------------

_PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages",
    "/inference/v1/generate", "/generate",
)  # fmt: skip
_BODIES = (
    CHAT,
    b'{"model":"m","prompt":["a","b"],"max_tokens":3,"stream":true,"cache_salt":"s"}',
    b'{"model":"m","prompt":[[1,2],[3]],"input":["a"],"items":[{"role":"user","content":"a"}]}',
    (
        b'{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{}}],'
        b'"tool_calls":[{"id":"1"}]}],"system":[{"type":"text","text":"s"}],"tools":[{}]}'
    ),
    b'{"token_ids":[1,2,3],"sampling_params":{"max_tokens":1},"features":{"mm_hashes":{"image":["a",null]}}}',
    b'{"input_ids":[1,2],"extra_key":["a"],"sampling_params":[{"max_new_tokens":1}],"image_data":"a"}',
)
_ANSWERS = (
    b'{"id":"a","usage":{"prompt_tokens":3,"completion_tokens":"4","prompt_tokens_details":{"cached_tokens":1}}}',
    b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\ndata: [DONE]\n\n',
    b'[{"meta_info":{"prompt_tokens":1,"cached_tokens":0}}]',
)
_PAGE = (
    b'# HELP a b\n# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name="m"} 1.0\n'
    b'vllm:kv_cache_usage_perc{model_name="a\\"b"} NaN 123\n'
)


def _of_picker() -> dict[str, Parser]:
    table = ParserTable(ALL_PARSERS)
    stored = [
        "BlockStored",
        [1, b"h" * 32],
        None,
        [1, 2, 3, 4],
        2,
        None,
        "GPU",
        None,
        [[["i", 0]], None],
    ]
    removed = {"type": "BlockRemoved", "block_hashes": [7], "medium": "CPU"}
    batches = (
        msgspec.msgpack.encode([1.5, [stored, ["AllBlocksCleared"]], 0]),
        msgspec.msgpack.encode({"ts": 1.5, "events": [removed]}),
    )
    generate = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=range(70)))
    frame = (
        b"\0" + len(generate.SerializeToString()).to_bytes(4, "big") + generate.SerializeToString()
    )

    def read_body(data: bytes) -> None:
        for path in _PATHS:
            _read_here(table, path, data, is_grpc=False)

    def read_frame(data: bytes) -> None:
        for path in (
            "/vllm.grpc.engine.VllmEngine/Generate",
            "/a.PredictionService/ChatCompletions",
        ):
            _read_here(table, path, data, is_grpc=True)

    head = request_headers(subset=["10.0.0.1:1"]).SerializeToString()
    return {
        "picker body": Parser(_BODIES, read_body, ()),
        "picker frame": Parser((frame,), read_frame, ()),
        "ext_proc": Parser((head,), _show_stream, (ProtocolError, Refused)),
        "usage": Parser(_ANSWERS, _follow, ()),
        "kv events": Parser(batches, _take_events, (Malformed,)),
        "metrics page": Parser((_PAGE,), _read_page, (ValueError,)),
    }


def _read_here(table: ParserTable, path: str, data: bytes, *, is_grpc: bool) -> None:
    parser = table.find(path)
    assert parser is not None
    call = Call(path=path, headers={}, request_id="r", is_grpc=is_grpc, body=data, is_on_loop=True)
    try:
        read(parser, call)
    except Refused as refused:
        assert refused.status in {400, 413, 415}  # noqa: PT017 - any of them


def _show_stream(data: bytes) -> None:
    async def show() -> None:
        stream = Stream()
        message = ProcessingRequest.FromString(data)
        for _ in await stream.exchange.receive(message):
            pass

    try:
        asyncio.run(show())
    except Exception as error:
        if type(error).__name__ != "DecodeError":  # gRPC refuses what is no message
            raise


def _follow(data: bytes) -> None:
    table = ParserTable(ALL_PARSERS)
    for path in (
        *_PATHS,
        "/vllm.grpc.engine.VllmEngine/Generate",
        "/a.PredictionService/RawPredict",
    ):
        parser = table.find(path)
        assert parser is not None
        for kind in ("application/json", "text/event-stream"):
            reader = open_reader(parser.dialect, path, kind, "gzip")
            reader.feed(data[:7])
            reader.feed(data[7:])
            reader.usage()


def _take_events(data: bytes) -> None:
    for engine in ("vllm", "sglang"):
        for event in decode_batch(data, engine):
            if isinstance(event, Stored):
                for extra in event.extras:
                    assert all(isinstance(key, str | int | None) for key in extra or ()), extra


def _read_page(data: bytes) -> None:
    names = ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    asyncio.run(read_page(SeriesReader(names), data))


# -- what reaches an engine from others -----------------------------------------------------------

_IDENTITY = wire.Identity(version="1", model="m", kv_layout="l", block_size=4, block_bytes=64)
_SECRET = b"s" * 32


def _of_peers() -> dict[str, Parser]:
    wanted = (
        wire.Read("r", [1, 2], [b"h" * 32, b"i" * 32]), wire.Release("r"), wire.GiveBack("r"),
    )  # fmt: skip
    hello = wire.Peer.magic + b"n" * handshake.NONCE_BYTES
    refused = (handshake.PeerError, OSError)
    _, config = resolved()
    joining = link.Join(config, "t")
    commands = (Abort(["r"]), Stop(1.0), Ping(1))
    return {
        "transfer hello": Parser((hello + b"p" * 32,), _welcome, refused),
        "transfer wanted": Parser(
            tuple(map(_framed, wanted)), partial(_receive, TcpPeer, wire.WANTED), refused
        ),
        "transfer introduction": Parser(
            (_framed((_IDENTITY, "e")),), partial(_receive, TcpPeer, wire._INTRODUCTION), refused
        ),
        "node join": Parser(
            (_framed(joining),), partial(_receive, link.LinkSocket, link._JOIN), refused
        ),
        "node commands": Parser(
            tuple(map(_framed, commands)),
            _take_commands,
            (msgspec.DecodeError, ValueError, OSError),
        ),
    }


def _framed(message: object) -> bytes:
    body = msgspec.msgpack.encode(message)
    return handshake.length_of(len(body)) + body


@contextmanager
def _sent(data: bytes) -> Iterator[socket.socket]:
    """The end of a connection over which so much came, and no more will."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as theirs:
        ours, _ = listener.accept()
        with ours:
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
            yield ours


def _welcome(data: bytes) -> None:
    with _sent(data) as connection, TcpPeer(connection) as peer:
        peer.welcome(_SECRET, _IDENTITY, "e")


def _receive(kind: Any, decoder: Any, data: bytes) -> None:
    with _sent(data) as connection, kind(connection) as peer:
        while True:
            peer.receive(decoder)


def _take_commands(data: bytes) -> None:
    async def take() -> None:
        with _sent(data) as connection:
            channel = await Channel.open(connection.dup(), link.FromHead)
            try:
                async for _ in channel.messages():
                    pass
            finally:
                channel.close()

    asyncio.run(take())


# -- what callers send ----------------------------------------------------------------------------

_LIMITS = Limits(vocab_size=300, max_model_len=256, max_pool_tokens=1024, prompt_embeds_size=4)
_TOOLS = b'{"tools":[{"name":"a","description":"d","inputSchema":{"type":"object"},"annotations":{"title":"t"}}]}'
_RESULT = (
    b'{"content":[{"type":"text","text":"a"},{"type":"image","data":"aa==","mimeType":"image/png"},'
    b'{"type":"resource","resource":{"uri":"a://b","text":"t"}}],"structuredContent":{"a":1},"isError":false}'
)
_FORM = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--b--\r\n'


class _Form(msgspec.Struct):
    file: bytes = b""
    model: str = ""


def _of_callers() -> dict[str, Parser]:
    full = pb.GenerateRequest(
        text="a", request_id="r", sampling_params=pb.SamplingParams(n=2, max_tokens=3, stop=["x"])
    )
    return {
        "images": Parser(_pictures(), _check_image),
        "videos": Parser((video(4), video(4, codec="libvpx-vp9", form="webm")), _check_video),
        "recordings": Parser(_recordings(), decode_sound),
        "grpc generate": Parser((full.SerializeToString(),), _to_generation),
        "grpc inference": Parser(_inferences(), _to_inference),
        "form": Parser((_FORM,), _read_form),
        "prompt embeds": Parser(_embeds(), _read_embeds),
        "mcp tools": Parser((_TOOLS,), _list_tools, (ValidationError,)),
        "mcp result": Parser((_RESULT,), _take_result, (ValidationError,)),
    }


def _pictures() -> tuple[bytes, ...]:
    made = []
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP"):
        target = io.BytesIO()
        Image.new("RGB", (9, 5), (1, 2, 3)).save(target, kind)
        made.append(target.getvalue())
    return tuple(made)


def _check_image(data: bytes) -> None:
    check_pictures(Media(items=[MediaItem(modality="image", data=data)]), 10_000)
    decode_picture(data)


def _check_video(data: bytes) -> None:
    num_frames = read_facts(data).num_frames
    for _ in decode_frames(data, [0, num_frames - 1]):
        pass


def _recordings() -> tuple[bytes, ...]:
    """WAV files of several kinds of samples, and one of each format that soundfile decodes."""
    wave = np.sin(np.arange(400, dtype=np.float32))
    made = [
        _wav(bits, kind) for bits, kind in ((8, 1), (16, 1), (24, 1), (32, 1), (32, 3), (64, 3))
    ]
    if find_spec("soundfile") is not None:
        library: Any = import_module("soundfile")
        for kind in ("FLAC", "OGG", "MP3"):
            target = io.BytesIO()
            library.write(target, wave, 16_000, format=kind)
            made.append(target.getvalue())
    return tuple(made)


def _wav(bits: int, kind: int) -> bytes:
    frame = 2 * bits // 8
    form = struct.pack("<HHIIHH", kind, 2, 8_000, 8_000 * frame, frame, bits)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form
    chunks += b"data" + struct.pack("<I", 40 * frame) + bytes(40 * frame)
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


def _to_generation(data: bytes) -> None:
    try:
        message = pb.GenerateRequest.FromString(data)
    except Exception:  # noqa: BLE001 - gRPC refuses what is no message
        return
    to_generation(message, _LIMITS).prompt()


def _inferences() -> tuple[bytes, ...]:
    message = inference_pb.GenerateRequest(
        token_ids={"ids": [1, 2]},
        sampling={"top_k": 3, "seed": 4},
        decoding={"logit_bias": {5: 1.0}, "bad_words_token_ids": [{"ids": [6, 7]}], "json": "{}"},
        stopping={"max_new_tokens": 3, "stop_strings": ["x"], "thinking_token_budget": 4},
        response={"output_logprobs": True, "output_candidates": {"token_ids": {"ids": [8]}}},
        kv={"cache_salt": "s", "kv_transfer_params": {"remote_port": "1", "a": [[1.5, None]]}},
        media=[{"modality": 1, "raw_bytes": b"png", "mime_type": "image/png", "uuid": "u"}],
        engine_reasoning_gate={"reasoning_ended": True},
    )
    return (message.SerializeToString(),)


def _to_inference(data: bytes) -> None:
    try:
        message = inference_pb.GenerateRequest.FromString(data)
    except Exception:  # noqa: BLE001 - gRPC refuses what is no message
        return
    model = structs.replace(make_config().model_config, media=MediaConfig(max_items={"image": 1}))
    to_inference(message, _LIMITS, model, is_streaming=True).prompt()


def _read_form(data: bytes) -> None:
    try:
        asyncio.run(decode_form(data, "multipart/form-data; boundary=b", _Form))
    except Exception as error:
        if type(error).__name__ != "HttpError":
            raise


def _embeds() -> tuple[bytes, ...]:
    target = io.BytesIO()
    torch.save(torch.zeros(2, 4), target)
    return target.getvalue(), save({"a": np.zeros((2, 4), np.float32)})


def _read_embeds(data: bytes) -> None:
    read_base64(base64.b64encode(data).decode(), _LIMITS)


def _list_tools(data: bytes) -> None:
    for tool in ListToolsResult.model_validate_json(data).tools:
        _listed(tool)


def _take_result(data: bytes) -> None:
    _to_result(CallToolResult.model_validate_json(data), 1000)
