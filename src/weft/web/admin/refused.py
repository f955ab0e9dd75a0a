"""Paths of other servers' APIs that this server refuses, with the reason."""

from typing import Any

from weft.web.http.app import dialect_of
from weft.web.http.endpoint import Access, Answer, Call, Endpoint
from weft.web.http.problem import HttpError

_ONE_MODEL = "the server has the model that it was started with"
_API = (
    ("POST", "/v1/audio/speech", "speech is not supported: the model writes text only"),
    ("POST", "/v1/images/generations", "images are not supported: the model writes text only"),
    ("POST", "/api/pull", f"pulling models is not supported: {_ONE_MODEL}"),
    ("POST", "/api/push", f"pushing models is not supported: {_ONE_MODEL}"),
    ("POST", "/api/create", f"creating models is not supported: {_ONE_MODEL}"),
    ("POST", "/api/copy", f"copying models is not supported: {_ONE_MODEL}"),
    ("DELETE", "/api/delete", f"deleting models is not supported: {_ONE_MODEL}"),
    ("POST", "/api/blobs/{digest}", f"storing files is not supported: {_ONE_MODEL}"),
)
_NO_VERSIONS = (
    "versions of weights are not supported; POST /finish_weight_update serves new weights"
)
_NO_FAULTS = "fault tolerance is not supported; --engine-restarts starts engines that end again"
_DERENDER = "reading token ids back as answers is not supported"
_NO_SOURCES = "listing sources of cache events is not supported; --kv-events-config sets them"
_NO_ENGINE = "ending a weight transfer is not supported here; POST /finish_weight_update ends it"
_NO_RELEASE = "releasing the KV pool alone is not supported; use POST /sleep"
# Calls of vLLM's server that this server does not have.
_VLLM = (
    ("POST", "/v1/chat/completions/derender", f"{_DERENDER}; use /v1/chat/completions"),
    ("POST", "/v1/completions/derender", f"{_DERENDER}; use /detokenize"),
    ("GET", "/kv_event_sources", _NO_SOURCES),
    ("GET", "/weight_info", _NO_VERSIONS),
    ("POST", "/update_weight_version", _NO_VERSIONS),
    ("POST", "/weight_checker", "checksums of weights are not supported"),
    ("POST", "/start_draft_weight_update", "replacing a draft model's weights is not supported"),
    ("POST", "/shutdown_weight_transfer_engine", _NO_ENGINE),
    ("POST", "/release_kv_cache_memory", _NO_RELEASE),
    ("GET", "/fault_tolerance/status", _NO_FAULTS),
    ("POST", "/fault_tolerance/apply", _NO_FAULTS),
)


def _refused(row: tuple[str, str, str]) -> Endpoint:
    method, path, message = row

    async def refuse(_call: Call) -> Answer:
        raise HttpError(404, message, code="unsupported")

    summary = f"Refused: {message}."
    fields: dict[str, Any] = {"method": method, "path": path, "dialect": dialect_of(path.encode())}
    fields["uses_model"] = False
    return Endpoint(handler=refuse, summary=summary, is_refused=True, access=Access.API, **fields)


ENDPOINTS = tuple(_refused(row) for row in (*_API, *_VLLM))
