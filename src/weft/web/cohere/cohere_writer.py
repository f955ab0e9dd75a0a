"""Converts a turn's events to Cohere's: blocks and calls one after another, each with start, deltas and end.

The answer in one piece is the sum of these events.
"""

from collections.abc import Iterator
from typing import Any, assert_never

from msgspec import UNSET, UnsetType

from weft.core.errors import Unavailable
from weft.core.values.types import PositionLogprobs
from weft.text.parsers.parts import Arguments, Content, Part, Reasoning, ToolCall
from weft.text.tokenizer import Tokenizer
from weft.web.chat.turn import Began, Ended, TurnDelta, TurnEvent
from weft.web.cohere.bodies import (
    CallChange,
    CallDelta,
    CallEnd,
    CallMessage,
    CallStart,
    CohereAnswerMessage,
    CohereChatAnswer,
    CohereContent,
    CohereEnd,
    CohereEvent,
    CohereLogprob,
    CohereMessageEnd,
    CohereMessageStart,
    CohereTokens,
    CohereUsage,
    ContentChange,
    ContentDelta,
    ContentEnd,
    ContentMessage,
    ContentStart,
    WrittenCohereFunction,
    WrittenCohereTool,
)
from weft.web.inference.logprobs import FLOOR

_REASONS = {"length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}


class CohereWriter:
    """Converts events to Cohere's. Whitespace between blocks of other types makes no block.

    Log-probabilities of tokens without visible text come with the next text.
    """

    def __init__(self, label: str, tokenizer: Tokenizer) -> None:
        self._id = label
        self._tokenizer = tokenizer
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_tokens = 0
        self._rows: list[PositionLogprobs] = []  # not written yet
        self._logprobs: list[CohereLogprob] | None = None
        self._kind = ""  # of the open block or call: text, thinking, call or ""
        self._pieces: list[str] = []
        self._held = ""  # leading whitespace of a text, written only if text follows
        self._content: list[CohereContent] = []
        self._calls: list[WrittenCohereTool] = []
        self._open_call = WrittenCohereTool(function=WrittenCohereFunction())
        self._reason: str = "COMPLETE"
        self._transfer: dict[str, Any] | None = None

    def answer(self) -> CohereChatAnswer:
        """The answer in one piece, once all events were added."""
        return CohereChatAnswer(
            id=self._id,
            finish_reason=self._reason,
            message=CohereAnswerMessage(
                content=self._content or UNSET, tool_calls=self._calls or UNSET
            ),
            usage=self._usage(),
            logprobs=UNSET if self._logprobs is None else self._logprobs,
            kv_transfer_params=UNSET if self._transfer is None else self._transfer,
        )

    def events(self, event: TurnEvent) -> Iterator[CohereEvent]:
        """The events for one event of the turn."""
        match event:
            case Began():
                self._num_prompt_tokens = len(event.prompt_token_ids)
                yield CohereMessageStart(id=self._id)
            case TurnDelta():
                yield from self._delta(event)
            case Ended():
                yield from self._last(event)
            case _:
                assert_never(event)

    def _delta(self, event: TurnDelta) -> Iterator[CohereEvent]:
        self._num_tokens += len(event.token_ids)
        if event.logprobs is not None:
            self._rows += event.logprobs
            self._logprobs = self._logprobs or []
        for part in event.parts:
            yield from self._part(part)
        if event.finish_reason is not None:
            self._finish(event.finish_reason, event.stop_reason)

    def _last(self, event: Ended) -> Iterator[CohereEvent]:
        self._num_cached_tokens = event.num_cached_tokens
        self._transfer = event.kv_transfer_params
        if not self._content and not self._calls and not self._kind:
            # Clients read the first block of every answer without calls, so there must be one.
            yield from self._text("text", self._held)
        yield from self._close()
        yield CohereMessageEnd(
            id=self._id, delta=CohereEnd(finish_reason=self._reason, usage=self._usage())
        )

    def _part(self, part: Part) -> Iterator[CohereEvent]:
        match part:
            case Reasoning(text):
                yield from self._text("thinking", text)
            case Content(text):
                if self._kind != "text":
                    self._held += text
                    if not self._held.strip():
                        return
                    text = self._held
                yield from self._text("text", text)
            case ToolCall(name=name, id=call_id):
                yield from self._begin_call(name, call_id or "")
            case Arguments(text=text):
                self._pieces.append(text)
                function = WrittenCohereFunction(arguments=text)
                yield CallDelta(index=len(self._calls), delta=_call_change(function))
            case _:
                assert_never(part)

    def _text(self, kind: str, text: str) -> Iterator[CohereEvent]:
        """New text of a block, which begins here if it is not open."""
        index = len(self._content)
        if self._kind != kind:
            yield from self._close()
            self._kind, index = kind, len(self._content)
            start = CohereContent(type=kind, **{kind: ""})
            yield ContentStart(index=index, delta=_content_change(start))
        self._pieces.append(text)
        part = CohereContent(**{kind: text})
        yield ContentDelta(index=index, delta=_content_change(part), logprobs=self._scores())

    def _begin_call(self, name: str, call_id: str) -> Iterator[CohereEvent]:
        yield from self._close()
        self._kind = "call"
        self._open_call = WrittenCohereTool(
            id=call_id,
            type="function",
            function=WrittenCohereFunction(name=name, arguments=""),
        )
        delta = CallChange(message=CallMessage(tool_calls=self._open_call))
        yield CallStart(index=len(self._calls), delta=delta)

    def _close(self) -> Iterator[CohereEvent]:
        kind, self._kind, self._held = self._kind, "", ""
        text = "".join(self._pieces)
        self._pieces = []
        if kind == "call":
            call = self._open_call
            assert call.function.name is not UNSET
            function = WrittenCohereFunction(name=call.function.name, arguments=text)
            yield CallEnd(index=len(self._calls))
            self._calls.append(WrittenCohereTool(id=call.id, type=call.type, function=function))
        elif kind:
            yield ContentEnd(index=len(self._content))
            self._content.append(CohereContent(type=kind, **{kind: text}))

    def _scores(self) -> CohereLogprob | UnsetType:
        """The log-probabilities that are not written yet."""
        if not self._rows:
            return UNSET
        rows, self._rows = self._rows, []
        assert self._logprobs is not None
        made = [self._logprob(row) for row in rows]
        self._logprobs += made
        return CohereLogprob(
            text="".join(one.text for one in made),
            token_ids=[token_id for one in made for token_id in one.token_ids],
            logprobs=[value for one in made for value in one.logprobs],
        )

    def _logprob(self, row: PositionLogprobs) -> CohereLogprob:
        token_id, entry = next(iter(row.items()))  # the sampled token comes first
        text = entry.decoded_token
        if text is None:
            text = self._tokenizer.token_to_text(token_id)
        return CohereLogprob(text=text, token_ids=[token_id], logprobs=[max(entry.logprob, FLOOR)])

    def _finish(self, reason: str, stop: int | str | None) -> None:
        if reason == "abort":
            # The API has no reason for an abort, and the answer is incomplete.
            raise Unavailable("the request was aborted on the server")
        has_calls = bool(self._calls) or self._kind == "call"
        # A call that tool_choice forced ends with the usual reason.
        usual = "TOOL_CALL" if has_calls else "COMPLETE"
        self._reason = "STOP_SEQUENCE" if isinstance(stop, str) else _REASONS.get(reason, usual)

    def _usage(self) -> CohereUsage:
        tokens = CohereTokens(input_tokens=self._num_prompt_tokens, output_tokens=self._num_tokens)
        return CohereUsage(
            billed_units=tokens, tokens=tokens, cached_tokens=self._num_cached_tokens
        )


def _content_change(content: CohereContent) -> ContentChange:
    return ContentChange(message=ContentMessage(content=content))


def _call_change(function: WrittenCohereFunction) -> CallChange:
    return CallChange(message=CallMessage(tool_calls=WrittenCohereTool(function=function)))
