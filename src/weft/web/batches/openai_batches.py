"""/v1/batches: OpenAI's batches of the requests in a file."""

import re

from weft.core.errors import BadRequest
from weft.schema.batches import (
    BatchBody,
    BatchErrors,
    BatchList,
    BatchObject,
    BatchOutputDetails,
    BatchUsage,
    RequestCounts,
)
from weft.schema.usage import PromptTokensDetails
from weft.web.batches.batch_runner import BatchRunner
from weft.web.batches.stored_batch import (
    COMPLETED,
    DEFAULT_FILE_TTL_S,
    FAILED,
    FILE_KIND,
    REQUESTS,
    Batches,
    BatchState,
)
from weft.web.batches.stored_files import file_ttl_s, no_file
from weft.web.http.endpoint import Answer, Call, Endpoint, endpoint
from weft.web.inference.paging import page_limit, page_of
from weft.web.responses.unsupported import check_metadata
from weft.web.store.database import Store
from weft.web.store.stored_object import Paging

_PATH = "/v1/batches"
_ONE = "/v1/batches/{batch_id}"
_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
_WINDOW = re.compile(r"(\d{1,3})h")
_MAX_HOURS = 168
_PAGE, _MAX_PAGE = 20, 100
_EXAMPLE = {
    "input_file_id": "file-abc",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}


def batch_endpoints(store: Store, runner: BatchRunner) -> tuple[Endpoint, ...]:
    """The endpoints of one server."""
    calls = BatchCalls(store, runner)
    alone = {"uses_model": False}
    return (
        endpoint(f"POST {_PATH}", body=BatchBody, example=_EXAMPLE, answer=BatchObject, **alone)(
            calls.create
        ),
        endpoint(f"GET {_PATH}", answer=BatchList, **alone)(calls.list),
        endpoint(f"GET {_ONE}", answer=BatchObject, **alone)(calls.retrieve),
        endpoint(f"POST {_ONE}/cancel", answer=BatchObject, **alone)(calls.cancel),
    )


class BatchCalls:
    """The handlers of /v1/batches."""

    def __init__(self, store: Store, runner: BatchRunner) -> None:
        self._store = store
        self._batches = Batches(store)
        self._runner = runner

    async def create(self, call: Call) -> Answer:
        """Run the requests of a file behind the requests of callers"""
        body: BatchBody = call.body
        if body.endpoint not in _ENDPOINTS:
            raise BadRequest(
                "endpoint",
                f"endpoint must be one of {', '.join(_ENDPOINTS)}, got {body.endpoint[:64]!a}",
            )
        hours = _hours(body.completion_window)
        check_metadata(body.metadata or {})
        ttl_s = file_ttl_s(body.output_expires_after, "output_expires_after")
        file_id = body.input_file_id
        file = await self._store.run(
            lambda tables: tables.get(FILE_KIND, call.tenant_name, file_id)
        )
        if file is None:
            raise no_file(file_id)
        if file.label != "batch":
            raise BadRequest(
                "input_file_id",
                f'input_file_id must be a file with the purpose "batch", not {file.label!r}',
            )
        now = self._batches.now()
        batch = BatchState(
            id=self._batches.new_id("batch"),
            endpoint=body.endpoint,
            input_file_id=file_id,
            completion_window=body.completion_window,
            metadata=body.metadata or {},
            file_ttl_s=ttl_s or DEFAULT_FILE_TTL_S,
            created_at=now,
            expires_at=now + hours * 3600,
        )
        await self._batches.create(call.tenant_name, batch, file.content)
        self._runner.wake()
        return to_object(batch)

    async def retrieve(self, call: Call) -> Answer:
        """Get a batch, with the numbers of requests that were answered"""
        batch_id = call.path_parameters["batch_id"]
        return to_object(await self._batches.get(call.tenant_name, batch_id, REQUESTS))

    async def list(self, call: Call) -> Answer:
        """List batches, the newest first, a page at a time"""
        limit = page_limit(call.query, default=_PAGE, most=_MAX_PAGE)
        paging = Paging(
            limit=limit + 1, newest_first=True, after=call.query.get("after"), label=REQUESTS
        )
        found = await self._batches.page(call.tenant_name, paging)
        return BatchList(**page_of([to_object(batch) for batch in found], limit))

    async def cancel(self, call: Call) -> Answer:
        """End a batch early

        Its answers so far become files. A batch that has ended stays as it is.
        """
        batch_id = call.path_parameters["batch_id"]
        batch = await self._batches.cancel(call.tenant_name, batch_id, REQUESTS)
        self._runner.wake()
        return to_object(batch)


def _hours(window: str) -> int:
    match = _WINDOW.fullmatch(window)
    hours = 0 if match is None else int(match[1])
    if not 1 <= hours <= _MAX_HOURS:
        raise BadRequest(
            "completion_window",
            f'completion_window must be "1h" to "{_MAX_HOURS}h", such as "24h"; got {window[:40]!a}',
        )
    return hours


def to_object(batch: BatchState) -> BatchObject:
    """The batch as OpenAI's API shows it."""
    tokens, ended_at = batch.tokens, batch.ended_at

    def at(status: str) -> int | None:
        return ended_at if batch.status == status else None

    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        errors=BatchErrors(data=batch.errors) if batch.errors else None,
        input_file_id=batch.input_file_id,
        completion_window=batch.completion_window,
        status=batch.status,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=batch.created_at,
        in_progress_at=batch.begun_at,
        expires_at=batch.expires_at,
        finalizing_at=at("completed"),
        completed_at=at("completed"),
        failed_at=at("failed"),
        expired_at=at("expired"),
        cancelling_at=batch.cancelling_at,
        cancelled_at=at("cancelled"),
        request_counts=RequestCounts(
            total=batch.total,
            completed=batch.counts.get(COMPLETED, 0),
            failed=batch.counts.get(FAILED, 0),
        ),
        usage=None
        if tokens is None
        else BatchUsage(
            input_tokens=tokens.num_in,
            input_tokens_details=PromptTokensDetails(cached_tokens=tokens.num_cached),
            output_tokens=tokens.num_out,
            output_tokens_details=BatchOutputDetails(reasoning_tokens=tokens.num_reasoning),
            total_tokens=tokens.num_in + tokens.num_out,
        ),
        metadata=batch.metadata,
    )
