"""Errors as clients see them: the tables, and what the official clients make of each row."""

import anthropic
import openai
import pytest

from tests.web.http.serving import post, raising, serving
from weft.core.errors import (
    AlreadyExists,
    BadRequest,
    Code,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineDead,
    FailedPrecondition,
    GenerationError,
    NotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from weft.web.http.endpoint import Dialect
from weft.web.http.problem import HttpError, to_http_status, to_problem


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_status(code: Code):
    """The table is total."""
    assert 400 <= to_http_status(code) < 600


@pytest.mark.parametrize("status", [400, 403, 404, 405, 408, 413, 415, 431, 503])
@pytest.mark.parametrize("dialect", list(Dialect))
def test_what_http_refuses_has_a_row(status: int, dialect: Dialect):
    """As have the statuses that no handler gives."""
    problem = to_problem(HttpError(status, "why"), "id")
    assert problem.status(dialect) in (status, 529)
    assert b"why" in problem.body(dialect, "id")


# Error, status, type, code; then the exceptions of both clients.
ROWS = [
    (BadRequest("n", "bad"), 400, "invalid_request_error", None, "BadRequestError"),
    (
        ContextLengthExceeded("prompt", "long"),
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "BadRequestError",
    ),
    (Unauthenticated("who"), 401, "authentication_error", "invalid_api_key", "AuthenticationError"),
    (HttpError(403, "no"), 403, "permission_error", "forbidden", "PermissionDeniedError"),
    (NotFound("gone"), 404, "not_found_error", "model_not_found", "NotFoundError"),
    (AlreadyExists("id"), 409, "invalid_request_error", "already_exists", "ConflictError"),
    (FailedPrecondition("x"), 409, "invalid_request_error", "failed_precondition", "ConflictError"),
    (Overloaded("full"), 429, "rate_limit_error", "rate_limit_exceeded", "RateLimitError"),
    (GenerationError("x"), 500, "server_error", "internal_error", "InternalServerError"),
    (Unsupported("x"), 400, "invalid_request_error", "unsupported", "BadRequestError"),
    (Unavailable("x"), 503, "server_error", "service_unavailable", "InternalServerError"),
    (EngineDead(), 503, "server_error", "service_unavailable", "InternalServerError"),
    (DeadlineExceeded("late"), 504, "server_error", "timeout", "InternalServerError"),
]
IDS = [type(row[0]).__name__ for row in ROWS]
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(("error", "status", "kind", "code", "name"), ROWS, ids=IDS)
async def test_openais_client_raises_its_own_error(error, status, kind, code, name):
    """Its class goes by the status, and its fields are the error object's."""
    async with serving(post("/test/completions", raising(error))) as site:
        client = openai.AsyncOpenAI(base_url=f"{site.url}/test", api_key="x", max_retries=0)
        with pytest.raises(getattr(openai, name)) as caught:
            await client.completions.create(model="m", prompt="x")
        await client.close()
    raised = caught.value
    assert isinstance(raised, openai.APIStatusError)
    assert (raised.status_code, raised.type, raised.code) == (status, kind, code)
    assert raised.param == getattr(error, "parameter", None)
    assert str(error) in raised.message
    assert ("retry-after" in raised.response.headers) == (status in (429, 503))


async def test_nobody_repeats_what_is_not_offered():
    """Both clients ask once: what the server does not have now, it does not have a second later."""
    calls: list[str] = []

    async def refuse(call):
        calls.append(call.request_id)
        raise Unsupported("x")

    endpoints = (
        post("/test/completions", refuse),
        post("/v1/messages/test-x", refuse, dialect=Dialect.ANTHROPIC),
    )
    async with serving(*endpoints) as site:
        ours = openai.AsyncOpenAI(base_url=f"{site.url}/test", api_key="x", max_retries=2)
        with pytest.raises(openai.BadRequestError):
            await ours.completions.create(model="m", prompt="x")
        theirs = anthropic.AsyncAnthropic(base_url=site.url, api_key="x", max_retries=2)
        with pytest.raises(anthropic.BadRequestError):
            await theirs.post("/v1/messages/test-x", body={}, cast_to=object)
        await ours.close()
        await theirs.close()
    assert len(calls) == 2


ANTHROPIC_NAMES = {
    500: ("InternalServerError", "api_error"),
    503: ("OverloadedError", "overloaded_error"),
    504: ("GatewayTimeoutError", "timeout_error"),
}


@pytest.mark.parametrize(("error", "status", "kind", "_code", "name"), ROWS, ids=IDS)
async def test_anthropics_client_raises_its_own_error(error, status, kind, _code, name):
    """503 is 529 there, and every error object has the request's id."""
    name, kind = ANTHROPIC_NAMES.get(status, (name, kind))
    async with serving(
        post("/v1/messages/test-x", raising(error), dialect=Dialect.ANTHROPIC)
    ) as site:
        client = anthropic.AsyncAnthropic(base_url=site.url, api_key="x", max_retries=0)
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.post("/v1/messages/test-x", body={}, cast_to=object)
        await client.close()
    raised = caught.value
    assert type(raised).__name__ == name
    assert raised.status_code == (529 if status == 503 else status)
    assert isinstance(raised.body, dict)
    assert raised.body["type"] == "error"
    assert raised.body["error"] == {"type": kind, "message": str(error)}
    assert raised.body["request_id"] == raised.response.headers["x-request-id"]


async def test_what_cannot_succeed_is_not_tried_again():
    """Both clients repeat 409 and what ends in 5xx, unless they are told that it is in vain."""
    calls = []

    async def count(_call):
        calls.append(1)
        raise FailedPrecondition("never")

    async with serving(post("/test/completions", count)) as site:
        client = openai.AsyncOpenAI(base_url=f"{site.url}/test", api_key="x", max_retries=2)
        with pytest.raises(openai.ConflictError):
            await client.completions.create(model="m", prompt="x")
        await client.close()
    assert len(calls) == 1


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_an_error_of_ours_shows_nothing_of_its_inside(caplog, dialect):
    """An id to look for; the traceback is in the log, once."""
    error = KeyError("secret at 0x7f0000")
    async with serving(post("/boom", raising(error), dialect=dialect)) as site:
        answer = await site.http.post("/boom", json={})
        await site.check_canary()
    [record] = [r for r in caplog.records if r.levelname == "ERROR"]
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    written = answer.json()
    error = written if dialect is Dialect.COHERE else written["error"]
    text = error if dialect is Dialect.OLLAMA else error["message"]
    assert text.startswith("internal error, id=")
    assert record.exc_info is not None
    assert record.getMessage().split()[1] in answer.text


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")], ids=str)
def test_want_of_memory_is_for_a_retry(error):
    """The caller did nothing wrong, and another server or a later moment may have memory."""
    problem = to_problem(error, "id")
    assert problem.status(Dialect.OPENAI) == 503
    assert problem.headers["retry-after"] == "1"
    assert "memory" in problem.message
