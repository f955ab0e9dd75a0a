"""`BodyReader`: bodies to requests. Large ones in a process apart: decoding holds the interpreter's lock."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from weft.epp.request.apart import LENGTH_BYTES, Job, Result, decode_result, encode
from weft.epp.request.parsers.parser import Call, Parser
from weft.epp.request.reading import read, renamed
from weft.epp.request.values import InferenceRequest, Refused

log = logging.getLogger("weft.epp")

# Up to here a body is read at once: it takes a few milliseconds, whatever is in it. A comma ends each
# value but the last of its list; a protobuf message may hold a token id in each byte.
_MAX_HERE_BYTES: Final = 2 * 2**20
_MAX_HERE_VALUES: Final = 8192
_MAX_HERE_GRPC_BYTES: Final = 256 * 2**10
_PIECE_BYTES: Final = 64 * 2**10
_MAX_READ_S: Final = 30.0


class BodyReader:
    """Owns the process, which is started by the first large body; one at a time is read there."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def read(self, parser: Parser, call: Call, body: Sequence[bytes]) -> InferenceRequest:
        """The request of `call`, whose body came in pieces; `Refused` if that cannot be read."""
        if (here := _here(call, body)) is not None:
            try:
                return replace(read(parser, here), body=tuple(body))
            except Refused as refused:
                if refused.status != 413:  # it unpacks to more than is read here
                    raise
        result, _ = await self._submit(parser, call, body, None)
        request = result.to_request(call, parser.type)
        return replace(request, num_body_bytes=sum(map(len, body)), body=tuple(body))

    async def renamed(
        self, parser: Parser, call: Call, body: Sequence[bytes], model: str
    ) -> Sequence[bytes]:
        """That body with another model in it, unpacked, in pieces."""
        if (here := _here(call, body)) is not None:
            try:
                return [renamed(parser, here, model)]
            except Refused as refused:
                if refused.status != 413:
                    raise
        _, made = await self._submit(parser, call, body, model)
        return made

    async def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _submit(
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
                if not is_done:  # it is in the middle of something
                    await self.close()
        if result.status != 200:
            raise Refused(result.status, result.message)
        return result, made

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
                await asyncio.sleep(0)  # while the process keeps up, `drain` gives nobody a turn
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
    """The call with its body, if that is small enough to be read at once."""
    num_bytes = sum(map(len, body))
    most = _MAX_HERE_GRPC_BYTES if call.is_grpc else _MAX_HERE_BYTES
    if num_bytes > most:
        return None
    if not call.is_grpc and sum(chunk.count(b",") for chunk in body) > _MAX_HERE_VALUES:
        return None
    return replace(
        call, body=b"".join(body), max_body_bytes=min(call.max_body_bytes, _MAX_HERE_BYTES)
    )
