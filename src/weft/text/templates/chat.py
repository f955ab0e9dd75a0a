"""Chat templates: messages in, prompt text out, within bounds of time, memory and length."""

import json
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Self

import jinja2
import msgspec

from weft.core.errors import BadRequest, ConfigError, ContextLengthExceeded
from weft.text.templates.history import normalise_messages
from weft.text.templates.render_processes import Rendering, RenderLimits, RenderProcesses
from weft.text.templates.template import make_environment
from weft.text.templates.template_facts import TemplateFacts
from weft.text.templates.written_calls import family_of

log = logging.getLogger("weft.text")
Message = Mapping[str, Any]

# Nesting of the template's variables: call, variables, messages, message, parts, part.
_PIECE_DEPTH = 6

# Names that a caller's `chat_template_kwargs` may not set: arguments with their own parameters, functions that
# templates use, and options that other engines pass to templates.
RESERVED_NAMES = frozenset(
    "self messages conversation tools documents add_generation_prompt continue_final_message "
    "chat_template tokenize tokenizer_kwargs padding truncation max_length return_tensors "
    "return_dict return_assistant_tokens_mask raise_exception strftime_now namespace range dict "
    "lipsum cycler joiner".split()
)

# Limit of a template in a request; templates of models have some thousand characters.
MAX_TEMPLATE_CHARS = 128 * 1024
_MAX_OPENED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """How the operator of a server wants chat templates to be rendered.

    Every rendering passes `default_kwargs` to the template; the `template_kwargs` of a rendering replace values of the
    same name. `wants_parts` True passes message contents that are lists of parts to the template as lists, and False as
    strings; None decides by the template's facts. If the template does not write past tool calls, the calls are passed
    as text in the format of the `tool_parser` family; None chooses the family by the template.
    """

    default_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wants_parts: bool | None = None
    tool_parser: str | None = None
    limits: RenderLimits = field(default_factory=RenderLimits)


class ChatTemplate:
    """Chat template of a model. Safe to share between threads.

    `source` is the template's text. Without `processes`, the template has render processes of its own: these start with
    the first rendering, restart after a process was killed, and end with `close` or when the template is
    garbage-collected.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        options: TemplateOptions = TemplateOptions(),
        processes: RenderProcesses | None = None,
    ) -> None:
        self.source = source
        self._family = family_of(source, options.tool_parser)
        self._special_tokens = dict(special_tokens)
        self._constants = {**special_tokens, **options.default_kwargs}
        # The model's own template: its errors are errors of the configuration.
        if processes is None:
            _check_syntax(source)
        self._wants_parts = options.wants_parts
        self._facts: dict[bool, TemplateFacts] = {}
        self._parameter = "messages" if processes is None else "chat_template"
        self.processes = processes or RenderProcesses(options.limits)

    def facts(self, *, has_tools: bool) -> TemplateFacts:
        """The forms of messages that the template accepts, with tools or without; found once, in a process."""
        facts = self._facts.get(has_tools)
        if facts is None:
            setup = {"special_tokens": self._special_tokens, "has_tools": has_tools}
            line = json.dumps(setup) + "\n"
            answer = self.processes.run(Rendering(self._parameter, self.source, line))
            facts = msgspec.json.decode(answer, type=TemplateFacts)
            if self._wants_parts is not None:
                facts = facts.with_parts() if self._wants_parts else facts.without_parts()
            if not facts.writes_tools:
                log.warning(
                    "the chat template does not write tools: the model does not see those of requests"
                )
            self._facts[has_tools] = facts
        return facts

    def render(self, messages: Sequence[Message], **how: Any) -> str:
        """Renders a conversation to the prompt text; the arguments are those of `prepare`."""
        return self.processes.run(self.prepare(messages, **how))

    def prepare(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Rendering:
        """Returns the `Rendering` that converts a conversation to the prompt text; raises `BadRequest` for invalid
        input. With `continue_final_message` the prompt ends inside the last message, which the model then continues.
        `template_kwargs` are passed to the template unchanged: any JSON values, under names that are not in
        `RESERVED_NAMES`.
        """
        # A mapping instead of keywords, so that a caller's names cannot clash with this function's parameters.
        kwargs = template_kwargs or {}
        if kwargs:
            self._check_kwargs(kwargs)
        if add_generation_prompt and continue_final_message:
            raise BadRequest(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other",
            )
        facts = self.facts(has_tools=bool(tools))
        conversation = normalise_messages(messages, facts, self._family)
        marker = secrets.token_hex(16) if continue_final_message else None
        if marker is not None:
            _mark_end(conversation, marker)
        variables = {
            **self._constants,
            **kwargs,
            "messages": conversation,
            "tools": None if tools is None else list(tools),
            "documents": None if documents is None else list(documents),
            "add_generation_prompt": add_generation_prompt,
        }
        line = _to_line(
            {"now": datetime.now().isoformat(), "variables": variables},
            self.processes.limits.max_input_chars,
        )
        finish = str if marker is None else partial(_cut_at, marker)
        return Rendering("messages", self.source, line, finish)

    def close(self) -> None:
        """End the child processes; a later rendering starts another."""
        self.processes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _check_kwargs(self, kwargs: Mapping[str, Any]) -> None:
        for name in kwargs:
            if name in RESERVED_NAMES or name in self._special_tokens:
                raise BadRequest(
                    "chat_template_kwargs", f"chat_template_kwargs may not set {name!r}"
                )


class RequestTemplates:
    """Templates from requests, with the same limits as the model's own. Request templates are rendered in separate
    processes: a template that hangs delays only other templates of requests.
    """

    def __init__(
        self, special_tokens: Mapping[str, str], options: TemplateOptions = TemplateOptions()
    ) -> None:
        self._special_tokens = special_tokens
        self._options = options
        self.processes = RenderProcesses(options.limits)
        self._opened: dict[str, ChatTemplate] = {}  # recently used templates, with their facts

    def open(self, source: str) -> ChatTemplate:
        """The template of one request; raises `BadRequest` if it is invalid. May take long."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise BadRequest(
                "chat_template", f"chat_template has more than {MAX_TEMPLATE_CHARS} characters"
            )
        template = self._opened.get(source)
        if template is None:
            template = ChatTemplate(source, self._special_tokens, self._options, self.processes)
            template.facts(has_tools=False)
            self._opened = {**self._opened, source: template}
            self._opened = dict(list(self._opened.items())[-_MAX_OPENED:])
        return template

    def close(self) -> None:
        """End the child processes; a later rendering starts another."""
        self.processes.close()


def _mark_end(conversation: list[dict[str, Any]], marker: str) -> None:
    """Puts a marker after the last message's text. A space in it shows later whether the template trims text."""
    last = conversation[-1]
    if isinstance(last["content"], str):
        last["content"] += marker + " "
    elif last["content"] and "text" in last["content"][-1]:
        last["content"][-1]["text"] += marker + " "
    else:
        raise BadRequest("messages", "the final message has no text to continue")


def _cut_at(marker: str, text: str) -> str:
    before, found, after = text.rpartition(marker)
    if not found:
        raise BadRequest(
            "continue_final_message", "the chat template leaves out the final message's text"
        )
    return before if after.startswith(" ") else before.rstrip()


def _check_syntax(source: str) -> None:
    try:
        make_environment(datetime.now).parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"chat template, line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise ConfigError("chat template: nested too deeply") from error


def _to_line(value: object, max_chars: int) -> str:
    pieces: list[str] = []
    num_chars = 0
    try:
        for piece in _pieces(value, max_chars, _PIECE_DEPTH):
            num_chars += len(piece)
            if num_chars > max_chars:
                raise _too_long(max_chars)
            pieces.append(piece)
        return "".join((*pieces, "\n"))
    except BadRequest:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(
            "messages", f"messages, tools and chat_template_kwargs must be plain JSON: {error}"
        ) from error


def _pieces(value: object, max_chars: int, depth: int) -> Iterator[str]:
    """JSON text in pieces, because the library holds the interpreter's lock while it encodes one."""
    if isinstance(value, str) and len(value) > max_chars:
        raise _too_long(max_chars)
    if depth and isinstance(value, dict) and value:
        for position, (name, part) in enumerate(value.items()):
            yield f"{',' if position else '{'}{json.dumps(name)}:"
            yield from _pieces(part, max_chars, depth - 1)
        yield "}"
    elif depth and isinstance(value, list) and value:
        for position, part in enumerate(value):
            yield "," if position else "["
            yield from _pieces(part, max_chars, depth - 1)
        yield "]"
    else:
        yield _piece(value)


def _too_long(max_chars: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        "messages",
        f"the messages as JSON have more characters than fit the context; at most {max_chars} are taken",
        max_chars + 1,
    )


def _piece(value: object) -> str:
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair has no UTF-8 encoding
        return json.dumps(value)
    return text
