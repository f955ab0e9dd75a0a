"""Requests whose engine ends go on at another engine, from the tokens that their answers have.

The stream of a request lives with the caller and outlasts the engine. It has all tokens so far, the text, and what was
searched for stop strings. Another engine gets the request with these tokens and computes their KV, as for a preempted
sequence; so the whole answer equals that of an undisturbed run, bit for bit.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from weft.core.errors import EngineDead, EngineDrained, EngineLost
from weft.core.values.kv_transfer import KEY, GivenAnswer, Resumption, remote_prompt
from weft.core.values.types import FinishReason, LogprobRow, Request, SamplingParams, SequenceOutput

OutputT_co = TypeVar("OutputT_co", covariant=True)

# Separates the engine's id of a request from the number of the resumption. Outputs of a lost engine that arrive late
# have another id, and are ignored.
_SEPARATOR = "+"
# Maximum time for which a request waits for an engine.
RESUME_S = 300.0


class ResumableStream(Protocol[OutputT_co]):
    """A stream whose request can continue at another engine."""

    @property
    def is_finished(self) -> bool:
        """True if no more output will come."""

    def hand_over(self) -> list[GivenAnswer | None]:
        """Returns the answers so far; None for an answer that has ended."""

    def pop(self) -> OutputT_co | None:
        """Returns the new output for the caller; None if there is nothing to emit yet."""


async def run_on(
    request: Request,
    stream: ResumableStream[OutputT_co],
    run: Callable[[Request], AsyncGenerator[OutputT_co, None]],
) -> AsyncGenerator[OutputT_co, None]:
    """Yields the outputs of a request that `run` runs on an engine. Whenever this engine is lost or drained, `run` gets
    the rest of the request.
    """
    while True:
        try:
            async with aclosing(run(request)) as outputs:
                async for output in outputs:
                    yield output
            return
        except EngineLost as lost:
            lent = lost.lent if isinstance(lost, EngineDrained) else None
            is_lost = not isinstance(lost, EngineDrained)
            request = resumed(
                request, stream, is_lost=is_lost, fingerprint=lost.fingerprint, lent=lent
            )
        if (late := stream.pop()) is not None:  # tokens that the reader has not got yet
            yield late
        if stream.is_finished:  # the server was lost after the last token
            return


def resumed(
    request: Request,
    stream: ResumableStream[OutputT_co],
    *,
    is_lost: bool = True,
    fingerprint: str = "",
    lent: dict[str, Any] | None = None,
) -> Request:
    """Returns the rest of a request whose engine was lost, or was drained. Only servers with the `fingerprint` may
    continue it. A drained engine may have `lent` its blocks.
    """
    before, answers = request.resumption, stream.hand_over()
    now = Resumption(answers=answers, fingerprint=fingerprint, num_losses=int(is_lost))
    if before is not None:
        state = (before.num_open_answers, before.num_tokens)
        has_advanced = (now.num_open_answers, now.num_tokens) != state
        now = msgspec.structs.replace(
            now,
            number=before.number + 1,
            num_losses=is_lost + (0 if has_advanced else before.num_losses),
        )
    return msgspec.structs.replace(
        request,
        engine_id=f"{first_engine_id(request)}{_SEPARATOR}{now.number}",
        data_parallel_rank=None,  # any engine gives the same answer
        params=_with_blocks(_without_remote_prompt(request.params), lent),
        resumption=now,
    )


def first_engine_id(request: Request) -> str:
    """Returns the id that a request had at its first engine."""
    if request.resumption is None:
        return request.engine_id
    return request.engine_id.removesuffix(f"{_SEPARATOR}{request.resumption.number}")


def given_outputs(request: Request, resumption: Resumption) -> Iterator[SequenceOutput]:
    """Yields an output for each answer that another server has begun or ended.

    The reader has received the log-probabilities of these tokens from that server: zeros stand for them.
    """
    for index, given in enumerate(resumption.answers):
        if given is None:
            yield SequenceOutput(
                engine_id=request.engine_id, index=index, finish_reason=FinishReason.STOP
            )
        elif given.token_ids:
            rows: list[LogprobRow] = [[(token_id, 0.0, None)] for token_id in given.token_ids]
            yield SequenceOutput(
                engine_id=request.engine_id,
                index=index,
                token_ids=given.token_ids,
                logprobs=None if request.params.logprobs is None else rows,
                num_draft_tokens=given.num_draft_tokens,
                num_accepted_tokens=given.num_accepted_tokens,
            )


def _without_remote_prompt(params: SamplingParams) -> SamplingParams:
    """Drops the blocks that a further engine lent for the prompt: the lost engine may have released them."""
    if params.extra_args is None or remote_prompt(params.extra_args) is None:
        return params
    extra_args = {name: value for name, value in params.extra_args.items() if name != KEY}
    return msgspec.structs.replace(params, extra_args=extra_args)


def _with_blocks(params: SamplingParams, lent: dict[str, Any] | None) -> SamplingParams:
    if lent is None or params.extra_args is not None:
        return params
    return msgspec.structs.replace(params, extra_args={KEY: lent})


class Resuming:
    """Belongs to a group of engines. `check` raises `EngineDead` if no running engine can continue a request;
    `may_wait` is False if none will run again.

    A request that was lost twice at the same place may be what ends the engines. Several such requests run one after
    the other, each until it advances: then only the request at fault is given up.
    """

    def __init__(self, check: Callable[[Request], object], may_wait: Callable[[], bool]) -> None:
        self._check = check
        self._may_wait = may_wait
        self._waiting: dict[asyncio.Future[bool], str] = {}  # with request ids; True: aborted
        self._suspect: str | None = None  # engine id of the suspect request that runs

    async def wait_for_engine(self, request: Request) -> bool:
        """Returns True when an engine can continue the request; False if the request is aborted first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RESUME_S
        while not self._is_due(request):
            future: asyncio.Future[bool] = loop.create_future()
            self._waiting[future] = request.request_id
            try:
                async with asyncio.timeout_at(deadline):
                    is_aborted = await future
            except TimeoutError:
                self._check(request)
                raise EngineDead(
                    f"no engine has continued the request for {RESUME_S:g} s"
                ) from None
            finally:
                del self._waiting[future]
            if is_aborted:
                return False
        return True

    def _is_due(self, request: Request) -> bool:
        try:
            self._check(request)
        except EngineDead:
            if not self._may_wait():
                raise
            return False
        return not (_is_suspect(request) and self._suspect is not None)

    @contextmanager
    def turn(self, request: Request) -> Iterator[Callable[[], None]]:
        """Runs a request; the yielded function must be called when it advances."""
        if not _is_suspect(request):
            yield nothing
            return
        self._suspect = request.engine_id

        def end() -> None:
            if self._suspect == request.engine_id:
                self._suspect = None
                self.announce()

        try:
            yield end
        finally:
            end()

    def announce(self) -> None:
        """Makes waiting requests look again whether an engine can continue them."""
        self._wake(self._waiting, is_aborted=False)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Ends waiting requests by the ids that callers gave."""
        named = set(request_ids)
        self._wake((f for f, name in self._waiting.items() if name in named), is_aborted=True)

    def _wake(self, futures: Iterable[asyncio.Future[bool]], *, is_aborted: bool) -> None:
        for future in futures:
            if not future.done():
                future.set_result(is_aborted)


def _is_suspect(request: Request) -> bool:
    return request.resumption is not None and request.resumption.num_losses > 1


def nothing() -> None:
    """Called when a request advances that nothing waits for."""
