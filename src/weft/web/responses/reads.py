"""Responses by their ids: read, follow, cancel, delete, and page through their inputs."""

from collections.abc import Mapping
from typing import NoReturn

from starlette.responses import Response

from weft.core.errors import BadRequest
from weft.schema.response_object import DeletedResponse, InputItemList
from weft.web.http.endpoint import Answer, Call, Events
from weft.web.http.problem import HttpError
from weft.web.responses.event_log import EventLog
from weft.web.responses.item_reader import Item
from weft.web.responses.runs import Run, Runs
from weft.web.responses.store import StoredResponse
from weft.web.responses.unsupported import check_include

_MAX_PAGE = 100
_PAGE = 20
_MAX_DIGITS = 9


class ResponseReads:
    """The handlers that read stored responses. An unknown response, or one that is not stored, is not found."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def retrieve(self, call: Call) -> Answer:
        """A response that is stored or being made; with stream=true its events

        From the first, or those after one.
        """
        query = call.query
        _check_includes(query)
        if _flag(query, "include_obfuscation"):
            raise BadRequest("include_obfuscation", "include_obfuscation must be absent or false")
        found = self._find(call)
        after = _number(query, "starting_after", default=-1)
        if _flag(query, "stream"):
            return Events(_log_of(found).follow(after))
        if after >= 0:
            raise BadRequest("starting_after", "starting_after needs stream to be true")
        return _answer(found)

    async def cancel(self, call: Call) -> Answer:
        """End a response that is made in the background

        One that has ended stays as it is.
        """
        found = self._find(call)
        if isinstance(found, Run):
            if found.task is None:
                _refuse_cancel()
            await self._runs.cancel(found)
            return found.response
        if not found.is_background:
            _refuse_cancel()
        return _answer(found)

    async def delete(self, call: Call) -> Answer:
        """Forget a response

        What still makes it in the background ends.
        """
        found = self._find(call)
        if isinstance(found, Run):
            found.is_stored = False
            if found.task is not None:
                await self._runs.cancel(found)
        else:
            self._runs.store.delete(found.id)
        return DeletedResponse(id=found.id)

    async def input_items(self, call: Call) -> Answer:
        """The input items of a response, a page at a time

        The last first, unless `order` says otherwise.
        """
        query = call.query
        _check_includes(query)
        limit = _number(query, "limit", default=_PAGE)
        if not 1 <= limit <= _MAX_PAGE:
            raise BadRequest("limit", f"limit must be 1 to {_MAX_PAGE}, got {limit}", limit)
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise BadRequest("order", f'order must be "asc" or "desc", got {order[:40]!a}')
        found = self._find(call)
        items = found.request.conversation.items if isinstance(found, Run) else found.input_items()
        return _page(items if order == "asc" else items[::-1], query.get("after"), limit)

    def _find(self, call: Call) -> Run | StoredResponse:
        response_id = call.path_parameters["response_id"]
        found = self._runs.get(response_id) or self._runs.store.get(response_id)
        if found is None:
            raise HttpError(
                404,
                f"Response with id {response_id[:64]!a} not found.",
                code="response_not_found",
                parameter="response_id",
            )
        return found


def _answer(found: Run | StoredResponse) -> Answer:
    if isinstance(found, Run):
        return found.response
    return Response(found.response, media_type="application/json")


def _log_of(found: Run | StoredResponse) -> EventLog:
    if found.log is None:
        raise BadRequest(
            "stream", "only a response that was made with background and stream can be streamed"
        )
    return found.log


def _refuse_cancel() -> NoReturn:
    raise BadRequest("response_id", "Cannot cancel a synchronous response.")


def _page(items: list[Item], after: str | None, limit: int) -> InputItemList:
    start = 0
    if after is not None:
        start = next((at + 1 for at, item in enumerate(items) if item["id"] == after), 0)
        if not start:
            raise BadRequest("after", f"after names no item of this response: {after[:64]!a}")
    page = items[start : start + limit]
    return InputItemList(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=start + limit < len(items),
    )


# -- the query ----------------------------------------------------------------------------------


def _check_includes(query: Mapping[str, str]) -> None:
    """Checks `include`. A stored response has the parts it was created with; requesting others changes nothing."""
    check_include([query[name] for name in ("include", "include[]") if name in query])


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise BadRequest(name, f"{name} must be true or false, got {value[:40]!a}")
    return value == "true"


def _number(query: Mapping[str, str], name: str, *, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise BadRequest(name, f"{name} must be a whole number from 0, got {text[:40]!a}")
    return int(text)
