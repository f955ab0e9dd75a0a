"""Processes that serve for these tests, and what is asked of them over HTTP."""

import json
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import Server, running
from tests.vllm.environment import CACHE

START_TIMEOUT_S = 1800.0  # of a guard: on a CPU with other work it takes ten minutes
VARIABLES = {
    "VLLM_CACHE_ROOT": str(CACHE),
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",  # nobody reads the pipe while it starts
    "VLLM_NO_USAGE_STATS": "1",
}


@contextmanager
def serving(checkpoint, *argv: str, **variables: str):
    """`weft serve --engine vllm`, ready, with these in its environment."""
    engine = (str(checkpoint), "--engine", "vllm", "--enforce-eager", "--dtype", "float32")
    with running(
        *engine, *argv, start_timeout_s=START_TIMEOUT_S, **VARIABLES, **variables
    ) as started:
        yield started


def opened(server: Server, path: str, body=None, *, timeout_s: float = PATIENCE_S, **headers: str):
    """The answer, not read yet."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{server.http}{path}", data=data, headers={"content-type": "application/json", **headers}
    )
    return urllib.request.urlopen(request, timeout=timeout_s)


def fetched(
    server: Server, path: str, body=None, *, timeout_s: float = PATIENCE_S, **headers: str
) -> str:
    """The answer's text."""
    with opened(server, path, body, timeout_s=timeout_s, **headers) as answer:
        return answer.read().decode()


def refused(server: Server, path: str, body, **headers: str):
    """The status and the error of a request that is not answered."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        opened(server, path, body, **headers)
    return caught.value.code, json.loads(caught.value.read())["error"]
