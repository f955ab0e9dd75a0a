"""`AnswerText`: the tokens of one answer as text, up to its stop string."""

from collections.abc import Sequence

from weft.core.values.types import FinishReason, Request, SequenceOutput
from weft.text.outputs.stops import StopMatcher
from weft.text.tokenizer import Tokenizer

# Tokens become text when an output is emitted, many at once; if no output is due, after this many tokens.
_MAX_UNREAD = 256


class AnswerText:
    """Text of one answer. If the request has stop strings, token ids become text as soon as they arrive.

    `token_ids` is the list of the answer's tokens, to which `push` appends.
    """

    _matcher: StopMatcher | None = None
    _is_cut = False  # a stop string was found: no more text is emitted
    _num_silent = 0  # 1 if the last token has no text
    _num_read = 0  # number of tokens that are in the pieces
    _num_emitted = 0  # number of pieces that were emitted

    def __init__(
        self, request: Request, tokenizer: Tokenizer, token_ids: list[int], *, ends_at_stops: bool
    ) -> None:
        self._params = params = request.params
        self._token_ids = token_ids
        self._detokenizer = tokenizer.detokenizer(
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
            prompt_token_ids=request.prompt_token_ids,
        )
        if params.stop:
            is_included = params.include_stop_str_in_output
            self._matcher = StopMatcher(params.stop_strings, is_included=is_included)
        self._ends_at_stops = ends_at_stops
        self._stop_ids = {*request.eos_token_ids, *(params.stop_token_ids or ())}
        self._pieces: list[str] = []

    @property
    def has_new(self) -> bool:
        """True if there is text that was not emitted."""
        return self._num_emitted < len(self._pieces)

    def push(self, output: SequenceOutput) -> str | None:
        """Adds the new tokens; returns the stop string that ends the answer, if there is one."""
        if output.finish_reason is FinishReason.STOP:
            self._num_silent = self._is_silent(output.token_ids)
        if self._matcher is not None:
            return self._search(self._matcher, output.token_ids)
        self._token_ids += output.token_ids
        if len(self._token_ids) - self._num_read >= _MAX_UNREAD:
            self._read()
        return None

    def finish(self) -> None:
        """Ends the text; text that was held back is emitted, unless a stop string cut it off."""
        if not self._is_cut:
            self._read()
            if self._matcher is not None:
                self._show(self._matcher.flush())
            self._show(self._detokenizer.flush())

    def take(self, *, is_whole: bool) -> str:
        """Returns the text since the last call, or all text so far."""
        self._read()
        first = self._num_emitted
        if is_whole:
            # Joined now, so that the next complete output does not join all pieces again.
            self._pieces = ["".join(self._pieces)] if self._pieces else []
            first = 0
        self._num_emitted = len(self._pieces)
        return "".join(self._pieces[first:])

    def _is_silent(self, token_ids: Sequence[int]) -> bool:
        """True if the last token of a stopped answer is a stop token and is not part of the text.

        A model without an end-of-sequence token stops with the last token of its grammar, which is
        text like any other.
        """
        is_stop_token = bool(token_ids) and token_ids[-1] in self._stop_ids
        return is_stop_token and not self._params.include_stop_str_in_output

    def _search(self, matcher: StopMatcher, token_ids: Sequence[int]) -> str | None:
        """Takes tokens one by one up to the first stop string, so that one step with many tokens gives the same
        result as many steps.
        """
        num_after = len(self._token_ids) + len(token_ids) - self._num_silent
        for token_id in token_ids:
            self._token_ids.append(token_id)
            if self._is_cut or len(self._token_ids) > num_after:
                continue
            self._num_read = len(self._token_ids)
            text = self._detokenizer.push(token_id)
            if text:
                is_searched = self._num_read > self._params.min_tokens
                found = matcher.push(text, is_searched=is_searched)
                self._show(found.text)
                self._is_cut = found.stop is not None
                if self._is_cut and self._ends_at_stops:
                    return found.stop
        return None

    def _read(self) -> None:
        """Converts the new tokens to text."""
        end = len(self._token_ids) - self._num_silent
        if self._num_read < end and self._matcher is None:
            unread = self._token_ids[self._num_read : end]
            self._num_read = end
            self._show(self._detokenizer.read(unread))

    def _show(self, text: str) -> None:
        if text:
            self._pieces.append(text)
