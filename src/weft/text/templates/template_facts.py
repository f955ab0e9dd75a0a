"""Facts about a chat template, found by rendering small conversations, not by reading its syntax.

A probe is a conversation with words that occur nowhere else. The template accepts a form of message if it does not
raise and writes the words of the message. Probes run in the template's render process.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

_Message: TypeAlias = dict[str, Any]
# Renders a conversation with tools; returns None if the template raises.
Renderer: TypeAlias = Callable[[Sequence[_Message], Sequence[Mapping[str, Any]] | None], str | None]

_ONE, _TWO, _NAME, _KEY, _VALUE = "weftone", "wefttwo", "weftname", "weftkey", "weftvalue"
_SHORT_ID, _OTHER_ID, _FOREIGN_ID = "weft0call", "weft1call", "call_weft0123456789"
_ARGUMENTS = {_KEY: _VALUE}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Looks up a word.",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "The word."}},
            "required": [_KEY],
        },
    },
}


class TemplateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Which forms of messages a chat template takes.

    `part_roles` are the roles whose contents the template reads as lists of parts. `textless_roles` are the roles whose
    contents the template does not read as strings. The defaults describe a template that accepts every form of text.
    """

    part_roles: frozenset[str] = frozenset()
    textless_roles: frozenset[str] = frozenset()
    takes_system: bool = True
    takes_two_systems: bool = True
    takes_late_system: bool = True
    takes_two_users: bool = True
    takes_user_after_result: bool = True
    # The template joins the arguments of past calls as text, and does not read them as an object.
    takes_argument_text: bool = False
    # The template writes calls only in messages whose content is null.
    needs_null_content: bool = False
    # The template refuses ids of calls that are not nine letters and digits.
    needs_short_ids: bool = False
    takes_parallel_calls: bool = True
    # The template writes the calls of earlier messages, and the results of calls.
    writes_calls: bool = True
    takes_results: bool = True
    writes_tools: bool = True

    def with_parts(self) -> "TemplateFacts":
        """The facts if the server is configured to pass contents as lists of parts."""
        return msgspec.structs.replace(self, part_roles=frozenset(ROLES))

    def without_parts(self) -> "TemplateFacts":
        """The facts if the server is configured to pass contents as strings."""
        return msgspec.structs.replace(self, part_roles=frozenset(), textless_roles=frozenset())


def find_facts(render: Renderer, *, has_tools: bool) -> TemplateFacts:
    """The facts of the template behind `render`, with or without tools."""
    probe = _Probe(render, [_TOOL] if has_tools else None)
    contents = _content_facts(probe)
    calls = _find_call_form(probe)
    return TemplateFacts(
        **contents,
        **_order_facts(probe),
        **_result_facts(probe, calls or _CallForm(is_written=True)),
        **({"writes_calls": False} if calls is None else _call_facts(probe, calls)),
        writes_tools=not has_tools
        or probe.writes(_NAME, messages=[_user()])
        or probe.writes(_NAME, messages=[_system("Be kind."), _user()]),
    )


def _order_facts(probe: "_Probe") -> dict[str, Any]:
    """Finds the allowed orders of roles; a template that refuses single messages says nothing about several."""
    first, second = _system(_ONE), _system(_TWO)
    return {
        "takes_system": probe.writes(_ONE, messages=[first, _user()]),
        "takes_two_systems": probe.writes(_ONE, _TWO, messages=[first, second, _user()]),
        "takes_late_system": probe.writes(
            _ONE, _TWO, messages=[first, _user(), _assistant("Yes."), second, _user()]
        ),
        "takes_two_users": probe.takes([_user(_ONE), _user(_TWO)]),
    }


def _call_facts(probe: "_Probe", calls: "_CallForm") -> dict[str, Any]:
    def writes(word: str, messages: Sequence[_Message]) -> bool:
        return probe.writes(_VALUE, word, messages=messages)

    return {
        "takes_argument_text": calls.is_text,
        "needs_null_content": calls.content is None,
        "needs_short_ids": not writes(_VALUE, calls.conversation(call_id=_FOREIGN_ID)),
        "takes_parallel_calls": writes(_TWO, calls.parallel_conversation()),
    }


def _result_facts(probe: "_Probe", calls: "_CallForm") -> dict[str, Any]:
    takes_results = probe.writes(_ONE, messages=calls.conversation(_ONE))
    return {
        "takes_results": takes_results,
        "takes_user_after_result": not takes_results
        or probe.takes([*calls.conversation(), _user()]),
    }


class _Probe:
    """Renders conversations and looks for words in the texts.

    Texts of `textless_roles` reach the template as lists of one part.
    """

    def __init__(self, render: Renderer, tools: Sequence[Mapping[str, Any]] | None) -> None:
        self._render = render
        self._tools = tools
        self.textless_roles: set[str] = set()

    def writes(self, *words: str, messages: Sequence[_Message]) -> bool:
        """True if the template accepts the messages and writes all the words."""
        text = self.text(messages)
        return all(word in text for word in words)

    def takes(self, messages: Sequence[_Message]) -> bool:
        """True if the template does not raise."""
        return self._rendered(messages) is not None

    def text(self, messages: Sequence[_Message]) -> str:
        """The rendered text of the messages; empty if the template raises."""
        return self._rendered(messages) or ""

    def _rendered(self, messages: Sequence[_Message]) -> str | None:
        return self._render(list(map(self._as_read, messages)), self._tools)

    def _as_read(self, message: _Message) -> _Message:
        text = message["content"]
        if message["role"] not in self.textless_roles or not isinstance(text, str):
            return message
        return {**message, "content": [{"type": "text", "text": text}]}


class _CallForm(msgspec.Struct, frozen=True):
    """The form of messages with calls: arguments as text or as an object, and the value of an empty content.

    With `is_written` calls are texts, since the template writes no others.
    """

    is_text: bool = False
    content: str | None = ""
    is_written: bool = False

    def conversation(self, result: object = "done", call_id: str = _SHORT_ID) -> list[_Message]:
        """A question, a call and its result."""
        calling = self._calling(self._call(call_id, _VALUE))
        return [_user(), calling, _result(call_id, result)]

    def parallel_conversation(self) -> list[_Message]:
        """A question, two calls in one message, and their results."""
        calling = self._calling(self._call(_SHORT_ID, _VALUE), self._call(_OTHER_ID, _TWO))
        return [_user(), calling, _result(_SHORT_ID, "done"), _result(_OTHER_ID, "done")]

    def _calling(self, *calls: _Message) -> _Message:
        if self.is_written:
            return _assistant(json.dumps(calls))
        return {"role": "assistant", "content": self.content, "tool_calls": list(calls)}

    def _call(self, call_id: str, value: str) -> _Message:
        arguments: object = {_KEY: value}
        function = {
            "name": _NAME,
            "arguments": json.dumps(arguments) if self.is_text else arguments,
        }
        return {"id": call_id, "type": "function", "function": function}


def _find_call_form(probe: _Probe) -> _CallForm | None:
    """The first form in which the template writes the arguments; None if there is none."""
    forms = (_CallForm(is_text, content) for content in ("", None) for is_text in (False, True))
    for form in forms:
        text = probe.text(form.conversation())
        if _VALUE not in text:
            continue
        if json.dumps(_ARGUMENTS) in text if form.is_text else repr(_ARGUMENTS) not in text:
            return form
    return None


# -- contents ---------------------------------------------------------------------------------

# The order matters: the conversations of later roles contain messages of earlier roles.
ROLES: Mapping[str, Callable[[_CallForm, object], list[_Message]]] = {
    "user": lambda _, content: [_user(content)],
    "assistant": lambda _, content: [_user(), _assistant(content), _user()],
    "system": lambda _, content: [_system(content), _user()],
    "tool": lambda form, content: form.conversation(content),
}


def _content_facts(probe: _Probe) -> dict[str, Any]:
    """The accepted forms of contents by role. From here on the probe passes texts in these forms."""
    one, two = ({"type": "text", "text": word} for word in (_ONE, _TWO))
    part_roles = set()
    for role, conversation in ROLES.items():
        calls = (_find_call_form(probe) if role == "tool" else None) or _CallForm(is_written=True)
        if _reads(probe.text(conversation(calls, [one, two])), _ONE, _TWO):
            part_roles.add(role)
        takes_text = _reads(probe.text(conversation(calls, _ONE)), _ONE)
        if not takes_text and _reads(probe.text(conversation(calls, [one])), _ONE):
            probe.textless_roles.add(role)
    return {
        "part_roles": frozenset(part_roles),
        "textless_roles": frozenset(probe.textless_roles),
    }


def _reads(text: str, *words: str) -> bool:
    """True if the words are written as text, and not inside a printed list."""
    as_values = (f"'text': '{_ONE}'", f'"text": "{_ONE}"', f'"text":"{_ONE}"')
    return all(word in text for word in words) and not any(value in text for value in as_values)


def _result(call_id: str, content: object) -> _Message:
    return {"role": "tool", "tool_call_id": call_id, "name": _NAME, "content": content}


def _system(content: object) -> _Message:
    return {"role": "system", "content": content}


def _user(content: object = "What is this?") -> _Message:
    return {"role": "user", "content": content}


def _assistant(content: object) -> _Message:
    return {"role": "assistant", "content": content}
