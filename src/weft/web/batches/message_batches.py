"""/v1/messages/batches: Anthropic's batches of messages."""

from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import Response

from weft.core.errors import BadRequest
from weft.schema.batches import (
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchBody,
    MessageBatchList,
    MessageCounts,
)
from weft.web.batches.batch_runner import MAX_REQUESTS, BatchRunner
from weft.web.batches.stored_batch import COMPLETED, FAILED, MESSAGES, Batches, BatchState
from weft.web.http.endpoint import Answer, Call, Dialect, Endpoint, endpoint
from weft.web.inference.paging import page_limit, page_of
from weft.web.store.database import Store
from weft.web.store.stored_object import Paging

_PATH = "/v1/messages/batches"
_ONE = "/v1/messages/batches/{message_batch_id}"
_MESSAGES = "/v1/messages"
_WINDOW_S = 24 * 3600
_PAGE, _MAX_PAGE = 20, 1000
_EXAMPLE = {
    "requests": [
        {
            "custom_id": "first",
            "params": {"max_tokens": 32, "messages": [{"role": "user", "content": "Hello!"}]},
        }
    ]
}


def message_batch_endpoints(store: Store, runner: BatchRunner) -> tuple[Endpoint, ...]:
    """The endpoints of one server."""
    calls = MessageBatchCalls(store, runner)
    alone: dict[str, Any] = {"uses_model": False, "dialect": Dialect.ANTHROPIC}
    return (
        endpoint(
            f"POST {_PATH}", body=MessageBatchBody, example=_EXAMPLE, answer=MessageBatch, **alone
        )(calls.create),
        endpoint(f"GET {_PATH}", answer=MessageBatchList, **alone)(calls.list),
        endpoint(f"GET {_ONE}", answer=MessageBatch, **alone)(calls.retrieve),
        endpoint(f"DELETE {_ONE}", answer=DeletedMessageBatch, **alone)(calls.delete),
        endpoint(f"POST {_ONE}/cancel", answer=MessageBatch, **alone)(calls.cancel),
        endpoint(f"GET {_ONE}/results", **alone)(calls.results),
    )


class MessageBatchCalls:
    """The handlers of /v1/messages/batches."""

    def __init__(self, store: Store, runner: BatchRunner) -> None:
        self._batches = Batches(store)
        self._runner = runner

    async def create(self, call: Call) -> Answer:
        """Write messages behind the requests of callers"""
        body: MessageBatchBody = call.body
        lines = _lines(body)
        now = self._batches.now()
        batch = BatchState(
            id=self._batches.new_id("msgbatch"),
            endpoint=_MESSAGES,
            completion_window="24h",
            created_at=now,
            expires_at=now + _WINDOW_S,
            total=len(body.requests),
        )
        await self._batches.create(call.tenant_name, batch, lines)
        self._runner.wake()
        return _shown(batch, call)

    async def retrieve(self, call: Call) -> Answer:
        """Get a batch of messages, without its results"""
        return _shown(await self._batches.get(call.tenant_name, _id(call), MESSAGES), call)

    async def list(self, call: Call) -> Answer:
        """List batches of messages, the newest first, a page at a time"""
        query = call.query
        limit = page_limit(query, default=_PAGE, most=_MAX_PAGE)
        before, after = query.get("before_id"), query.get("after_id")
        if before is not None and after is not None:
            raise BadRequest("before_id", "before_id and after_id exclude each other")
        paging = Paging(
            limit=limit + 1,
            newest_first=before is None,
            after=after if before is None else before,
            after_name="after_id" if before is None else "before_id",
            label=MESSAGES,
        )
        found = await self._batches.page(call.tenant_name, paging)
        page = page_of([_shown(batch, call) for batch in found], limit)
        if before is not None:  # the nearest before it were found first
            page |= {
                "data": page["data"][::-1],
                "first_id": page["last_id"],
                "last_id": page["first_id"],
            }
        return MessageBatchList(**page)

    async def cancel(self, call: Call) -> Answer:
        """End a batch of messages early

        Its results so far stay.
        """
        batch = await self._batches.cancel(call.tenant_name, _id(call), MESSAGES)
        self._runner.wake()
        return _shown(batch, call)

    async def delete(self, call: Call) -> Answer:
        """Delete a batch of messages that has ended"""
        batch = await self._batches.get(call.tenant_name, _id(call), MESSAGES)
        if batch.ended_at is None:
            raise BadRequest("message_batch_id", "the batch has not ended; cancel it first")
        await self._batches.delete(call.tenant_name, batch.id)
        return DeletedMessageBatch(id=batch.id)

    async def results(self, call: Call) -> Answer:
        """Get the results of a batch of messages that has ended, one on each line"""
        batch, results = await self._batches.results(call.tenant_name, _id(call))
        if batch.ended_at is None:
            raise BadRequest("message_batch_id", "the batch has not ended; it has no results yet")
        return Response(results, media_type="application/x-jsonl")


def _id(call: Call) -> str:
    return call.path_parameters["message_batch_id"]


def _lines(body: MessageBatchBody) -> bytes:
    """The requests of a body as lines; raises `BadRequest` for the first that is not valid."""
    if not 1 <= len(body.requests) <= MAX_REQUESTS:
        raise BadRequest(
            "requests", f"requests takes 1 to {MAX_REQUESTS} requests, got {len(body.requests)}"
        )
    lines = []
    seen: set[str] = set()
    for position, request in enumerate(body.requests):
        if request.custom_id in seen:
            raise BadRequest(
                "requests", f"requests[{position}]: duplicate custom_id {request.custom_id!r}"
            )
        if request.params.get("stream"):
            raise BadRequest("requests", f"requests[{position}].params.stream must be false")
        seen.add(request.custom_id)
        line = {"custom_id": request.custom_id, "url": _MESSAGES, "body": request.params}
        lines.append(msgspec.json.encode(line))
    return b"\n".join(lines)


def _shown(batch: BatchState, call: Call) -> MessageBatch:
    ended_at = batch.ended_at
    counts = batch.counts
    if ended_at is None:
        status = "in_progress" if batch.cancelling_at is None else "canceling"
        shown = MessageCounts(processing=batch.total)
    else:
        status = "ended"
        shown = MessageCounts(
            succeeded=counts.get(COMPLETED, 0),
            errored=counts.get(FAILED, 0),
            canceled=counts.get("cancelled", 0),
            expired=counts.get("expired", 0),
        )
    return MessageBatch(
        id=batch.id,
        processing_status=status,
        request_counts=shown,
        created_at=_time(batch.created_at),
        expires_at=_time(batch.expires_at),
        ended_at=None if ended_at is None else _time(ended_at),
        cancel_initiated_at=None if batch.cancelling_at is None else _time(batch.cancelling_at),
        results_url=None if ended_at is None else f"{_origin(call)}{_PATH}/{batch.id}/results",
    )


def _time(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def _origin(call: Call) -> str:
    """The address by which the caller reached this server."""
    if call.exchange is None:
        return ""
    scope = call.exchange.scope
    return f"{scope.get('scheme', 'http')}://{call.headers.get('host', '')}{scope.get('root_path', '')}"
