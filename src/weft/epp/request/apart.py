"""Process that parses large request bodies, so that the picker's own process is not blocked: `python -m
weft.epp.request.apart`.

Jobs arrive on standard input, results leave on standard output: a four-byte length and a message (msgpack with fixed
fields), followed by a body if there is one. The process ends when its input closes.
"""

import gc
import resource
import signal
import sys
from dataclasses import replace
from typing import BinaryIO, Final

import msgspec

from weft.core.values.prompts import pack_tokens
from weft.epp.request.parsers.parser import Call
from weft.epp.request.parsers.table import PARSERS
from weft.epp.request.reading import read, renamed
from weft.epp.request.values import InferenceRequest, Prompt, Refused

LENGTH_BYTES: Final = 4
# Memory limit of the reading process: this base plus four times the largest body.
_BASE_BYTES: Final = 64 * 2**20
_BYTES_PER_BYTE: Final = 3


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Message to the process: a call, whose body follows the message."""

    parser: str
    path: str
    headers: dict[str, str]
    is_grpc: bool
    num_bytes: int
    max_body_bytes: int
    # If set, the result is the body with this model name; otherwise the result is the parsed request.
    model: str | None = None


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """A prompt as bytes: UTF-8 text, or token ids as little-endian uint32."""

    is_text: bool
    data: bytes
    num_left_out: int


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parsed request, or the reason for its refusal. If the job asks for another model name, the changed body
    follows.
    """

    status: int = 200
    message: str = ""
    num_bytes: int = 0
    model: str = ""
    needs_model: bool = False
    prompts: list[Packed] = []
    cache_salt: str = ""
    is_streaming: bool = False
    max_tokens: int | None = None
    media: tuple[str, ...] = ()
    has_adapter: bool = False
    store: str = ""
    is_schedulable: bool = True

    def to_request(self, call: Call, parser: str) -> InferenceRequest:
        """Returns the request, completed by the parts that were not sent to the process, such as headers."""
        same = {name: getattr(self, name) for name in _SAME}
        prompts = tuple(map(_unpacked, self.prompts))
        store = self.store or call.store
        return replace(call.to_request(parser), prompts=prompts, store=store, **same)


# Attributes that have the same names in results and requests.
_SAME: Final = (
    "model", "needs_model", "cache_salt", "is_streaming", "max_tokens", "media", "has_adapter",
    "is_schedulable",
)  # fmt: skip
_TEXT: Final = ("utf-8", "surrogatepass")  # JSON may contain lone surrogates
_jobs = msgspec.msgpack.Decoder(Job)
encode = msgspec.msgpack.Encoder().encode
decode_result = msgspec.msgpack.Decoder(Result).decode


def main() -> None:
    """Handles jobs from standard input until it closes."""
    # Ctrl-C is for the picker, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # bodies create many objects and no reference cycles
    jobs, results = sys.stdin.buffer, sys.stdout.buffer
    while head := jobs.read(LENGTH_BYTES):
        job = _jobs.decode(jobs.read(int.from_bytes(head, "big")))
        _bound_memory(job.max_body_bytes)
        result, body = _do(job, jobs.read(job.num_bytes))
        _send(results, result, body)


def _do(job: Job, body: bytes) -> tuple[Result, bytes]:
    parser = PARSERS[job.parser]
    call = Call(
        path=job.path,
        headers=job.headers,
        request_id="",
        is_grpc=job.is_grpc,
        body=body,
        max_body_bytes=job.max_body_bytes,
    )
    try:
        if job.model is not None:
            made = renamed(parser, call, job.model)
            return Result(num_bytes=len(made)), made
        return _to_result(read(parser, call)), b""
    except Refused as refused:
        return Result(status=refused.status, message=refused.message), b""
    except MemoryError:
        return Result(status=413, message="the body has too many parts to be read"), b""


def _to_result(request: InferenceRequest) -> Result:
    same = {name: getattr(request, name) for name in (*_SAME, "store")}
    return Result(prompts=list(map(_packed, request.prompts)), **same)


def _packed(prompt: Prompt) -> Packed:
    if prompt.text is not None:
        return Packed(True, prompt.text.encode(*_TEXT), prompt.num_left_out)
    return Packed(False, pack_tokens(prompt.token_ids or ()), prompt.num_left_out)


def _unpacked(prompt: Packed) -> Prompt:
    if prompt.is_text:
        return Prompt(text=prompt.data.decode(*_TEXT), num_left_out=prompt.num_left_out)
    return Prompt(packed=prompt.data, num_left_out=prompt.num_left_out)


def _bound_memory(max_body_bytes: int) -> None:
    limit = _BASE_BYTES + _BYTES_PER_BYTE * max_body_bytes
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))


def _send(results: BinaryIO, result: Result, body: bytes) -> None:
    message = encode(result)
    results.write(len(message).to_bytes(LENGTH_BYTES, "big") + message)
    results.write(body)
    results.flush()


if __name__ == "__main__":
    main()
