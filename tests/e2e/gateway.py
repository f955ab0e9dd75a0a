"""The real gateway, `smg launch`, as a process in front of our servers."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

from tests.busy import PATIENCE_S
from tests.ports import free_port

SMG = Path(sys.executable).with_name("smg")
START_TIMEOUT_S = PATIENCE_S


class Gateway:
    """A running gateway, ready to route."""

    def __init__(self, port: int) -> None:
        self.host, self.port = "127.0.0.1", port
        self.url = f"http://{self.host}:{port}"

    def connect(self) -> http.client.HTTPConnection:
        """A connection that its user closes when it likes."""
        return http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)

    def get(self, path: str) -> Any:
        """The JSON at `path`, None while there is none."""
        with closing(self.connect()) as connection:
            try:
                connection.request("GET", path)
                return json.loads(connection.getresponse().read())
            except (OSError, ValueError):
                return None

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON of the answer to `body`."""
        with closing(self.connect()) as connection:
            connection.request(
                "POST", path, json.dumps(body), headers={"content-type": "application/json"}
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


@contextmanager
def gateway(*workers: str) -> Iterator[Gateway]:
    """`smg` with the servers at these addresses, with its default policy: it follows KV events."""
    port, metrics_port = free_port(), free_port()
    argv = [
        str(SMG), "launch", "--host", "127.0.0.1", "--port", str(port),
        "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port),
        "--worker-urls", *(f"grpc://{address}" for address in workers),
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        try:
            yield _wait_ready(Gateway(port), len(workers), process, log)
        finally:
            process.kill()
            process.wait()


def _wait_ready(
    gateway: Gateway, num_workers: int, process: subprocess.Popen[bytes], log: IO[str]
) -> Gateway:
    """Return when the gateway has every worker and every worker's tokenizer."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        ready = gateway.get("/readiness") or {}
        tokenizers = gateway.get("/v1/tokenizers") or {}
        if (
            ready.get("healthy_workers") == num_workers
            and len(tokenizers.get("tokenizers", ())) == num_workers
        ):
            return gateway
        time.sleep(0.05)
    log.seek(0)
    raise AssertionError(f"smg did not become ready:\n{log.read()[-4000:]}")
