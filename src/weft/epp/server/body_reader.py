"""`BodyReader`: parses request bodies; long ones in a separate process, because decoding holds the interpreter's
lock.
"""

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from weft.epp.request.apart import LENGTH_BYTES, Job, Result, decode_result, encode
from weft.epp.request.parsers.parser import Call, Parser
from weft.epp.request.parsers.reading_time import MAX_READ_BYTES
from weft.epp.request.reading import read, renamed
from weft.epp.request.values import InferenceRequest, Refused

log = logging.getLogger("weft.epp")

# A body up to this size takes at most some hundred milliseconds in the reading process.
_MAX_SHORT_BYTES: Final = 2 * 2**20
_PIECE_BYTES: Final = 64 * 2**10
_MAX_READ_S: Final = 30.0


class BodyReader:
    """Parses short bodies on the event loop, and longer ones in two processes, of which one is for bodies up to 2 MiB.

    A process starts with its first body, and handles one body at a time.
    """

    def __init__(self) -> None:
        self._short, self._long = _ReadingProcess(), _ReadingProcess()

    async def read(self, parser: Parser, call: Call, body: Sequence[bytes]) -> InferenceRequest:
        """Parses the request of `call`, whose body arrived in pieces. Raises `Refused` if the request is invalid."""
        if (here := _here(call, body)) is not None:
            try:
                return replace(read(parser, here), body=tuple(body))
            except Refused as refused:
                if refused.status != 413:  # the body takes too long to be read in this process
                    raise
        result, _ = await self._process(call, body).submit(parser, call, body, None)
        request = result.to_request(call, parser.type)
        return replace(request, num_body_bytes=sum(map(len, body)), body=tuple(body))

    async def renamed(
        self, parser: Parser, call: Call, body: Sequence[bytes], model: str
    ) -> Sequence[bytes]:
        """Returns the decompressed body with another model name, in pieces."""
        if (here := _here(call, body)) is not None:
            try:
                return [renamed(parser, here, model)]
            except Refused as refused:
                if refused.status != 413:
                    raise
        _, made = await self._process(call, body).submit(parser, call, body, model)
        return made

    async def close(self) -> None:
        """Ends the processes that were started."""
        await self._short.close()
        await self._long.close()

    def _process(self, call: Call, body: Sequence[bytes]) -> "_ReadingProcess":
        encoding = call.headers.get("grpc-encoding" if call.is_grpc else "content-encoding", "")
        is_plain = encoding.strip().lower() in {"", "identity"}
        is_short = is_plain and sum(map(len, body)) <= _MAX_SHORT_BYTES
        return self._short if is_short else self._long


class _ReadingProcess:
    """Owner of a process that parses bodies."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def submit(
        self, parser: Parser, call: Call, body: Sequence[bytes], model: str | None
    ) -> tuple[Result, Sequence[bytes]]:
        job = Job(
            parser=parser.type,
            path=call.path,
            headers=dict(call.headers),
            is_grpc=call.is_grpc,
            num_bytes=sum(map(len, body)),
            max_body_bytes=call.max_body_bytes,
            model=model,
        )
        async with self._lock:
            is_done = False
            try:
                async with asyncio.timeout(_MAX_READ_S):
                    result, made = await self._converse(job, body)
                is_done = True
            except TimeoutError as error:
                raise Refused(
                    413, f"the body took longer than {_MAX_READ_S:g} s to read"
                ) from error
            except (OSError, EOFError) as error:
                log.warning("the process that reads large bodies ended: %r", error)
                raise Refused(413, "the body is too large to be read") from error
            finally:
                if not is_done:  # the process is in the middle of a body
                    await self.close()
        if result.status != 200:
            raise Refused(result.status, result.message)
        return result, made

    async def close(self) -> None:
        """Ends the process, if it was started."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _converse(self, job: Job, body: Sequence[bytes]) -> tuple[Result, Sequence[bytes]]:
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        message = encode(job)
        process.stdin.write(len(message).to_bytes(LENGTH_BYTES, "big") + message)
        for chunk in body:
            for start in range(0, len(chunk), _PIECE_BYTES):
                process.stdin.write(chunk[start : start + _PIECE_BYTES])
                await process.stdin.drain()
                # Gives other tasks a turn: `drain` does not while the process keeps up.
                await asyncio.sleep(0)
        head = await process.stdout.readexactly(LENGTH_BYTES)
        result = decode_result(await process.stdout.readexactly(int.from_bytes(head, "big")))
        made = []
        left = result.num_bytes
        while left:
            piece = await process.stdout.read(min(left, _PIECE_BYTES))
            if not piece:
                raise EOFError("in the middle of a body")
            made.append(piece)
            left -= len(piece)
        return result, made

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "weft.epp.request.apart",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return self._process


def _here(call: Call, body: Sequence[bytes]) -> Call | None:
    """Returns the call with its body, to be parsed on the event loop; None if the body is too long for that."""
    if sum(map(len, body)) > MAX_READ_BYTES:
        return None
    max_bytes = min(call.max_body_bytes, MAX_READ_BYTES)
    return replace(call, body=b"".join(body), max_body_bytes=max_bytes, is_on_loop=True)
