"""Streaming clients of a server, in a process of their own, so that their time is not the server's.

`serve.py` starts it, writes one `Job` a line and reads one `Report` a line. The clients read as
plainly as they can: on few cores their processor time is missing elsewhere.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing

import grpc
import msgspec
import uvloop

from weft.pb.vllm_engine_pb2 import GenerateRequest, SamplingParams, TokenizedInput
from weft.pb.vllm_engine_pb2_grpc import VllmEngineStub


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Each of `num_clients` takes the next prompt as soon as its last answer is whole."""

    way: str
    port: int
    model: str
    prompts: list[list[int]]
    max_tokens: int
    num_clients: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients saw. `firsts_s` are times to first token, one a request.

    `gap_p50_s` and `gap_p99_s` are of the times between two messages of one answer.
    """

    num_tokens: int
    num_messages: int
    seconds: float
    firsts_s: list[float]
    gap_p50_s: float
    gap_p99_s: float


class Seen:
    """One answer as it comes."""

    def __init__(self) -> None:
        self.polled_at = time.perf_counter()
        self.first_s: float | None = None
        self.num_tokens = 0
        self.num_messages = 0
        self.gaps_s: list[float] = []
        self._last_at = self.polled_at

    def take(self, num_tokens: int = 0) -> None:
        """Note a message."""
        now = time.perf_counter()
        if self.first_s is None:
            self.first_s = now - self.polled_at
        else:
            self.gaps_s.append(now - self._last_at)
        self._last_at = now
        self.num_messages += 1
        self.num_tokens += num_tokens


Ask = Callable[[list[int], Seen], Awaitable[None]]


async def drive(ask: Ask, prompts: list[list[int]], num_clients: int) -> Report:
    """Run the clients until every prompt has its answer."""
    waiting = iter(prompts)
    answers: list[Seen] = []

    async def client() -> None:
        for prompt in waiting:
            seen = Seen()
            await ask(prompt, seen)
            answers.append(seen)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as clients:
        for _ in range(num_clients):
            clients.create_task(client())
    seconds = time.perf_counter() - started
    gaps_s = [gap_s for seen in answers for gap_s in seen.gaps_s]
    return Report(
        num_tokens=sum(seen.num_tokens for seen in answers),
        num_messages=sum(seen.num_messages for seen in answers),
        seconds=seconds,
        firsts_s=[seen.first_s for seen in answers if seen.first_s is not None],
        gap_p50_s=quantile(gaps_s, 0.5),
        gap_p99_s=quantile(gaps_s, 0.99),
    )


def quantile(values: list[float], share: float) -> float:
    """The value nearest to that place in their order; 0 of none."""
    return sorted(values)[int(share * (len(values) - 1) + 0.5)] if values else 0.0


def over_http(job: Job, path: str) -> Ask:
    """Server-sent events of OpenAI's APIs. Tokens are counted by the usage at the end."""

    async def ask(prompt: list[int], seen: Seen) -> None:
        body = {
            "model": job.model,
            "max_tokens": job.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if path.endswith("/chat/completions"):
            body["messages"] = [{"role": "user", "content": " ".join(map(str, prompt))}]
        else:
            body["prompt"] = prompt
        payload = msgspec.json.encode(body)
        reader, writer = await asyncio.open_connection("127.0.0.1", job.port)
        with closing(writer):
            writer.write(
                b"POST %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
                % (path.encode(), len(payload))
            )
            writer.write(payload)
            usage = b""
            async for line in reader:
                if line.startswith(b"data: {"):
                    seen.take()
                    usage = line if b'"usage":{' in line else usage
            if not usage:
                raise RuntimeError("an answer came without its usage")
            seen.num_tokens = msgspec.json.decode(usage[6:])["usage"]["completion_tokens"]

    return ask


def over_grpc(job: Job, channel: grpc.aio.Channel) -> Ask:
    """VllmEngine's Generate."""
    stub = VllmEngineStub(channel)

    async def ask(prompt: list[int], seen: Seen) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True, n=1)
        request = GenerateRequest(
            tokenized=TokenizedInput(input_ids=prompt), sampling_params=params, stream=True
        )
        async for response in stub.Generate(request):
            if response.HasField("chunk"):
                seen.take(len(response.chunk.token_ids))

    return ask


async def serve_job(job: Job) -> Report:
    """Do what a line asks for."""
    if job.way != "grpc":
        return await drive(over_http(job, job.way), job.prompts, job.num_clients)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{job.port}") as channel:
        return await drive(over_grpc(job, channel), job.prompts, job.num_clients)


def main() -> None:
    """One line in, one line out, until the other side closes."""
    for line in sys.stdin.buffer:
        report = uvloop.run(serve_job(msgspec.json.decode(line, type=Job)))
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
