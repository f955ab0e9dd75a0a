"""The largest bodies there may be, of every nasty kind, for every endpoint of the table."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
from prometheus_client import CollectorRegistry

from weft.web.http.body import MAX_PARTS, MAX_VALUES
from weft.web.http.endpoint import Access, Endpoint
from weft.web.http.options import HttpOptions
from weft.web.http.state import ServerState
from weft.web.routes import all_endpoints

MAX_BYTES = HttpOptions().max_body_bytes
_ROOM = MAX_BYTES - 4096  # for what stands around a value
_NAME = "an_unknown_field"

_MESSAGE = {"role": "user", "content": "a"}
_QUESTION = {"type": "predicate", "instructions": "a"}
_CHAT = {"messages": [_MESSAGE], "max_tokens": 2}
# Bodies that are served, or refused for what the model cannot do; attacks take a field's place in them.
BASES = MappingProxyType(
    {
        "/v1/chat/completions": _CHAT,
        "/v1/completions": {"prompt": "a", "max_tokens": 2},
        "/v1/chat/completions/render": _CHAT,
        "/v1/chat/completions/batch": {"messages": [[_MESSAGE]], "max_tokens": 2},
        "/v1/completions/render": {"prompt": "a", "max_tokens": 2},
        "/v1/messages": {"model": "m", **_CHAT},
        "/v1/messages/render": {"model": "m", **_CHAT},
        "/v1/messages/count_tokens": {"model": "m", "messages": [_MESSAGE]},
        "/api/chat": {"model": "m", "messages": [_MESSAGE], "options": {"num_predict": 2}},
        "/api/generate": {"model": "m", "prompt": "a", "options": {"num_predict": 2}},
        "/api/embed": {"model": "m", "input": "a"},
        "/api/embeddings": {"model": "m", "prompt": "a"},
        "/api/show": {"model": "m"},
        "/cohere/v2/chat": {"model": "m", **_CHAT},
        "/cohere/v2/chat/render": {"model": "m", **_CHAT},
        "/v2/chat": {"model": "m", **_CHAT},
        "/v2/embed": {"model": "m", "texts": ["a"]},
        "/v1/decisions": {"input": "a", "questions": [_QUESTION]},
        "/v1/systemone": {"state": "a", "questions": {"q": {"type": "noul"}}},
        "/generative_scoring": {"query": "a", "items": ["b"], "label_token_ids": [65]},
        "/v1/responses/input_tokens": {"input": "a"},
        "/v1/responses/compact": {"input": "a"},
        "/v1/batches": {
            "input_file_id": "file-a",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
        "/v1/messages/batches": {
            "requests": [{"custom_id": "a", "params": {"model": "m", **_CHAT}}]
        },
        "/v1/conversations": {"items": [_MESSAGE]},
        "/v1/conversations/{conversation_id}": {"metadata": {"a": "b"}},
        "/v1/conversations/{conversation_id}/items": {"items": [_MESSAGE]},
        "/v1/responses": {"input": "a", "max_output_tokens": 2, "store": False},
        "/v1/responses/render": {"input": "a", "store": False},
        "/inference/v1/generate": {"token_ids": [65], "sampling_params": {"max_tokens": 2}},
        "/generate": {"prompt": "a", "max_tokens": 2},
        "/invocations": {"prompt": "a", "max_tokens": 2},
        "/v1/embeddings": {"input": "a"},
        "/pooling": {"input": "a"},
        "/classify": {"input": "a"},
        "/score": {"text_1": "a", "text_2": "b"},
        "/v1/score": {"text_1": "a", "text_2": "b"},
        "/rerank": {"query": "a", "documents": ["b"]},
        "/v1/rerank": {"query": "a", "documents": ["b"]},
        "/v2/rerank": {"query": "a", "documents": ["b"]},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [65]},
        "/abort_requests": {"request_ids": ["a"]},
        "/inference/v1/abort_requests": {"request_ids": ["a"]},
        "/collective_rpc": {"method": "check_health"},
        "/init_weight_transfer_engine": {"init_info": {}},
        "/start_weight_update": {"is_checkpoint_format": True},
        "/update_weights": {"update_info": {}},
        "/scale_elastic_ep": {"new_data_parallel_size": 2},
        "/drain": {"data_parallel_ranks": [1]},
        "/undrain": {"data_parallel_ranks": [1]},
        "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "/nowhere"},
        "/v1/unload_lora_adapter": {"lora_name": "a"},
    }
)


@dataclass(frozen=True, slots=True)
class Attack:
    """One request. `value` makes the JSON text that takes the place of a field of the base."""

    path: str
    field: str
    kind: str

    def __str__(self) -> str:
        return f"{self.path} {self.field}={self.kind}"

    def body(self) -> bytes:
        """Its JSON."""
        rest = {name: value for name, value in BASES[self.path].items() if name != self.field}
        base = json.dumps(rest)[1:].encode()
        comma = b"," if rest else b""
        return b'{"' + self.field.encode() + b'":' + KINDS[self.kind]() + comma + base


def endpoints() -> tuple[Endpoint, ...]:
    """All that a server has."""
    return all_endpoints(ServerState(CollectorRegistry()))


def fields_by_path() -> dict[str, list[str]]:
    """Of every endpoint that takes a body."""
    found = {}
    for endpoint in endpoints():
        if (
            endpoint.body is not None
            and not endpoint.is_form
            and endpoint.access is not Access.OPEN
        ):
            kind = endpoint.body
            is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            names = [f.encode_name for f in msgspec.structs.fields(kind)] if is_struct else []
            found[endpoint.path] = [*names, _NAME]
    return found


def attacks() -> Iterator[Attack]:
    """Every kind in every field of every endpoint."""
    for path, names in fields_by_path().items():
        for name in names:
            for kind in KINDS:
                yield Attack(path, name, kind)


def _text(piece: bytes, num_chars: int | None = None, end: bytes = b"") -> Callable[[], bytes]:
    """A string of one piece again and again: `num_chars` times, or to the limit."""
    return lambda: b'"' + piece * (num_chars or _ROOM // len(piece)) + end + b'"'


def _list(piece: bytes, number: int) -> Callable[[], bytes]:
    """As many of it as there is room for."""
    return lambda: b"[" + b",".join([piece] * min(number, _ROOM // (len(piece) + 1))) + b"]"


def _keys() -> bytes:
    return b"{" + b",".join(b'"%d":1' % number for number in range(MAX_PARTS - 200)) + b"}"


def _nested(opening: bytes, depth: int, closing: bytes) -> Callable[[], bytes]:
    return lambda: opening * depth + b"1" + closing * depth


_VALUES = MAX_VALUES - 1000
_PARTS = MAX_PARTS - 200
_PLAIN = b'{"role":"user","content":"a"}'
_CALL = b'{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}'
KINDS: MappingProxyType[str, Callable[[], bytes]] = MappingProxyType(
    {
        "ids": _list(b"300", _VALUES),
        "ids_of_a_context": _list(b"300", 130_000),
        "long_ids": _list(b"2147483648", _VALUES),
        "floats": _list(b"0.0000001", _VALUES),
        "lists": _list(b"[1]", _PARTS),
        "lists_of_ids": _list(b"[" + b",".join([b"300"] * 8000) + b"]", 128),
        "many_lists_of_ids": _list(b"[" + b",".join([b"300"] * 500) + b"]", 2048),
        "objects": _list(b'{"text":"a"}', _PARTS // 2),
        "keys": _keys,
        "strings": _list(b'"ab"', _VALUES),
        "texts": _list(b'"' + b"some text " * 800 + b'"', 2048),
        "short_texts": _list(b'"' + b"text " * 700 + b'"', 2048),
        "texts_at_once": _list(b'"' + b"text " * 700 + b'"', 128),
        "text": _text(b"The quick brown fox. "),
        "text_of_a_context": _text(b"The quick brown fox. ", 6000),
        "text_to_encode": _text(b"The quick brown fox. ", 95_000),
        "letters": _text(b"a"),
        "spaces": _text(b" "),
        "newlines": _text(b"\\n"),
        "quotes": _text(b'\\"'),
        "escapes": _text(b"\\u4e2d"),
        "wide": _text("中".encode()),
        "emoji": _text("😀".encode()),
        "one_emoji": _text(b"a", _ROOM, "😀".encode()),
        "deep_lists": _nested(b"[", 900, b"]"),
        "deep_objects": _nested(b'{"a":', 900, b"}"),
        "deeper_lists": _nested(b"[", _PARTS, b"]"),
        "deeper_objects": _nested(b'{"a":', _PARTS // 2, b"}"),
        "long_number": lambda: b"1" * _ROOM,
        "long_fraction": lambda: b"0." + b"1" * _ROOM,
        "blank": lambda: b" " * _ROOM + b"1",
        "messages": _list(_PLAIN, _PARTS // 3),
        "long_messages": _list(_PLAIN.replace(b"a", b"text " * 200, 1), _PARTS // 3),
        "parts": _list(
            b'{"role":"user","content":['
            + b",".join([b'{"type":"text","text":"a"}'] * 100)
            + b"]}",
            _PARTS // 306,
        ),
        "calls": _list(
            b'{"role":"assistant","content":"","tool_calls":[' + _CALL + b"]}", _PARTS // 11
        ),
        "tools": _list(
            b'{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}',
            _PARTS // 7,
        ),
        "too_many_lists": _list(b"[1]", MAX_BYTES),
        "too_many_ids": _list(b"300", MAX_BYTES),
        "too_many_strings": _list(b'""', MAX_BYTES),
    }
)
