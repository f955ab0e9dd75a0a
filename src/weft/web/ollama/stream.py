"""Sends the pieces of an answer, as lines of JSON or as one answer; what chat and generate share."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec

from weft.core.aio.scores import write_scores
from weft.core.values.logprobs import num_scores
from weft.core.values.types import SamplingParams
from weft.schema.ollama import GenerationBody
from weft.web.chat.turn import TurnDelta, TurnEvent
from weft.web.http.endpoint import Answer, Dialect, Endpoint, Events
from weft.web.inference.call import ModelCall, ModelHandler, model_endpoint
from weft.web.ollama.writer import Piece, PieceWriter
from weft.web.served import Served

_DEFAULT_TAG = ":latest"
_encoder = msgspec.json.Encoder()


def ollama_endpoint(route: str, **fields: Any) -> Callable[[ModelHandler], Endpoint]:
    """The endpoint of a handler of calls to the model."""
    return model_endpoint(route, to_name=to_name, dialect=Dialect.OLLAMA, **fields)


def to_name(served: Served, name: str | None) -> str | None:
    """The served name for a name of Ollama, whose default tag may be added or left out."""
    model, adapters = served.client.model_config, served.client.lora_requests
    if name is None or name in model.served_model_names or name in adapters:
        return name
    return name.removesuffix(_DEFAULT_TAG)


def is_streamed(body: GenerationBody) -> bool:
    """True unless the request body disables streaming."""
    return body.stream is not False


async def answer_events(
    call: ModelCall,
    events: AsyncGenerator[TurnEvent, None],
    params: SamplingParams,
    to_answer: Callable[[Piece], msgspec.Struct],
) -> Answer:
    """Returns a stream of the events, or one whole answer; `to_answer` writes a piece as the API does."""
    num_top = params.logprobs
    writer = PieceWriter(
        None if num_top is None else call.logprob_writer(num_top, None, is_naming_by_id=False)
    )
    pieces = _pieces(events, writer)
    if is_streamed(call.body):
        return Events(_lines(pieces, to_answer), is_lines=True)
    whole = Piece()
    async with aclosing(pieces):
        async for piece in pieces:
            whole.add(piece)
    return to_answer(whole)


async def _pieces(
    events: AsyncGenerator[TurnEvent, None], writer: PieceWriter
) -> AsyncGenerator[Piece, None]:
    async with aclosing(events):
        async for event in events:
            rows = event.logprobs if isinstance(event, TurnDelta) else None
            made = await write_scores(num_scores(rows), partial(_all, writer, event))
            for piece in made:
                yield piece


def _all(writer: PieceWriter, event: TurnEvent) -> list[Piece]:
    return list(writer.pieces(event))


async def _lines(
    pieces: AsyncGenerator[Piece, None], to_answer: Callable[[Piece], msgspec.Struct]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        async for piece in pieces:
            yield _encoder.encode(to_answer(piece)) + b"\n"
