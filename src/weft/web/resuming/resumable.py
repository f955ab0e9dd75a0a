"""Endpoints whose streams can be continued: by a new request with the same body, here or at an equal server."""

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import msgspec
from prometheus_client import CollectorRegistry, Counter

from weft.core.checks.id_source import ID_SOURCE, IdSource
from weft.core.client import EngineClient
from weft.web.http.endpoint import Answer, Call, Endpoint, Events, Handler
from weft.web.inference.call import label_of
from weft.web.resuming.position import HEADER, NEW, Position, Signer, digest_of, refused
from weft.web.resuming.resumable_client import (
    FingerprintOf,
    Recorder,
    ResumableClient,
    StreamFacts,
)

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
# Name, meaning and label of the metric series.
SERIES = (
    "weft:resumable_streams",
    "Number of streams with the header x-weft-resume, by outcome: new, continued, or refused.",
    "outcome",
)
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class ResumingServer:
    """The secret of equal servers, and the fingerprint of this one."""

    signer: Signer
    fingerprint_of: FingerprintOf
    streams: Counter

    @classmethod
    def of(
        cls, secret: bytes, fingerprint_of: FingerprintOf, registry: CollectorRegistry
    ) -> "ResumingServer":
        """Returns the state of one server."""
        name, text, label = SERIES
        streams = Counter(name, text, (label,), registry=registry)
        return cls(Signer(secret), fingerprint_of, streams)


def resumable(endpoints: Iterable[Endpoint], resuming: ResumingServer) -> Iterator[Endpoint]:
    """Yields the endpoints; the streams of `PATHS` can be continued."""
    for endpoint in endpoints:
        if endpoint.method == "POST" and endpoint.path in PATHS:
            handler = partial(_handle, resuming, endpoint.handler)
            yield replace(endpoint, handler=handler)
        else:
            yield endpoint


async def _handle(resuming: ResumingServer, handler: Handler, call: Call) -> Answer:
    given = call.headers.get(HEADER)
    if given is None:
        return await handler(call)
    try:
        return await _stream(resuming, handler, call, given)
    except BaseException:
        resuming.streams.labels("refused").inc()
        raise


async def _stream(resuming: ResumingServer, handler: Handler, call: Call, given: str) -> Answer:
    if not call.body.stream or getattr(call.body, "background", None):
        raise refused("needs stream to be true, and a request that is not in the background")
    exchange, signer = call.exchange, resuming.signer
    assert exchange is not None, "a call of a server"
    recorder = Recorder(exchange, signer.begin())
    position = None
    if given != NEW:
        position = signer.read(given)
        recorder.add(given.rpartition(".")[0])
    facts = _facts(signer, call, exchange.raw_path, position)
    ID_SOURCE.set(facts.ids)
    served, prints = call.served, resuming.fingerprint_of
    client = ResumableClient(served.client, served.tokenizer, prints, recorder, facts, position)
    served = replace(served, client=cast("EngineClient", client))
    answer = await handler(
        replace(call, served=served, label=facts.label, created_at=facts.created)
    )
    assert isinstance(answer, Events), "the body asks for a stream"
    outcome = "new" if position is None else "continued"
    source = _shown(answer.source, client, recorder, resuming.streams.labels)
    headers = {**answer.headers, HEADER: outcome}
    return replace(answer, source=source, headers=headers, sink=None)


def _facts(signer: Signer, call: Call, path: bytes, position: Position | None) -> StreamFacts:
    """Returns the facts of a new stream, or those of the stream that continues."""
    digest = digest_of(path, call.raw_body, msgspec.json.encode(call.served.options))
    if position is None:
        label = label_of(call) if call.label == call.request_id else call.label
        created, nonce, store = int(time.time()), secrets.token_bytes(_NONCE_BYTES), ""
    else:
        begun = position.beginning
        label, created, nonce, store = begun.label, begun.created, begun.nonce, begun.store
    ids = IdSource(signer.ids_of(nonce), store)
    return StreamFacts(label=label, created=created, nonce=nonce, digest=digest, ids=ids)


async def _shown(
    source: AsyncGenerator[bytes, None],
    client: ResumableClient,
    recorder: Recorder,
    count: Callable[[str], Counter],
) -> AsyncGenerator[bytes, None]:
    """The events that the client does not have yet."""
    try:
        async with aclosing(source):
            async for event in source:
                if not client.is_replaying:
                    yield event
        yield recorder.last()
    finally:
        count(client.outcome).inc()
