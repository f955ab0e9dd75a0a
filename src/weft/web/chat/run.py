"""`run_turn`: runs a `Turn` in the engine and yields its `TurnEvent`s. Only this module connects conversations to the
engine.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.core.beam_search import run_beam_search
from weft.core.client import EngineClient
from weft.core.errors import BadRequest
from weft.core.values.media import FIELD, MODALITIES
from weft.core.values.types import (
    OutputKind,
    PositionLogprobs,
    Request,
    RequestOptions,
    RequestOutput,
    SamplingParams,
)
from weft.web.chat.answers import (
    AnswerFormat,
    AnswerReader,
    choose_families,
    choose_format,
    forced_format,
)
from weft.web.chat.prompt import prepare, render_turn, tokenization_kwargs
from weft.web.chat.tools import check_tools, is_forced
from weft.web.chat.turn import Began, Ended, Turn, TurnDelta, TurnEvent
from weft.web.http.sse import EventSink
from weft.web.served import Served

# Fields of a media item, which is a part of a message.
_OF_MEDIA = frozenset((*MODALITIES, FIELD, "uuid"))


@dataclass(frozen=True, slots=True)
class PreparedTurn:
    """A checked turn: the format of its answers, and the engine's request."""

    form: AnswerFormat
    request: Request


class TurnSink(EventSink):
    """Takes the outputs of a turn; `encode` converts a delta to the bytes that are sent."""

    __slots__ = ("_write", "readers")

    def __init__(self, encode: Callable[[TurnDelta], list[bytes]]) -> None:
        super().__init__(self._events)
        self._write = encode
        self.readers: list[AnswerReader]  # by the answer's index; set when the turn begins

    def _events(self, output: RequestOutput) -> list[bytes]:
        events: list[bytes] = []
        for answer in output.outputs:
            events += self._write(self.readers[answer.index].read(answer))
        return events


async def run_turn(
    served: Served,
    turn: Turn,
    prepared: PreparedTurn | None = None,
    sink: TurnSink | None = None,
) -> AsyncGenerator[TurnEvent, None]:
    """Yields `Began`, then a `TurnDelta` for each new part, then `Ended`. Closing the generator aborts the request. An
    invalid turn, or an engine that cannot accept the request, raises before the first event. `prepared` is the result
    of `prepare_turn` for this turn, if the caller has called it already. Deltas that go through `sink` are not yielded.
    """
    if prepared is None:
        prepared = await prepare_turn(served, turn)
    form, request = prepared.form, prepared.request
    readers = [
        AnswerReader(
            form, form.counter(served, request.prompt_token_ids) if form.reasoning else None
        )
        for _ in range(request.params.n)
    ]
    if sink is not None:
        sink.readers = readers
    num_cached_tokens = 0
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    is_begun = False
    with _naming_fields(turn):
        running = run_request(served.client, request, turn.options, turn.length_penalty, sink)
        async with aclosing(running) as outputs:
            async for output in outputs:
                if not is_begun:
                    is_begun = True
                    yield Began(
                        prompt=request.prompt or "",
                        prompt_token_ids=output.prompt_token_ids,
                        num_cached_tokens=output.num_cached_tokens,
                    )
                num_cached_tokens = output.num_cached_tokens
                prompt_logprobs = output.prompt_logprobs or prompt_logprobs
                kv_transfer_params = output.kv_transfer_params
                for answer in output.outputs:
                    yield readers[answer.index].read(answer)
    yield Ended(
        num_cached_tokens=num_cached_tokens,
        prompt_logprobs=prompt_logprobs,
        kv_transfer_params=kv_transfer_params,
    )


def run_request(
    client: EngineClient,
    request: Request,
    options: RequestOptions,
    length_penalty: float | None,
    sink: EventSink | None,
) -> AsyncGenerator[RequestOutput, None]:
    """Yields the outputs of the engine, or of a beam search if `length_penalty` is set; a beam search does not use
    `sink`.
    """
    if length_penalty is None:
        return client.run(request) if sink is None else client.run_into(request, sink)
    options = msgspec.structs.replace(options, request_id=request.request_id)
    return run_beam_search(client, request, options, length_penalty)


async def prepare_turn(served: Served, turn: Turn) -> PreparedTurn:
    """Checks a turn and returns the engine's request, with its final parameters."""
    if turn.params.n > served.options.max_n:
        raise BadRequest(
            "n", f"n must be at most {served.options.max_n}, got {turn.params.n}", turn.params.n
        )
    # Only a few templates are rendered at once: a request that will be refused must not wait for its turn.
    with served.client.preparing(turn.params.n):
        check_tools(turn.tools, turn.tool_choice)
        params = _params(served, turn)
        families = choose_families(served, turn, params)
        if families.needs_special_tokens:
            params = msgspec.structs.replace(params, skip_special_tokens=False)
        rendered = await render_turn(served, turn)
        form = choose_format(served, turn, rendered.text, params, families)
        options = msgspec.structs.replace(
            turn.options,
            tokenization_kwargs=tokenization_kwargs(
                add_special_tokens=turn.add_special_tokens, truncation_side=turn.truncation_side
            ),
            **form.engine_arguments(params),
        )
        prompt = rendered.to_prompt(turn.cache_salt)
        with _naming_fields(turn):
            return PreparedTurn(form, await prepare(served, prompt, params, options))


@contextmanager
def _naming_fields(turn: Turn) -> Iterator[None]:
    """Renames fields in errors: errors of a constraint that forces a call are about tools, and errors of media about
    messages.

    Other fields get the names that the body has for them.
    """
    try:
        yield
    except BadRequest as error:
        if error.parameter in _OF_MEDIA:
            raise BadRequest("messages", str(error), error.value) from error
        if is_forced(turn.tool_choice) and error.parameter in ("json", "structural_tag"):
            raise BadRequest("tools", f"a call of these tools cannot be forced: {error}") from error
        raise error.renamed(turn.names) from error


def _params(served: Served, turn: Turn) -> SamplingParams:
    """The caller's parameters, with the additions that this turn needs."""
    kind = OutputKind.DELTA if turn.is_streamed else OutputKind.FINAL_ONLY
    if not is_forced(turn.tool_choice):
        return msgspec.structs.replace(turn.params, output_kind=kind)
    if turn.length_penalty is not None:
        raise BadRequest("tool_choice", "a call cannot be forced with use_beam_search")
    if turn.params.structured_outputs is not None:
        raise BadRequest(
            "tool_choice",
            "tool_choice forces a tool call and structured_outputs another form; give one of them",
        )
    forced = forced_format(served, turn)
    return msgspec.structs.replace(turn.params, output_kind=kind, structured_outputs=forced)
