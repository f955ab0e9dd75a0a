"""When the first token comes where prefill and decode are apart: `python -m benchmarks.prefill_apart`.

Two servers with a connector between them, and this process as their router. New prompts go, in turns, to the
prefiller alone; first there and then to the decoder, as routers of vLLM's contract do; and to both at once, with
`do_chunked_transfer`. What is apart costs more than what is not in one place, and chunks are to hide it.
"""

import argparse
import asyncio
import random
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, ExitStack, aclosing
from typing import Any

import httpx2
import msgspec

from benchmarks.kv_transfer import MODEL
from benchmarks.serve import Server, server

PATH = "/inference/v1/generate"


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--tokens", type=int, default=2048, help="of each prompt")
    parser.add_argument("--step", type=int, default=512, help="tokens computed in a step")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="of each server")
    parser.add_argument("--connector", default="TcpConnector")
    options = parser.parse_args()
    with ExitStack() as stack, tempfile.NamedTemporaryFile() as secret_file:
        secret_file.write(secrets.token_hex(32).encode())
        secret_file.flush()
        prefill, decode = (
            stack.enter_context(_server(options, role, secret_file.name)).http_port
            for role in ("kv_producer", "kv_consumer")
        )
        found = asyncio.run(measure(prefill, decode, options))
    print(f"{options.rounds} prompts of {options.tokens} tokens, {options.connector}; seconds")
    print("| way | first token, median | least | behind the prefiller alone, median of turns |")
    print("| --- | --- | --- | --- |")
    for name, seconds in found.items():
        behind = [taken - alone for taken, alone in zip(seconds, found["alone"], strict=True)]
        print(
            f"| {name} | {statistics.median(seconds):.3f} | {min(seconds):.3f} "
            f"| {statistics.median(behind):+.3f} |"
        )


def _server(
    options: argparse.Namespace, role: str, secret_file: str
) -> AbstractContextManager[Server]:
    transfer = {
        "kv_connector": options.connector,
        "kv_role": role,
        "kv_port": 0,
        "kv_connector_extra_config": {"secret_file": secret_file},
    }
    return server(
        options.model,
        f"--kv-transfer-config={msgspec.json.encode(transfer).decode()}",
        f"--max-num-batched-tokens={options.step}",
        f"--num-threads={options.threads}",
        "--stream-interval-ms=0",
        max_model_len=options.tokens + 64,
        num_blocks=4 * (options.tokens // 16 + 4),
    )


async def measure(prefill: int, decode: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds to the first token by each way, all of them in every turn."""
    found: dict[str, list[float]] = {"alone": [], "whole": [], "chunked": []}
    dice = random.Random(1)
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(timeout=600, limits=limits) as client:
        router = Router(client, prefill, decode)
        for number in range(options.rounds + 1):
            for name, taken in found.items():
                prompt = [dice.randrange(3, 900) for _ in range(options.tokens)]
                began = time.perf_counter()
                await getattr(router, name)(prompt)
                if number:  # in the first, pages are touched
                    taken.append(time.perf_counter() - began)
    return found


class Router:
    """Returns when the first token is there."""

    def __init__(self, client: httpx2.AsyncClient, prefill: int, decode: int) -> None:
        self._client = client
        self._prefill, self._decode = (
            f"http://127.0.0.1:{port}{PATH}" for port in (prefill, decode)
        )

    async def alone(self, prompt: list[int]) -> None:
        """One server computes the prompt and answers."""
        await self._first_token(self._prefill, prompt)

    async def whole(self, prompt: list[int]) -> None:
        """The prompt moves when all of it is computed."""
        body = _body(prompt, {"do_remote_decode": True}, stream=False)
        answer = await self._client.post(self._prefill, json=body)
        await self._first_token(self._decode, prompt, answer.json()["kv_transfer_params"])

    async def chunked(self, prompt: list[int]) -> None:
        """What is computed moves while the rest is."""
        lend = {"do_remote_decode": True, "do_chunked_transfer": True}
        events = self._events(self._prefill, _body(prompt, lend))
        async with aclosing(events):
            async for event in events:
                if event.get("kv_transfer_params"):
                    await self._first_token(self._decode, prompt, event["kv_transfer_params"])
                    return
        raise RuntimeError("the prefiller did not say where the prompt is")

    async def _first_token(
        self, url: str, prompt: list[int], lent: dict[str, Any] | None = None
    ) -> None:
        async with aclosing(self._events(url, _body(prompt, lent))) as events:
            async for event in events:
                if event["choices"]:
                    return
        raise RuntimeError("there was no token")

    async def _events(self, url: str, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with self._client.stream("POST", url, json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield msgspec.json.decode(line[6:])


def _body(prompt: list[int], lent: dict[str, Any] | None, *, stream: bool = True) -> dict[str, Any]:
    params = {"max_tokens": 1, "temperature": 0.0, "ignore_eos": True}
    body = {"token_ids": prompt, "sampling_params": params, "stream": stream}
    return body if lent is None else {**body, "kv_transfer_params": lent}


if __name__ == "__main__":
    main()
