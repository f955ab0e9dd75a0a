"""A body of type multipart/form-data: fields as text, files as bytes, within limits, and never on a disk."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from functools import cache
from io import BytesIO
from types import MappingProxyType
from typing import Any, cast

import msgspec
from msgspec import inspect
from python_multipart.exceptions import FormParserError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from weft.core.checks.json_pieces import SLICE_BYTES
from weft.core.errors import BadRequest
from weft.core.values.unicode import check_text
from weft.schema.batches import NamedFile

FORM = "multipart/form-data"
_MAX_FIELDS = 256
_MAX_FIELD_BYTES = 2**18
_MAX_NAME_CHARS = 255
_PLACE = re.compile(r" - at `\$\.(.*?)(?:\[(?:\d+|\.\.\.)\])?`$")
_QUOTED = re.compile(r"`([^`]*)`")
_LIST = "[]"  # a field whose name ends like this may be repeated


class _Parser(MultiPartParser):
    spool_max_size = 2**62  # uploaded files stay in memory, and are never written to disk
    is_complete = False

    def on_end(self) -> None:
        self.is_complete = True

    def close(self) -> None:
        """Closes the files, including an incomplete one."""
        for file in self._files_to_close_on_error:
            file.close()


async def decode_form(body: bytes, content_type: str, kind: Any) -> tuple[Any, list[str]]:
    """Decodes `body` as a `kind`; also returns the names of its fields. `BadRequest` names the invalid field."""
    values = await _read(body, content_type)
    for name, is_named in _files(kind).items():
        found = values.get(name)
        if name in values and not isinstance(found, NamedFile):
            raise BadRequest(name, f"{name} must be a file: a part with a filename")
        if isinstance(found, NamedFile) and not is_named:
            values[name] = found.content
    try:
        # Form fields are text, so numbers and booleans are converted.
        value = msgspec.convert(values, kind, strict=False, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        text = str(error)
        if place := _PLACE.search(text):
            raise BadRequest(place[1], f"{place[1]}: {text[: place.start()]}") from None
        raise BadRequest(_QUOTED.findall(text)[-1], text) from None
    return value, list(values)


@cache
def _files(kind: Any) -> Mapping[str, bool]:
    """Fields that are files; True for those that are stored with the name of the file (`NamedFile`)."""
    fields = cast(inspect.StructType, inspect.type_info(kind)).fields
    kinds = {
        each.encode_name: each.type.type if isinstance(each.type, inspect.Metadata) else each.type
        for each in fields
    }
    return MappingProxyType(
        {
            name: isinstance(one, inspect.StructType)
            for name, one in kinds.items()
            if isinstance(one, inspect.BytesType | inspect.StructType)
        }
    )


async def _read(body: bytes, content_type: str) -> dict[str, Any]:
    """Text of each field, bytes of each file."""
    parser = _Parser(
        Headers({"content-type": content_type}),
        _slices(body),
        max_files=1,
        max_fields=_MAX_FIELDS,
        max_part_size=_MAX_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError, UnicodeDecodeError) as error:
        reason = getattr(error, "message", "it cannot be read")
        raise BadRequest(None, f"the form is not {FORM}: {reason}") from None
    try:
        if not parser.is_complete:
            raise BadRequest(None, "the form ends before its last boundary")
        values: dict[str, Any] = {}
        for name, part in form.multi_items():
            _add(values, name, _content(name, part))
        return values
    finally:
        parser.close()


def _content(name: str, part: UploadFile | str) -> NamedFile | str:
    if isinstance(part, UploadFile):
        file_name = part.filename or ""
        check_text(name, file_name)
        return NamedFile(file_name[-_MAX_NAME_CHARS:], _memory(part).getvalue())
    check_text(name, part)
    return part


def _memory(part: UploadFile) -> BytesIO:
    """Returns the buffer of an uploaded file. Its `getvalue` does not copy the bytes, as `part.read` would in one long
    step.
    """
    return cast(BytesIO, part.file._file)  # type: ignore[attr-defined]  # of `SpooledTemporaryFile`


def _add(values: dict[str, Any], name: str, content: NamedFile | str) -> None:
    if name.endswith(_LIST):
        values.setdefault(name, []).append(content)
    elif name in values:
        raise BadRequest(name[:100], f"duplicate field {name[:100]!r}")
    else:
        values[name] = content


async def _slices(body: bytes) -> AsyncGenerator[bytes, None]:
    """Yields the body in slices; other tasks get a turn after each."""
    view = memoryview(body)
    for start in range(0, len(body), SLICE_BYTES):
        yield bytes(view[start : start + SLICE_BYTES])
        await asyncio.sleep(0)
