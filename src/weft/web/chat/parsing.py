"""The parser that takes an answer apart: chosen once a turn, made anew for each of its answers."""

from weft.core.errors import BadRequest
from weft.text.parsers.parts import Content, OutputParser, Part
from weft.web.chat.forced import NamedCall, RequiredCalls
from weft.web.chat.turn import NamedTool, Turn
from weft.web.served import ApiOptions


class PlainText:
    """Everything is content."""

    def feed(self, text: str) -> list[Part]:
        """See `OutputParser`."""
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        """See `OutputParser`."""
        return []


def check_parsers(turn: Turn, options: ApiOptions) -> None:
    """Refuse calls at the model's own choice where nothing here could find them in its answer."""
    if not turn.tools or turn.tool_choice != "auto":
        return
    if not options.enable_auto_tool_choice or options.tool_call_parser is None:
        raise BadRequest(
            "tool_choice",
            'tool_choice "auto" needs a server with a tool-call parser (--enable-auto-tool-choice '
            "and --tool-call-parser); a named function, required and none work without",
        )


def make_parser(turn: Turn, options: ApiOptions) -> OutputParser:
    """The parser of one answer."""
    del options
    match turn.tool_choice:
        case NamedTool(name=name):
            return NamedCall(name)
        case "required":
            return RequiredCalls()
        case _:
            return PlainText()
