"""Converts items of the Responses API to chat messages, and to the form in which they are listed."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.schema.response_object import OutputItem, OutputMessage
from weft.text.content import Place
from weft.web.items.client_tools import is_passed_over
from weft.web.items.item_reader import ApprovedCall, Item, ItemReader, Message

# Items converted in one turn of the event loop: 2 ms.
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class RequestInput:
    """Input of a request: its items as they are listed, and as messages for a chat template.

    `approved` calls are made before the model continues. The input lists the tools of the servers `listed_labels`.
    """

    items: list[Item]
    messages: list[Message]
    approved: tuple[ApprovedCall, ...] = ()
    listed_labels: frozenset[str] = frozenset()


async def read_input(
    given: str | Sequence[Item],
    *,
    before: Sequence[Mapping[str, Any]] = (),
    find_item: Callable[[str], Item | None],
    takes_media: bool = False,
    is_part: bool = False,
    name: str = "input",
) -> RequestInput:
    """The input of a request, in its field `name`. `before` are the messages that came earlier, for calls that are
    answered.

    `find_item` looks up an item that is only referred to. Media are refused unless it `takes_media`. Items that
    `is_part` of a conversation may answer calls and requests in its other items.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    reader = ItemReader(before, find_item, takes_media=takes_media, is_part=is_part)
    place = Place(name, name)
    for position, item in enumerate(given):
        if position % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        reader.add(item, place[position])
    return RequestInput(
        reader.items, reader.messages, tuple(reader.approved), frozenset(reader.listed_labels)
    )


def left_out_kinds(given: str | Sequence[Item]) -> list[str]:
    """Kinds of input that `read_input` leaves out, each once and in order."""
    if isinstance(given, str):
        return []
    kinds = (_left_out_kind(item) for item in given)
    return list(dict.fromkeys(kind for kind in kinds if kind is not None))


def _left_out_kind(item: Item) -> str | None:
    if is_passed_over(item):
        return str(item["type"])
    is_sealed = item.get("type") == "reasoning" and item.get("encrypted_content")
    return "encrypted reasoning" if is_sealed and not item.get("content") else None


def as_items(output: Iterable[OutputItem]) -> list[Item]:
    """A response's items in the form of inputs: without logprobs."""
    items: list[Item] = msgspec.to_builtins([_without_logprobs(item) for item in output])
    return items


def _without_logprobs(item: OutputItem) -> OutputItem:
    if not isinstance(item, OutputMessage):
        return item
    texts = [msgspec.structs.replace(part, logprobs=[]) for part in item.content]
    return msgspec.structs.replace(item, content=texts)


def to_messages(output: Iterable[Item]) -> list[Message]:
    """The messages that a response's own items make, for the next turn."""
    reader = ItemReader((), lambda _: None)
    place = Place("input", "output")
    for position, item in enumerate(output):
        reader.add(item, place[position])
    return reader.messages


async def before_of(
    items: Iterable[Item], *, takes_media: bool
) -> tuple[list[Message], frozenset[str]]:
    """The messages of a stored conversation's items, and the MCP servers whose tools it lists. Approvals are left out:
    the calls that they allowed follow them.
    """
    known = list(items)
    by_id = {item["id"]: item for item in known}
    reader = ItemReader((), by_id.get, takes_media=takes_media)
    place = Place("conversation", "conversation")
    for position, item in enumerate(known):
        if position % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        is_allowed = item["type"] == "mcp_approval_response" and item.get("approve")
        if not is_allowed:
            reader.add(item, place[position])
    return reader.messages, frozenset(reader.listed_labels)


def referred_ids(given: str | Sequence[Item]) -> set[str]:
    """The ids of stored items that an input refers to."""
    if isinstance(given, str):
        return set()
    fields = ("id", "approval_request_id")
    kinds = (None, "item_reference", "mcp_approval_response")
    found = (item.get(name) for item in given if item.get("type") in kinds for name in fields)
    return {one for one in found if isinstance(one, str)}
