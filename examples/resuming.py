"""A stream that survives the end of its server: OpenAI's client with a transport that continues it at an equal server.

head -c 32 /dev/urandom > secret && chmod 600 secret
weft serve --resume-secret-file secret --api-server-count 2
pip install openai  # which brings httpx2
python examples/resuming.py
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator

import httpx2
from openai import OpenAI

HEADER = "x-weft-resume"
COMMENT = f": {HEADER} ".encode()


class Continued(httpx2.SyncByteStream):
    """The body of a stream, over as many connections as it takes.

    After the events of each step, a comment has the position up to there. Events are passed on with their comment, so
    that none is passed on twice.
    """

    def __init__(
        self, transport: "ResumingTransport", request: httpx2.Request, response: httpx2.Response
    ) -> None:
        self._transport = transport
        self._request = request
        self._response = response
        self._parts: list[str] = []
        self._tag = ""
        self._is_over = False  # True at the end, and once the stream can no longer be continued

    def __iter__(self) -> Iterator[bytes]:
        while True:
            rest = yield from self._groups()
            if self._is_over:
                yield rest
                return
            self._response.close()
            position = ".".join((*self._parts, self._tag)) if self._parts else "new"
            self._response = self._transport.send_again(self._request, position)

    def _groups(self) -> Iterator[bytes]:
        """Yields complete groups of events; returns what follows the last of them when the connection ends."""
        held = b""
        try:
            for event in self._events():
                if not event.startswith(COMMENT):
                    held += event
                    continue
                first, *tag = event.removeprefix(COMMENT).decode().split()
                if tag:
                    self._parts.append(first)
                    self._tag = tag[0]
                else:
                    self._is_over = True  # "done" or "off"
                yield held
                held = b""
        except httpx2.TransportError:
            if self._is_over:
                raise
        return held

    def _events(self) -> Iterator[bytes]:
        data = b""
        for received in self._response.stream:
            data += received
            *events, data = data.split(b"\n\n")
            for event in events:
                yield event + b"\n\n"

    def close(self) -> None:
        self._response.close()


class ResumingTransport(httpx2.BaseTransport):
    """Asks for streams that can be continued, and continues them. Other requests pass through."""

    def __init__(self, inner: httpx2.BaseTransport, max_wait_s: float = 60) -> None:
        self._inner = inner
        self._max_wait_s = max_wait_s

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST" or not json.loads(request.read() or b"{}").get("stream"):
            return self._inner.handle_request(request)
        request.headers[HEADER] = "new"
        response = self._inner.handle_request(request)
        if (
            response.headers.get(HEADER) != "new"
        ):  # an error, or a server without --resume-secret-file
            return response
        body = Continued(self, request, response)
        return httpx2.Response(200, headers=response.headers, stream=body, request=request)

    def send_again(self, request: httpx2.Request, position: str) -> httpx2.Response:
        """Sends the same body with a position, until a server continues the stream."""
        request.headers[HEADER] = position
        expected = "new" if position == "new" else "continued"
        deadline, reason = time.monotonic() + self._max_wait_s, ""
        while time.monotonic() < deadline:
            try:
                response = self._inner.handle_request(request)
                if response.headers.get(HEADER) == expected:
                    print("[continued]", file=sys.stderr)
                    return response
                reason = response.read().decode()
                response.close()
            except httpx2.TransportError as error:
                reason = str(error)
            time.sleep(0.5)
        raise httpx2.ReadError(f"no server continues the stream: {reason}", request=request)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("question", nargs="?", default="Tell me a long story about the sea.")
    parser.add_argument("--max-tokens", type=int, default=400)
    args = parser.parse_args()
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        http_client=httpx2.Client(transport=ResumingTransport(httpx2.HTTPTransport()), timeout=60),
    )
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": args.question}],
        max_tokens=args.max_tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
