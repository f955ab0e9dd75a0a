"""Runs the turns of a response: one, or several if server tools are called."""

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import msgspec

from weft.core.aio.scores import write_scores
from weft.core.errors import ContextLengthExceeded
from weft.core.values.logprobs import num_scores
from weft.schema.response_events import StreamEvent
from weft.schema.response_object import McpListToolsItem, ResponseObject
from weft.web.chat.run import PreparedTurn, prepare_turn, run_turn
from weft.web.chat.turn import Began, Turn, TurnDelta, TurnEvent
from weft.web.inference.logprobs import LogprobWriter
from weft.web.items.item_reader import Message
from weft.web.items.items import RequestInput, as_items, to_messages
from weft.web.mcp.toolbox import Toolbox
from weft.web.mcp.values import CallResult, failed
from weft.web.responses.open_items import OpenServerCall, ScoredToken, scored
from weft.web.responses.writer import ResponseWriter
from weft.web.served import Served

_LIMIT_REACHED = -32000  # JSON-RPC's first code for errors that servers define


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A checked request, which only the engine can still refuse. `before` are the messages of earlier responses; the
    messages of `turn` are these and the messages of `conversation`. `later_turn` is the template for the turns after
    tool calls, without the calls and their results. `prepared` is None if approved calls must be made before the first
    turn, or while the tools of `toolbox` are not listed yet. For a request that `is_warmup`, only the prompt is
    computed.
    """

    turn: Turn
    later_turn: Turn
    prepared: PreparedTurn | None
    response: ResponseObject
    conversation: RequestInput
    before: list[Message]
    own_item_ids: tuple[str, ...]
    logprobs: LogprobWriter | None
    toolbox: Toolbox | None = None
    listed: tuple[McpListToolsItem, ...] = ()
    known_labels: frozenset[str] = frozenset()
    is_warmup: bool = False

    def close(self) -> None:
        """Releases its resources; idempotent."""
        if self.toolbox is not None:
            self.toolbox.close()


class ToolLoop:
    """Runs the model, its calls, and the model again with the results, within the limits of request and toolbox."""

    def __init__(self, served: Served, request: PreparedRequest, writer: ResponseWriter) -> None:
        self._served = served
        self._request = request
        self._writer = writer
        self._num_turns = 0
        self._num_calls = 0

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """Yields all events except the end of a failed response. Closing the generator aborts the engine's request."""
        request, writer = self._request, self._writer
        turn: Turn | None = request.turn
        prepared = request.prepared
        if request.conversation.approved:
            for event in self._approved():
                yield event
            async with aclosing(self._calls()) as made:
                async for event in made:
                    yield event
            turn = self._next_turn()
        while turn is not None:
            prepared = prepared or await self._prepared(turn)
            async with aclosing(self._turn(turn, prepared)) as made:
                async for event in made:
                    yield event
            if not writer.calls_to_make():
                break
            async with aclosing(self._calls()) as made:
                async for event in made:
                    yield event
            if writer.waits_for_client:
                break
            turn, prepared = self._next_turn(), None
        for event in writer.finish(is_cut=turn is None):
            yield event

    async def warmup_events(self) -> AsyncGenerator[StreamEvent, None]:
        """Yields the events of a response without output, whose prompt is computed and cached. Approved calls are left
        to the next response.
        """
        request, writer = self._request, self._writer
        for made in writer.begin():
            yield made
        if request.prepared is not None:
            async with aclosing(run_turn(self._served, request.turn, request.prepared)) as events:
                async for event in events:
                    if isinstance(event, Began):
                        for made in writer.add(event):
                            yield made
        for made in writer.finish():
            yield made

    def _approved(self) -> list[StreamEvent]:
        writer = self._writer
        events = list(writer.begin())
        for call in self._request.conversation.approved:
            events += writer.begin_approved(call)
        return events

    async def _turn(self, turn: Turn, prepared: PreparedTurn) -> AsyncGenerator[StreamEvent, None]:
        self._num_turns += 1
        async with aclosing(run_turn(self._served, turn, prepared)) as events:
            async for event in events:
                tokens = await self._scored(event)
                for made in self._writer.add(event, tokens):
                    yield made

    async def _scored(self, event: TurnEvent) -> list[ScoredToken] | None:
        """A delta's tokens with logprobs; None if they are not requested."""
        logprobs = self._request.logprobs
        if logprobs is None or not isinstance(event, TurnDelta) or event.logprobs is None:
            return None
        return await write_scores(
            num_scores(event.logprobs), partial(scored, logprobs, event.logprobs)
        )

    async def _calls(self) -> AsyncGenerator[StreamEvent, None]:
        """Makes the calls of a turn, one after the other."""
        for call in self._writer.calls_to_make():
            result = await self._made(call)
            for event in self._writer.finish_call(call, result):
                yield event

    async def _made(self, call: OpenServerCall) -> CallResult:
        if self._num_calls >= self._max_calls:
            message = f"the limit of {self._max_calls} calls is reached"
            return failed("mcp_protocol_error", _LIMIT_REACHED, message)
        self._num_calls += 1
        toolbox = self._request.toolbox
        assert toolbox is not None, "a call is of a toolbox's tool"
        return await toolbox.call(call.label, call.name, call.text)

    @property
    def _max_calls(self) -> int:
        toolbox, wanted = self._request.toolbox, self._request.response.max_tool_calls
        most = 0 if toolbox is None else toolbox.limits.max_calls
        return most if wanted is None else min(most, wanted)

    def _next_turn(self) -> Turn | None:
        """The turn that continues with the results of calls; None if no tokens are left for the response.

        Before the last turn, or after the last call, tools are switched off.
        """
        request, turn = self._request, self._request.later_turn
        params = turn.params
        if params.max_tokens is not None:
            left = params.max_tokens - self._writer.num_tokens
            if left <= 0:
                return None
            params = msgspec.structs.replace(
                params, max_tokens=left, min_tokens=min(params.min_tokens, left)
            )
        assert request.toolbox is not None
        is_last = (
            self._num_turns >= request.toolbox.limits.max_turns - 1
            or self._num_calls >= self._max_calls
        )
        output = as_items(self._writer.response.output)
        request_id = f"{turn.options.request_id}-{self._num_turns + 1}"
        return dataclasses.replace(
            turn,
            messages=(*turn.messages, *to_messages(output)),
            params=params,
            tool_choice="none" if is_last else turn.tool_choice,
            options=msgspec.structs.replace(turn.options, request_id=request_id),
        )

    async def _prepared(self, turn: Turn) -> PreparedTurn:
        try:
            return await prepare_turn(self._served, turn)
        except ContextLengthExceeded:
            if turn.params.max_tokens is None:
                raise
            # Less room is left than the request allows: the answer may fill the context.
            params = msgspec.structs.replace(turn.params, max_tokens=None)
            return await prepare_turn(self._served, dataclasses.replace(turn, params=params))
