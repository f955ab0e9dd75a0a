"""/v1/files: files of requests and answers, stored, listed, read and deleted."""

import msgspec
from starlette.responses import Response

from weft.core.errors import BadRequest, NotFound
from weft.schema.batches import DeletedFile, ExpiresAfter, FileForm, FileList, FileObject
from weft.web.batches.stored_batch import DEFAULT_FILE_TTL_S, FILE_KIND, add_file
from weft.web.http.endpoint import Answer, Call, Endpoint, endpoint
from weft.web.inference.paging import is_newest_first, page_limit, page_of
from weft.web.store.database import Store
from weft.web.store.stored_object import Paging, StoredObject

_PATH = "/v1/files"
_ONE = "/v1/files/{file_id}"
# Other purposes are of features that this server does not have.
_PURPOSES = ("batch", "user_data")
_MAX_PAGE = 10_000
_MIN_TTL_S, _MAX_TTL_S = 3600, 30 * 24 * 3600


def file_endpoints(store: Store) -> tuple[Endpoint, ...]:
    """The endpoints of one server."""
    calls = FileCalls(store)
    alone = {"uses_model": False}
    return (
        endpoint(f"POST {_PATH}", body=FileForm, is_form=True, answer=FileObject, **alone)(
            calls.create
        ),
        endpoint(f"GET {_PATH}", answer=FileList, **alone)(calls.list),
        endpoint(f"GET {_ONE}", answer=FileObject, **alone)(calls.retrieve),
        endpoint(f"DELETE {_ONE}", answer=DeletedFile, **alone)(calls.delete),
        endpoint(f"GET {_ONE}/content", **alone)(calls.content),
    )


def file_ttl_s(given: ExpiresAfter | None, name: str) -> int | None:
    """The checked seconds that a file is stored; None if nothing is said."""
    if given is None:
        return None
    if given.anchor != "created_at":
        raise BadRequest(name, f'{name}.anchor must be "created_at", got {given.anchor[:40]!a}')
    if not _MIN_TTL_S <= given.seconds <= _MAX_TTL_S:
        raise BadRequest(
            name, f"{name}.seconds must be {_MIN_TTL_S} to {_MAX_TTL_S}, got {given.seconds}"
        )
    return given.seconds


class FileCalls:
    """The handlers of /v1/files."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, call: Call) -> Answer:
        """Store a file"""
        form: FileForm = call.body
        if form.purpose not in _PURPOSES:
            raise BadRequest(
                "purpose", f"purpose must be {' or '.join(_PURPOSES)}, got {form.purpose[:40]!a}"
            )
        ttl_s = file_ttl_s(_expires_after(form), "expires_after")
        if ttl_s is None and form.purpose == "batch":
            ttl_s = DEFAULT_FILE_TTL_S
        file, purpose = form.file, form.purpose
        record = await self._store.run(
            lambda tables: add_file(
                tables, call.tenant_name, file.name, purpose, file.content, ttl_s=ttl_s
            )
        )
        return _shown(record)

    async def list(self, call: Call) -> Answer:
        """List files, a page at a time

        The newest first, unless `order` says otherwise.
        """
        query = call.query
        limit = page_limit(query, default=_MAX_PAGE, most=_MAX_PAGE)
        paging = Paging(
            limit=limit + 1,  # one more, to see whether there is another page
            newest_first=is_newest_first(query),
            after=query.get("after"),
            label=query.get("purpose"),
        )
        found = await self._store.run(
            lambda tables: tables.page(FILE_KIND, call.tenant_name, paging)
        )
        return FileList(**page_of([_shown(record) for record in found], limit))

    async def retrieve(self, call: Call) -> Answer:
        """Get a file's properties"""
        file_id = call.path_parameters["file_id"]
        record = await self._store.run(
            lambda tables: tables.head(FILE_KIND, call.tenant_name, file_id)
        )
        if record is None:
            raise no_file(file_id)
        return _shown(record)

    async def content(self, call: Call) -> Answer:
        """Get the content of a file"""
        file_id = call.path_parameters["file_id"]
        record = await self._store.run(
            lambda tables: tables.get(FILE_KIND, call.tenant_name, file_id)
        )
        if record is None:
            raise no_file(file_id)
        return Response(record.content, media_type="application/octet-stream")

    async def delete(self, call: Call) -> Answer:
        """Delete a file

        A batch that was made of it goes on.
        """
        file_id = call.path_parameters["file_id"]
        is_deleted = await self._store.run(
            lambda tables: tables.delete(FILE_KIND, call.tenant_name, file_id)
        )
        if not is_deleted:
            raise no_file(file_id)
        return DeletedFile(id=file_id)


def no_file(file_id: str) -> NotFound:
    """The error for an id that no file has."""
    return NotFound(f"there is no file {file_id[:64]!a}", "file_id")


def _shown(record: StoredObject) -> FileObject:
    return msgspec.json.decode(record.head, type=FileObject)


def _expires_after(form: FileForm) -> ExpiresAfter | None:
    if form.expires_after_seconds is None and form.expires_after_anchor is None:
        return None
    if form.expires_after_seconds is None:
        raise BadRequest("expires_after", "expires_after needs seconds")
    return ExpiresAfter(
        anchor=form.expires_after_anchor or "created_at", seconds=form.expires_after_seconds
    )
