"""`weft batch`: answers the requests of a batch file, with an engine that the command starts or with a running
server.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import httpx2
import msgspec

from weft.cli.arguments.settings import wrong_key
from weft.cli.batch.file import AnswerFile, read_requests
from weft.cli.chat.connect import handle_interrupts
from weft.cli.commands import EXIT_FAILED
from weft.cli.options import BatchOptions, LoadOptions, ServeOptions
from weft.cli.serving.finding import find
from weft.cli.serving.loading import load
from weft.cli.serving.servers import DEFAULT_MODEL
from weft.core.aio.pauses import Pauses
from weft.core.aio.tasks import gather_all
from weft.core.client import EngineClient
from weft.core.errors import ConfigError
from weft.core.observe.log import configure_logging
from weft.core.observe.metrics import Metrics
from weft.core.observe.terminal import say
from weft.core.values.declare import refuse_unused
from weft.web.batches.batch_lines import BatchRequest, BatchResponse
from weft.web.http.app import HttpApp, Router
from weft.web.http.endpoint import Access
from weft.web.http.options import HttpOptions
from weft.web.http.state import ServerState
from weft.web.inside import TRANSIENT

_PROGRESS_S = 5.0
_CONNECT_TIMEOUT_S = 10.0
_PAUSES_S = (0.5, 30.0)  # first and longest pause before a retry
_LONGEST_WAIT_S = 600.0  # upper limit of a pause that a server requests


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


_usages = msgspec.json.Decoder(_Answer)


@dataclass(slots=True)
class BatchCounts:
    """Numbers of requests and tokens so far, for the progress lines."""

    total: int
    answered: int = 0
    refused: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def count(self, status: int, body: bytes) -> None:
        """Adds a response to the counts. A status of 400 or above counts as refused."""
        self.answered += 1
        self.refused += status >= httpx2.codes.BAD_REQUEST
        try:
            usage = _usages.decode(body).usage
        except msgspec.MsgspecError:
            return  # a response of a kind without token counts
        if usage is not None:
            self.tokens_in += usage.prompt_tokens
            self.tokens_out += usage.completion_tokens or 0

    def __str__(self) -> str:
        refused = f", {self.refused} of them refused" if self.refused else ""
        return (
            f"{self.answered} of {self.total} answered{refused}; "
            f"{self.tokens_in} tokens in, {self.tokens_out} out"
        )


def batch(model: str | None, options: BatchOptions) -> int:
    """Answers all requests of the input file that have no answer in the output file yet; returns the exit status."""
    configure_logging("warning")
    _check(model, options)
    bad_lines: list[str] = []
    skip = bad_lines.append if options.skip_bad_lines else None
    known = {request.custom_id for request in read_requests(options.input_file, skip)}
    for sentence in bad_lines:
        say(f"skipped: {sentence}", file=sys.stderr)
    answers = AnswerFile(options.output_file, known)
    tally = BatchCounts(total=len(known), answered=len(answers.answered))
    handle_interrupts()
    try:
        asyncio.run(_answer_all(model, options, answers, tally))
    finally:
        answers.close()
        say(str(tally), file=sys.stderr)
    if tally.answered < tally.total:
        left = tally.total - tally.answered
        say(
            f"requests without an answer: {left}; run the same command again to continue with them",
            file=sys.stderr,
        )
        return EXIT_FAILED
    return EXIT_FAILED if bad_lines else 0


def _check(model: str | None, options: BatchOptions) -> None:
    if options.max_concurrency < 1:
        raise ConfigError(f"--max-concurrency must be at least 1, not {options.max_concurrency}")
    if options.max_tries < 1:
        raise ConfigError(f"--max-tries must be at least 1, not {options.max_tries}")
    if options.url is None:
        if options.api_key is not None:
            raise ConfigError("--api-key needs --url")
        return
    if not options.url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must be http://HOST:PORT, not {options.url}")
    if model is not None:
        raise ConfigError(
            "MODEL and --url exclude each other: the server at --url has its own model"
        )
    refuse_unused(
        options, LoadOptions(), [field.name for field in fields(LoadOptions)], "with --url"
    )


async def _answer_all(
    model: str | None, options: BatchOptions, answers: AnswerFile, tally: BatchCounts
) -> None:
    requests = read_requests(options.input_file, _ignore if options.skip_bad_lines else None)
    left = (request for request in requests if request.custom_id not in answers.answered)
    if tally.answered == tally.total:
        return
    opened = _engine(model, options) if options.url is None else _server(options)
    async with opened as target:
        work = _Work(target, left, answers, tally, options.max_tries)
        reporting = asyncio.create_task(_report(tally))
        try:
            await gather_all([work.run() for _ in range(options.max_concurrency)])
        finally:
            reporting.cancel()


def _ignore(_: str) -> None:
    """Drops the report of an invalid line: the first reading of the file has reported all invalid lines."""


async def _report(tally: BatchCounts) -> None:
    while True:
        await asyncio.sleep(_PROGRESS_S)
        say(str(tally), file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Target:
    """The server or engine that answers the requests. `check` gets the status of each response and raises an error if
    all further requests would fail too.
    """

    http: httpx2.AsyncClient
    check: Callable[[int], None]


class _Work:
    """The requests without an answer, shared by the tasks that send them."""

    def __init__(
        self,
        target: _Target,
        left: Iterator[BatchRequest],
        answers: AnswerFile,
        tally: BatchCounts,
        max_tries: int,
    ) -> None:
        self._target = target
        self._left = left
        self._answers = answers
        self._tally = tally
        self._max_tries = max_tries

    async def run(self) -> None:
        """Sends requests and writes their answers until no request is left."""
        for request in self._left:
            response = await self._answer(request)
            if response is not None:
                self._answers.write(request.custom_id, response)
                self._tally.count(response.status_code, bytes(response.body))

    async def _answer(self, request: BatchRequest) -> BatchResponse | None:
        pauses = Pauses(*_PAUSES_S)
        for left in reversed(range(self._max_tries)):
            answer = await self._send(request)
            self._target.check(0 if answer is None else answer.status_code)
            if answer is not None and answer.status_code not in TRANSIENT:
                return _to_response(answer)
            if left:
                await asyncio.sleep(max(pauses.next_s(), wanted_pause_s(answer)))
        return None

    async def _send(self, request: BatchRequest) -> httpx2.Response | None:
        try:
            return await self._target.http.post(
                request.url,
                content=bytes(request.body),
                headers={"content-type": "application/json"},
            )
        except httpx2.TransportError:
            return None


def wanted_pause_s(answer: httpx2.Response | None) -> float:
    """Returns the seconds of the response's Retry-After header, at most `_LONGEST_WAIT_S`; 0 without such a header."""
    seconds = "" if answer is None else answer.headers.get("retry-after", "")
    return min(float(seconds), _LONGEST_WAIT_S) if seconds.isdecimal() else 0.0


def _to_response(answer: httpx2.Response) -> BatchResponse:
    body = answer.content
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError):
        # An error page of a gateway, not JSON: it is written as a JSON string.
        body = msgspec.json.encode(answer.text)
    return BatchResponse(
        status_code=answer.status_code,
        request_id=answer.headers.get("x-request-id", ""),
        body=msgspec.Raw(body),
    )


@asynccontextmanager
async def _server(options: BatchOptions) -> AsyncIterator[_Target]:
    assert options.url is not None
    key = options.api_key
    async with httpx2.AsyncClient(
        base_url=options.url.rstrip("/"),
        headers={} if key is None else {"authorization": f"Bearer {key}"},
        timeout=httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S),
        limits=httpx2.Limits(max_connections=options.max_concurrency),
    ) as http:
        yield _Target(http, partial(_check_key, key))


def _check_key(key: str | None, status: int) -> None:
    """Raises an error if the status says that the API key is refused: the server would refuse all further
    requests too.
    """
    if status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
        raise wrong_key(key)


@asynccontextmanager
async def _engine(model: str | None, options: BatchOptions) -> AsyncIterator[_Target]:
    """Starts an engine in this process and yields its HTTP APIs, which are called without a network port. Requests pass
    the same checks as in a server.
    """
    common: dict[str, Any] = {
        field.name: getattr(options, field.name) for field in fields(LoadOptions)
    }
    serve = ServeOptions(**common, grpc=False)
    started = time.monotonic()
    found = await asyncio.to_thread(find, model or DEFAULT_MODEL, serve)
    loaded = await asyncio.to_thread(load, found, serve)
    metrics = Metrics()
    client = await loaded.start_engine(metrics)
    try:
        state = ServerState(metrics.registry, started)
        served, endpoints = loaded.serve_over_http(client, state)
        app = HttpApp(state, HttpOptions(), Router(()))
        router = Router(endpoint for endpoint in endpoints if endpoint.access is Access.API)
        app.open(router)
        app.take_prompts_of(client.model_config.max_model_len)
        state.open(served)
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1", timeout=None
        ) as http:
            yield _Target(http, partial(_check_engine, client))
    finally:
        client.shutdown()
        await client.wait_closed()


def _check_engine(client: EngineClient, _status: int) -> None:
    if client.errored:
        raise client.dead_error
