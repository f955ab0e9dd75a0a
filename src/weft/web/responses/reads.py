"""Responses by their ids: read, follow, cancel, delete, and page through their inputs."""

import asyncio
from collections.abc import Mapping
from operator import itemgetter
from typing import NoReturn

import msgspec
from starlette.responses import Response

from weft.core.errors import BadRequest, Unavailable
from weft.schema.response_object import DeletedResponse, InputItemList
from weft.web.http.endpoint import Answer, Call, Events
from weft.web.http.problem import HttpError
from weft.web.inference.paging import is_newest_first, page_limit, page_of, whole_number
from weft.web.items.item_reader import Item
from weft.web.responses.event_log import EventLog
from weft.web.responses.runs import Run, Runs
from weft.web.responses.store import StoredResponse
from weft.web.responses.unsupported import check_include
from weft.web.store.stored_object import StoredObject

_MAX_PAGE = 100
_PAGE = 20
CANCEL = "cancel"  # the signal to the process that makes a response
_CANCEL_LOOKS, _CANCEL_LOOK_S = 50, 0.1


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
        found = await self._find(call)
        after = whole_number(query, "starting_after", default=-1)
        if _flag(query, "stream"):
            return Events(_log_of(found, call).follow(after))
        if after >= 0:
            raise BadRequest("starting_after", "starting_after needs stream to be true")
        return _answer(found)

    async def cancel(self, call: Call) -> Answer:
        """End a response that is made in the background

        One that has ended stays as it is.
        """
        found = await self._find(call)
        if isinstance(found, Run):
            if found.task is None:
                _refuse_cancel()
            await self._runs.cancel(found)
            return found.response
        if isinstance(found, StoredObject):
            return await self._cancel_elsewhere(call, found)
        if not found.is_background:
            _refuse_cancel()
        return _answer(found)

    async def _cancel_elsewhere(self, call: Call, record: StoredObject) -> Answer:
        """Asks the process that makes a response to cancel it, and waits for a while."""
        await self._runs.store.signal(record, CANCEL)
        found: Run | StoredResponse | StoredObject = record
        for _ in range(_CANCEL_LOOKS):
            found = await self._find(call)
            if not isinstance(found, StoredObject):
                break
            await asyncio.sleep(_CANCEL_LOOK_S)
        return _answer(found)

    async def delete(self, call: Call) -> Answer:
        """Forget a response

        What still makes it in the background ends.
        """
        found = await self._find(call)
        if isinstance(found, Run):
            found.is_stored = False
            if found.task is not None:
                await self._runs.cancel(found)
        await self._runs.store.delete(call.tenant_name, found.id)
        return DeletedResponse(id=found.id)

    async def input_items(self, call: Call) -> Answer:
        """The input items of a response, a page at a time

        The last first, unless `order` says otherwise.
        """
        query = call.query
        _check_includes(query)
        limit = page_limit(query, default=_PAGE, most=_MAX_PAGE)
        newest_first = is_newest_first(query)
        items = self._input_items(await self._find(call))
        return _page(items[::-1] if newest_first else items, query.get("after"), limit)

    def _input_items(self, found: Run | StoredResponse | StoredObject) -> list[Item]:
        if isinstance(found, Run):
            return found.request.conversation.items
        if isinstance(found, StoredResponse):
            return found.input_items()
        items: list[Item] = msgspec.json.decode(self._runs.store.to_accepted(found).items)
        return items

    async def _find(self, call: Call) -> Run | StoredResponse | StoredObject:
        response_id, tenant = call.path_parameters["response_id"], call.tenant_name
        found = self._runs.get(tenant, response_id) or await self._runs.store.get(
            tenant, response_id
        )
        if found is None:
            raise HttpError(
                404,
                f"Response with id {response_id[:64]!a} not found.",
                code="response_not_found",
                parameter="response_id",
            )
        return found


def _answer(found: Run | StoredResponse | StoredObject) -> Answer:
    if isinstance(found, Run):
        return found.response
    response = found.head if isinstance(found, StoredObject) else found.response
    return Response(response, media_type="application/json")


def _log_of(found: Run | StoredResponse | StoredObject, call: Call) -> EventLog:
    if isinstance(found, StoredObject):
        raise Unavailable(
            f"response {call.path_parameters['response_id'][:64]!a} is made by another API server, or begins again "
            "after a restart; read it without stream, or try again later"
        )
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
    return InputItemList(**page_of(items[start:], limit, itemgetter("id")))


# -- the query ----------------------------------------------------------------------------------


def _check_includes(query: Mapping[str, str]) -> None:
    """Checks `include`. A stored response has the parts it was created with; requesting others changes nothing."""
    check_include([query[name] for name in ("include", "include[]") if name in query])


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise BadRequest(name, f"{name} must be true or false, got {value[:40]!a}")
    return value == "true"
