"""Descriptions of model families for the parsers: their markers, and the form of their tool calls."""

from dataclasses import dataclass, replace

from weft.text.parsers.forms.form import Form
from weft.text.parsers.forms.json_calls import JsonCalls

_JSON_CALLS = JsonCalls()


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """Tool-call format of a family. A call begins at one of `openers`; `form` reads the rest.

    If `form` is None, calls are messages of the harmony format, like reasoning and content.

    `sections` are markers around several calls, and `closers` are markers after a call; both are ignored if there is no
    call.
    An answer whose first character is one of `starts` begins with a call, unless it turns out not to.

    `example` is a call as the model's template writes it; forced calls have the same format. `between` is the text
    between the arguments of a call and the name of the next call. If `between` is None, this text is the end of a call,
    a line break, and the beginning of a call.
    """

    models: str
    example: str
    form: Form | None = _JSON_CALLS
    between: str | None = None
    openers: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    starts: str = ""
    # The markers are special tokens of these models' tokenizers: text that was decoded without special tokens has
    # none.
    needs_special_tokens: bool = True
    # Ids of calls have the form `functions.NAME:N`, with N counted over the whole conversation.
    counts_ids: bool = False
    # Ids of calls have nine letters and digits: the templates of these models refuse others.
    has_short_ids: bool = False
    # A chat template that contains all of these strings belongs to the family; if empty, templates are not
    # recognized.
    template_marks: tuple[str, ...] = ()

    @property
    def is_harmony(self) -> bool:
        """True if the whole answer is in the harmony format."""
        return self.form is None


@dataclass(frozen=True, slots=True)
class ReasoningFamily:
    """Reasoning format of a family: first in the answer, between a start and an end marker."""

    models: str
    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    # The start marker may be missing although the prompt does not end with it.
    may_omit_start: bool = False
    # A chat template without this word belongs to a model that does not reason, and never omits the start marker.
    switch: str = ""
    # Markers of tool calls that also end the reasoning, and are then read as the start of a call.
    implicit_ends: tuple[str, ...] = ()
    # Tags around the answer, which are not part of it.
    answer_tags: tuple[str, ...] = ()
    needs_special_tokens: bool = False
    template_marks: tuple[str, ...] = ()
    is_harmony: bool = False

    def with_template(self, source: str) -> "ReasoningFamily":
        """The family, adapted to a model with this chat template."""
        return self if self.switch in source else replace(self, may_omit_start=False)

    @property
    def reasoning_end(self) -> str:
        """The last text of the reasoning, before the answer."""
        return self.ends[0]
