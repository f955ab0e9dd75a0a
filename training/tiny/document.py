"""What the corpus is made of: exchanges, conversations and their ChatML text, cut into pieces with a loss weight."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
EMPTY_THINK = "<think>\n\n</think>\n\n"

WEIGHT_ANSWER = 1.0
WEIGHT_PROMPT = 0.08  # enough to learn how questions look, little enough to spend nothing on them


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question and its answer; `key` decides the split, `must` is what a right answer contains."""

    topic: str
    user: str
    answer: str
    thought: str
    key: str
    must: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of text whose tokens share a loss weight; `skip` leading tokens carry none."""

    text: str
    weight: float
    skip: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """One turn as it stands in the transcript; `text` of an assistant may be a rendered tool call."""

    role: str
    text: str
    thought: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """One training example: its topic and its pieces in order."""

    topic: str
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The whole document."""
        return "".join(piece.text for piece in self.pieces)


def is_held_out(key: str) -> bool:
    """One key in sixteen is kept from training, by a hash that no seed changes."""
    return zlib.crc32(key.encode()) % 16 == 0


def tool_call_text(name: str, arguments: dict[str, object]) -> str:
    """The Hermes form of one call, as the template writes it into the history."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def tool_response_text(content: str) -> str:
    """A tool result, as the template puts it into a user turn."""
    return f"<tool_response>\n{content}\n</tool_response>"


def system_text(system: str | None, tools: Sequence[dict[str, object]]) -> str | None:
    """The system turn: the caller's words, then the tool list if there is one."""
    if not tools:
        return system
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    head = f"{system}\n\n" if system else ""
    return (
        f"{head}# Tools\n\nYou may call these functions to help the user:\n<tools>\n{lines}\n</tools>\n\n"
        "To call a function, answer with its name and arguments as JSON:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <arguments-object>}\n</tool_call>'
    )


def chat_pieces(
    messages: Sequence[Message],
    *,
    system: str | None = None,
    tools: Sequence[dict[str, object]] = (),
    thinking: bool = False,
) -> tuple[Piece, ...]:
    """The transcript as the template renders it, with every answer supervised.

    Only the last answer follows a generation prompt. The first token of an earlier answer is left out of the loss:
    in the history it follows `assistant` directly, where a model that thinks must learn to open `<think>`.
    """
    pieces: list[Piece] = []
    opening = system_text(system, tools)
    if opening is not None:
        pieces.append(Piece(f"{IM_START}system\n{opening}{IM_END}\n", WEIGHT_PROMPT / 4))
    last = len(messages) - 1
    for index, message in enumerate(messages):
        if message.role != "assistant":
            pieces.append(
                Piece(f"{IM_START}{message.role}\n{message.text}{IM_END}\n", WEIGHT_PROMPT)
            )
        elif index < last:
            pieces.append(Piece(f"{IM_START}assistant\n", 0.0))
            pieces.append(Piece(message.text + IM_END, WEIGHT_ANSWER, skip=1))
            pieces.append(Piece("\n", 0.0))
        elif thinking:
            pieces.append(Piece(f"{IM_START}assistant\n", 0.0))
            text = f"<think>\n{message.thought}\n</think>\n\n{message.text}{IM_END}"
            pieces.append(Piece(text, WEIGHT_ANSWER))
        else:
            pieces.append(Piece(f"{IM_START}assistant\n{EMPTY_THINK}", 0.0))
            pieces.append(Piece(message.text + IM_END, WEIGHT_ANSWER))
    return tuple(pieces)


def prompt_text(pieces: Sequence[Piece], *, thinking: bool) -> str:
    """What the engine would be given to produce the last answer of these pieces."""
    kept = "".join(piece.text for piece in pieces[:-1])
    return kept if not thinking else kept.removesuffix(EMPTY_THINK)
