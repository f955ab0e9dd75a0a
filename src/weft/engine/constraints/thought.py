"""Thoughts: what a model writes before its answer, up to a marker such as "</think>".

The front reads from the call whether a thought is open where the answer begins; in the engine, a
`ThoughtWatch` follows each sequence to its end. Where the marker is several tokens, or the model
writes it with others than the tokenizer would, it is found in the text all the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

from weft.core.errors import BadRequest
from weft.core.types import OpenThought, SamplingParams
from weft.text.tokenizer import Tokenizer

MAX_END_CHARS = 64
# The end of the prompt in which the marker is looked for: spaces may follow it.
_TAIL_TOKENS = 256


class ThoughtWatch:
    """Follows one sequence, token by token, until its thought is over. `piece` gives a token's bytes.

    `budget` is how many tokens the thought may take before its end is forced.
    """

    __slots__ = (
        "_budget",
        "_end",
        "_end_ids",
        "_last_ids",
        "_num_tokens",
        "_piece",
        "_tail",
        "is_over",
    )

    def __init__(
        self, thought: OpenThought, piece: Callable[[int], bytes], budget: int | None = None
    ) -> None:
        self._end = thought.end.encode()
        self._end_ids = thought.end_token_ids
        self._piece = piece
        self._budget = budget
        self._tail = b""  # as much of the text as the marker may have begun in
        self._last_ids: list[int] = []
        self._num_tokens = 0
        self.is_over = False

    @property
    def forced_token_id(self) -> int | None:
        """The next token of the marker, once the budget is spent; it goes on where the model began one."""
        if self.is_over or self._budget is None or self._num_tokens < self._budget:
            return None
        longest = min(len(self._last_ids), len(self._end_ids) - 1)
        num_there = next(
            count
            for count in range(longest, -1, -1)
            if self._last_ids[len(self._last_ids) - count :] == self._end_ids[:count]
        )
        return self._end_ids[num_there]

    def push(self, token_id: int) -> None:
        """Take in the token that came next."""
        self._num_tokens += 1
        self._last_ids = [*self._last_ids, token_id][-len(self._end_ids) :]
        text = self._tail + self._piece(token_id)
        self.is_over = self._end in text
        kept = len(self._end) - 1
        self._tail = text[-kept:] if kept else b""


def read_thought(
    params: SamplingParams,
    reasoning_ended: bool | None,
    kwargs: Mapping[str, Any] | None,
    prompt_token_ids: list[int],
    tokenizer: Tokenizer,
) -> OpenThought | None:
    """The thought that the answer begins with, by the arguments of `EngineClient.generate`."""
    if not (reasoning_ended is None or isinstance(reasoning_ended, bool)):
        raise BadRequest("reasoning_ended", "reasoning_ended must be true, false or None")
    end = _end_of(kwargs)
    if params.thinking_token_budget is not None:
        _check_budget(params, end)
    if end is None:
        if reasoning_ended is False:
            raise BadRequest(
                "reasoning_parser_kwargs",
                "reasoning_ended=False needs the text that ends the thought: "
                'reasoning_parser_kwargs={"end": "</think>"}',
            )
        return None
    token_ids = tokenizer.encode(end, add_special_tokens=False)
    if end not in tokenizer.decode(token_ids, skip_special_tokens=False):
        raise _bad_end("cannot be written with this model's tokenizer")
    if reasoning_ended is None:
        tail = tokenizer.decode(prompt_token_ids[-_TAIL_TOKENS:], skip_special_tokens=False)
        reasoning_ended = tail.rstrip().endswith(end.rstrip())
    return None if reasoning_ended else OpenThought(end=end, end_token_ids=token_ids)


def _check_budget(params: SamplingParams, end: str | None) -> None:
    name = "thinking_token_budget"
    if end is None:
        raise BadRequest(
            name, f"{name} needs the text that ends a thought, and none is known for this request"
        )
    if params.grammar_from_first_token and params.structured_outputs is not None:
        raise BadRequest(
            name, f"{name} cannot be kept where structured_outputs rules the thought too"
        )


def _end_of(kwargs: Mapping[str, Any] | None) -> str | None:
    if kwargs is None:
        return None
    unknown = [str(key) for key in kwargs if key != "end"]
    if unknown:
        raise BadRequest(
            "reasoning_parser_kwargs",
            f"unknown reasoning_parser_kwargs {unknown[:5]}; the only one is end",
        )
    if "end" not in kwargs:
        return None
    end = kwargs["end"]
    if not isinstance(end, str) or not end.strip() or len(end) > MAX_END_CHARS:
        raise _bad_end(f"must be text of 1 to {MAX_END_CHARS} characters that are not all spaces")
    try:
        end.encode()
    except UnicodeEncodeError as error:
        raise _bad_end("is not valid Unicode: it holds a lone surrogate") from error
    return end


def _bad_end(what: str) -> BadRequest:
    return BadRequest("reasoning_parser_kwargs", f"end of reasoning_parser_kwargs {what}")
