"""SageMaker's contract: the word `serve`, variables, /ping and /invocations."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import clean_environment, running
from tests.deploy.command_line import is_taken

ENTRYPOINT = Path(__file__).resolve().parents[2] / "deploy" / "sagemaker" / "entrypoint.py"
STUB = """\
#!{python}
import json, os, sys
print(json.dumps([sys.argv[1:], {{key: os.environ.get(key) for key in ("WEFT_PORT", "WEFT_MODEL")}}]))
"""


def started(directory: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The entry point, with a `weft` that says how it was called."""
    stub = directory / "weft"
    stub.write_text(STUB.format(python=sys.executable), encoding="utf-8")
    stub.chmod(0o755)
    return subprocess.run(
        [sys.executable, str(ENTRYPOINT), *argv],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=clean_environment(**environment) | {"PATH": f"{directory}:{os.environ['PATH']}"},
        check=False,
    )


def test_variables_are_flags(tmp_path: Path):
    """Of vLLM's names, and empty ones as switches; the port is SageMaker's."""
    variables = {
        "SM_VLLM_MODEL": "Qwen/Qwen3-0.6B",
        "SM_VLLM_MAX_MODEL_LEN": "4096",
        "SM_VLLM_ENABLE_PREFIX_CACHING": "",
        "SM_VLLM_OVERRIDE_GENERATION_CONFIG": '{"temperature": 0}',
    }
    argv, environment = json.loads(started(tmp_path, "serve", **variables).stdout)
    assert argv == [
        "serve",
        "--enable-prefix-caching",
        "--max-model-len=4096",
        "--model=Qwen/Qwen3-0.6B",
        '--override-generation-config={"temperature": 0}',
    ]
    assert environment == {"WEFT_PORT": "8080", "WEFT_MODEL": None}
    assert is_taken("serve --max-model-len=4096 --model=Qwen/Qwen3-0.6B")


def test_other_commands_are_refused(tmp_path: Path):
    """SageMaker trains with the word `train`, which this image does not."""
    refused = started(tmp_path, "train")
    assert refused.returncode == 1
    assert "serve" in refused.stderr


@pytest.mark.slow
def test_a_server_keeps_the_contract():
    """It pings when it is ready, and answers what any of its APIs would."""
    program = (sys.executable, str(ENTRYPOINT))
    environment = {
        "SM_VLLM_MODEL": "embedded:tiny",
        "SM_VLLM_SERVED_MODEL_NAME": "tiny",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with running(program=program, **environment) as server:
        assert httpx2.get(f"{server.http}/ping").status_code == 200
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        for body, field in ((chat, "message"), ({"prompt": "Hi", "max_tokens": 4}, "text")):
            answer = httpx2.post(f"{server.http}/invocations", json=body, timeout=PATIENCE_S)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0][field]


def test_dockerignore_lets_through_what_the_dockerfile_copies():
    """Files that it names one by one: all but a few of the tree stay out of the build."""
    root = ENTRYPOINT.parents[2]
    dockerfile = (root / "deploy" / "docker" / "Dockerfile").read_text(encoding="utf-8")
    copied = set(re.findall(r"^COPY (?!--from)(\S+)", dockerfile, re.MULTILINE)) - {"."}
    assert copied
    let_through = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {f"!{one}" for one in copied} <= set(let_through)
