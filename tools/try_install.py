"""Start the `weft serve` of this environment on the built-in model, and print its answer to one request.

    PYTHON -I tools/try_install.py

Needs nothing but PYTHON and the `weft` command beside it, so `make release` and the workflow run it in environments
that hold a wheel and nothing else. Exits 1 if a compiler is on the PATH, if `weft` comes from a source tree, or if
the server does not answer.
"""

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

WITHIN_S = 60.0
COMPILERS = ("c++", "cc", "clang++", "g++")


def free_port() -> int:
    """A port of the loopback interface that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def call(url: str, body: object = None) -> Any:
    """The JSON that a server returns; with a body, the request is a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - of loopback
    with urllib.request.urlopen(request, timeout=WITHIN_S) as response:  # noqa: S310
        return json.load(response)


def served_model(url: str, server: subprocess.Popen[bytes]) -> str:
    """The name of the model, as soon as the server lists it."""
    deadline = time.monotonic() + WITHIN_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            name: str = call(f"{url}/v1/models")["data"][0]["id"]
        except OSError:
            time.sleep(0.2)
        else:
            return name
    sys.exit(f"weft serve did not start within {WITHIN_S:.0f} s")


def answer() -> str:
    """The text that a server of this environment returns for one prompt."""
    port = free_port()
    weft = Path(sys.executable).with_name("weft")
    flags = ("--port", str(port), "--grpc-port", "0", "--log-level", "warning")
    with subprocess.Popen([weft, "serve", *flags], stdout=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
            body["model"] = served_model(url, server)
            text: str = call(f"{url}/v1/completions", body)["choices"][0]["text"]
            return text
        finally:
            server.terminate()


def main() -> None:
    """Check the environment, then print the answer."""
    if found := next(filter(None, map(shutil.which, COMPILERS)), None):
        sys.exit(f"a compiler is on the PATH: {found}")
    spec = importlib.util.find_spec("weft")
    if spec is None or not Path(str(spec.origin)).is_relative_to(sys.prefix):
        sys.exit(f"weft is not installed in {sys.prefix}, but found at {spec and spec.origin}")
    text = answer()
    print(f"Python {sys.version.split()[0]}: {text!r}")
    sys.exit(not text)


if __name__ == "__main__":
    main()
