"""`/openapi.json`, generated from the endpoints, so that the description always matches the server."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from weft import __version__
from weft.web.http.body import JSON
from weft.web.http.endpoint import Access, Dialect, Endpoint
from weft.web.http.form import FORM
from weft.web.http.problem import AnthropicError, CohereError, OllamaError, OpenAiError

_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")
_WORD = re.compile(r"\w+")
_KEYS = {Access.API: ("bearer", "key"), Access.CONTROL: ("control",)}
_ERROR_TYPES = {
    Dialect.OPENAI: OpenAiError,
    Dialect.ANTHROPIC: AnthropicError,
    Dialect.OLLAMA: OllamaError,
    Dialect.COHERE: CohereError,
}
_TEMPLATE = "#/components/schemas/{name}"


def describe(endpoints: Sequence[Endpoint], model: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document, whose examples name `model`."""
    kinds = list(_kinds(endpoints))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    schema_by_kind = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        operation = _operation(endpoint, schema_by_kind, model)
        paths.setdefault(path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Weft", "version": __version__},
        "tags": [{"name": name} for name in dict.fromkeys(each.group for each in endpoints)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "control": {"type": "http", "scheme": "bearer", "description": "A control key."},
            },
        },
    }


def _kinds(endpoints: Iterable[Endpoint]) -> Iterable[Any]:
    yield from _ERROR_TYPES.values()
    seen: set[str] = set()
    for endpoint in endpoints:
        for kind in (endpoint.body, endpoint.answer, endpoint.event):
            if kind is not None and repr(kind) not in seen:
                seen.add(repr(kind))
                yield kind


def _operation(endpoint: Endpoint, schema_by_kind: dict[str, Any], model: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.group],
    }
    if endpoint.access in _KEYS:
        operation["security"] = [{name: []} for name in _KEYS[endpoint.access]]
    if names := _PARAMETER.findall(endpoint.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            | ({"example": model} if name == "model" else {})
            for name in names
        ]
    if endpoint.body is not None:
        schema = schema_by_kind[repr(endpoint.body)]
        has_model = "model" in getattr(endpoint.body, "__struct_fields__", ())
        named = {"model": model} if has_model else {}
        example = {"example": {**named, **(endpoint.example or {})}}
        content = (
            {FORM: {"schema": schema}}
            if endpoint.is_form
            else {JSON: {"schema": schema, **example}}
        )
        operation["requestBody"] = {"required": True, "content": content}
    operation["responses"] = _responses(endpoint, schema_by_kind)
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    """A name for generated clients: that of the method and the path."""
    return "_".join([endpoint.method.lower(), *_WORD.findall(endpoint.path.replace(":path", ""))])


def _responses(endpoint: Endpoint, schema_by_kind: dict[str, Any]) -> dict[str, Any]:
    kind = _ERROR_TYPES[endpoint.dialect]
    error = {"description": "An error.", "content": _json(schema_by_kind[repr(kind)])}
    refusal = {**error, "description": "A feature that this server or its model does not have."}
    if endpoint.is_refused:
        return {"404": refusal, "default": error}
    if endpoint.socket is not None:
        return {"101": {"description": "The session, as a WebSocket."}, "default": error}
    answers: dict[str, Any] = {}
    if endpoint.answer is not None:
        answers |= _json(schema_by_kind[repr(endpoint.answer)])
    if endpoint.event is not None:
        either = {"anyOf": [schema_by_kind[repr(endpoint.event)], schema_by_kind[repr(kind)]]}
        if endpoint.dialect is Dialect.OLLAMA:
            answers["application/x-ndjson"] = {"schema": _lines(either)}
        else:
            answers["text/event-stream"] = {"schema": _event(either)}
    success = {"description": "The answer."} | ({"content": answers} if answers else {})
    return {"200": success, "default": error}


def _lines(schema: Any) -> dict[str, Any]:
    """Schema of a stream of lines, each JSON of the given schema."""
    return {"type": "string", "contentMediaType": "application/x-ndjson", "contentSchema": schema}


def _event(schema: Any) -> dict[str, Any]:
    """Schema of a stream event whose data is JSON of the given schema, or the end mark "[DONE]"."""
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
    data = {"anyOf": [{"const": "[DONE]"}, text]}
    return {
        "type": "object",
        "properties": {"event": {"type": "string"}, "data": data},
        "required": ["data"],
    }


def _json(schema: Any) -> dict[str, Any]:
    return {JSON: {"schema": schema}}
