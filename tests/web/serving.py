"""A small engine and what the endpoints need around it, for the tests of the HTTP APIs."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from weft.compute.backends import load_model
from weft.core.config.engine_options import EngineOptions
from weft.engine.clients.local_client import LocalClient
from weft.engine.start.configure import resolve
from weft.model.open import open_model
from weft.text.templates.chat import ChatTemplate, RequestTemplates
from weft.text.tokenizer import Tokenizer
from weft.web.admin.probes import probe_endpoints
from weft.web.http.endpoint import Call, Endpoint
from weft.web.http.options import HttpOptions
from weft.web.http.server import HttpServer
from weft.web.http.state import ServerState
from weft.web.options import ApiOptions
from weft.web.routes import all_endpoints
from weft.web.served import Served
from weft.web.store.database import Store
from weft.web.store.store_options import StoreOptions
from weft.web.store.store_series import StoreSeries

RANDOM = (
    "embedded:random?layers=1&hidden=32&heads=2&kv_heads=1&head_dim=16&intermediate=64&vocab=400"
)
ECHO = "embedded:echo"
TINY = "embedded:tiny"
SCRIPT = "{{ messages[0]['content'] }}"
QWEN = ApiOptions(reasoning_parser="qwen3", tool_call_parser="hermes")
GIB = 1 << 30


def call_of(
    endpoints: Mapping[Any, Endpoint],
    served: Served,
    key: Any,
    body: dict | None,
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> Call:
    """The call that a server would make of a body, for the endpoint of that key, its path."""
    raw = json.dumps(body).encode()
    made = {"request_id": "r1", "label": "r1", "path_parameters": {}, "query": {}, **fields}
    return Call(
        body=None if body is None else msgspec.json.decode(raw, type=endpoints[key].body),
        served=served,
        headers=headers or {},
        raw_body=raw,
        **made,
    )


@asynccontextmanager
async def serving(
    model: str = RANDOM,
    *,
    options=None,
    template=None,
    post_processor=None,
    media=None,
    **settings,
) -> AsyncIterator[Served]:
    """What a server of that model would hand to its handlers.

    `template` takes the place of the model's, and `post_processor` that of tokenizer.json. embedded:echo with
    the template `SCRIPT` says what the first message says. Every token is an event, unless the settings say
    otherwise. Of `media`, a `MediaConfig`, requests may have some.
    """
    usual = {"max_model_len": 1024, "num_gpu_blocks_override": 256, "stream_interval_ms": 0.0}
    asked = EngineOptions(model=model, **{**usual, **settings})
    checkpoint = open_model(model, runner=asked.runner)
    config = resolve(asked, checkpoint.card, GIB)
    if media is not None:
        facts = msgspec.structs.replace(config.model_config, media=media)
        config = msgspec.structs.replace(config, model_config=facts)
    files = dict(checkpoint.tokenizer_files)
    if post_processor is not None:
        changed = json.loads(files["tokenizer.json"]) | {"post_processor": post_processor}
        files["tokenizer.json"] = json.dumps(changed).encode()
    tokenizer = Tokenizer.from_files(files)
    runner, pooler = load_model(checkpoint, config)
    client = await LocalClient.start_with(runner, tokenizer, config, pooler=pooler)
    source = template or checkpoint.chat_template
    options = options or ApiOptions()
    request_templates = (
        RequestTemplates(tokenizer.special_tokens) if options.trust_request_chat_template else None
    )
    with _template(source, tokenizer) as chat_template:
        try:
            yield Served(
                client=client,
                tokenizer=tokenizer,
                chat_template=chat_template,
                started_at=1_700_000_000,
                request_templates=request_templates,
                options=options,
            )
        finally:
            if request_templates is not None:
                request_templates.close()
            client.shutdown()
            await client.wait_closed()


def _template(source, tokenizer):
    """The chat template, where there is one."""
    return nullcontext() if source is None else ChatTemplate(source, tokenizer.special_tokens)


def weather_tool(name: str = "get_weather") -> dict:
    """A function as OpenAI's clients describe it."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "The weather somewhere.",
            "parameters": {
                "type": "object",
                "properties": {
                    "unit": {"$ref": "#/$defs/Unit"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["unit", "days"],
                "additionalProperties": False,
                "$defs": {"Unit": {"enum": ["c", "f"]}},
            },
        },
    }


def is_compact(text: str) -> bool:
    """Whether JSON text has no whitespace between its parts."""
    return text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)


@asynccontextmanager
async def listening(
    served: Served, store: StoreOptions | Store | None = None, **options
) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server of everything, and its port, which is of the system's choice."""
    made = store if isinstance(store, Store) else Store(store)
    state = ServerState(CollectorRegistry(), time.monotonic(), store=made)
    state.registry.register(StoreSeries(made))
    server = HttpServer(state, HttpOptions(port=0, **options), probe_endpoints(state))
    port = await server.start()
    server.open(served, all_endpoints(state))
    try:
        yield server, port
    finally:
        await server.stop()


@asynccontextmanager
async def http_serving(served: Served, **options) -> AsyncIterator[str]:
    """The address of such a server."""
    async with listening(served, **options) as (_, port):
        yield f"http://127.0.0.1:{port}"
