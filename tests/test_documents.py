"""Every command that a document shows is run by a test, or stands here with the reason why not."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, WEFT, Server, clean_environment, running
from tests.doubles.secret_file import secret_file
from tests.web.mcp.tool_server import tool_serving
from tools.make_site import ROOT, pages
from weft.cli.commands import make_app

DOCUMENTS = sorted(
    {page for group in pages(ROOT).values() for page in group if "/reference/" not in page}
    | {"benchmarks/README.md", "compat/vllm/README.md"}
)
PROGRAMS = ("aider", "claude", "codex", "curl", "docker", "head", "helm", "install", "kubectl", "make",
            "npm", "pip", "python", "python3", "systemctl", "weft")  # fmt: skip
# Documents whose commands a test of their own runs, and finds in them.
ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/clients.md": "tests/clients/test_documented.py",
}
# By how a command begins.
NOT_RUN = {
    "python -m tests.fuzz": "an hour for each parser; tests/fuzz runs a few inputs of each",
    "docker ": "needs Docker; make check-deploy checks the files",
    "helm install ": "needs a cluster; make check-deploy has helm render and check the chart",
    "kubectl ": "needs a cluster; make check-deploy checks what is applied",
    "install -": "writes to /etc",
    "systemctl ": "needs systemd; make check-deploy has its checks",
    "head -c 32 /dev/urandom": "writes to /etc; tests/engine/transfer has secrets of its own",
    "pip install ": "fetches packages; test_what_is_installed_exists holds the names",
    "make bench": "measures, for minutes to hours; benchmarks/README.md has results",
    "python benchmarks/": "measures, as above",
    "python examples/ray/": "needs Ray; tests/examples/test_ray.py runs both where it is installed",
    "python -m benchmarks.": "simulates for minutes; tests/benchmarks runs small cases",
    "make mutants": "changes the code, for minutes to a night",
    "make test-slow": "runs the tests that this is one of",
    "weft bench sweep serve ": "starts servers at one port; tests/bench/test_commands.py runs one",
    "weft serve MODEL --engine vllm ": "needs vLLM; make test-vllm runs such servers",
    'weft serve MODEL --speculative-config \'{"method": "mtp"': (
        "needs a checkpoint with such a head; tests/engine/test_mtp_drafter.py makes some"
    ),
    "weft serve Qwen/Qwen3-VL-2B-Instruct ": (
        "needs a vision model from the Hub; tests/e2e/test_pictures.py serves small ones"
    ),
    "weft serve models/gemma-3-4b-it-Q4_K_M.gguf ": (
        "needs a vision model from the Hub; tests/e2e/test_projectors.py serves small ones"
    ),
    "weft serve openai/whisper-small ": "needs vLLM; make test-vllm transcribes with a small one",
    "weft serve openai/whisper-tiny": (
        "needs a model from the Hub; tests/e2e/test_speech.py serves a small one"
    ),
    "curl localhost:8000/v1/audio/transcriptions ": "needs the server above",
    "weft serve MODEL --data-parallel-size 4 --data-parallel-size-local 2 --data-parallel-address ": (
        "waits for its nodes; tests/cli/test_ranks.py runs a head with one"
    ),
    "weft serve MODEL --headless ": "waits for its head; tests/cli/test_ranks.py runs one",
    "python -m dynamo.": "needs NVIDIA Dynamo; tests/rpc/test_dynamo.py makes the calls of its sidecar",
    "weft serve --remote grpc://HOST:50051": "stands before vLLM's server; make test-vllm runs both",
    'weft serve MODEL --kv-transfer-config \'{"kv_connector": "TcpConnector", "kv_role": "kv_both"': (
        "names an address of another machine; tests/engine/transfer runs servers on this one"
    ),
}
# What stands in a document for something of its reader's: replaced before a server is started.
SERVED = {
    "MODEL": SMALL,
    "SMALL": SMALL,
    "Qwen/Qwen3-0.6B": "embedded:tiny",
    "http://localhost:4317": "http://127.0.0.1:9",
    '"kv_port": 14579': '"kv_port": 0',
    '"kv_port": 14580': '"kv_port": 0',
    "/etc/weft/transfer": secret_file(),
    "/etc/weft/resume": secret_file(),
    "$CONTROL_KEY": "secret",
}


def commands(document: str) -> Iterator[str]:
    """The commands of a document's blocks, fenced or indented, each on one line."""
    fence, begun = None, ""
    for line in (ROOT / document).read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fence, begun = (None if fence is not None else line[3:]), ""
            continue
        is_shell = fence in ("", "sh") or (fence is None and line.startswith("    "))
        if not is_shell:
            begun = ""
            continue
        begun = f"{begun}{line.strip()}"
        words = bare(begun).split()
        if not words or words[0].rpartition("/")[2] not in PROGRAMS:
            begun = ""
        elif begun.endswith("\\"):
            begun = begun[:-1]
        elif is_whole(begun):
            yield begun
            begun = ""
        else:
            begun += " "


def bare(command: str) -> str:
    """A command without the variables that are set for it."""
    return re.sub(r"^(?:[A-Z_]+=\S+ )*", "", command)


def is_whole(command: str) -> bool:
    """Whether its quotes are closed."""
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


ALL = [(document, command) for document in DOCUMENTS for command in commands(document)]
OURS = [(document, command) for document, command in ALL if document not in ELSEWHERE]
RUN = [(d, command) for d, command in OURS if not bare(command).startswith(tuple(NOT_RUN))]
BENCHES = [command for _, command in RUN if command.startswith("weft bench ")]
SERVING = sorted({document for document, command in RUN if command.startswith("weft serve ")})


def test_every_command_is_run_or_has_its_reason():
    """Those that are run are of kinds that the tests below know; each reason is still needed."""
    kinds = ("weft bench ", "weft serve ", "curl ")
    assert [command for _, command in RUN if not command.startswith(kinds)] == []
    assert {d for d, command in RUN if command.startswith("curl ")} <= set(SERVING)
    begun = [bare(command) for _, command in OURS]
    unneeded = [one for one in NOT_RUN if not any(command.startswith(one) for command in begun)]
    assert unneeded == []


@pytest.mark.parametrize(
    "command", [c for _, c in ALL if c.startswith("weft ") and "--engine vllm" not in c]
)
def test_every_command_of_ours_is_taken(command: str):
    """Whether it is run or not: its flags are there and have such values. vLLM's are read before these."""
    app = make_app()
    app.config = ()  # the files that they name are not there
    app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


def test_what_is_installed_exists():
    """The extras of our package, and directories of this tree."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lines = [shlex.split(c)[2:] for _, c in OURS if c.startswith("pip install ")]
    for word in (word for line in lines for word in line if word != "-e"):
        if extra := re.fullmatch(r"\.\[(\w+)\]", word):
            assert f"\n{extra[1]} = [" in text
        else:
            assert (ROOT / word).is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("document", SERVING)
def test_servers_start_as_documented_and_answer(document: str, tmp_path: Path):
    """Each line on free ports, with a small model and threads for four engines; and the requests below it."""
    servers: list[tuple[str, list[str]]] = []
    for where, command in RUN:
        if where == document and command.startswith("weft serve "):
            servers.append((command, []))
        elif where == document and command.startswith("curl "):
            servers[-1][1].append(command)
    with tool_serving() as (tools, _):
        for line, requests in servers:
            written = {"/tmp/traces": str(tmp_path), "weft.db": str(tmp_path / "weft.db")}
            changed = {**SERVED, **written, "http://localhost:8888/mcp": tools}
            argv = shlex.split(replaced(line, changed))[2:]
            with running(*without_ports(argv), "--num-threads", "4") as server:
                for request in requests:
                    assert run_curl(replaced(request, changed), server) == 200


def replaced(line: str, values: dict[str, str]) -> str:
    for written, value in values.items():
        line = re.sub(rf"(?<![\w-]){re.escape(written)}(?!\w)", lambda _, v=value: v, line)
    return line


def without_ports(argv: list[str]) -> list[str]:
    """The ports are free ones."""
    return [
        word for at, word in enumerate(argv) if "--port" not in (word, argv[at - 1] if at else "")
    ]


def run_curl(line: str, server: Server) -> int:
    """The status of what a line is answered."""
    there = line.replace("http://", "").replace("localhost:8000", server.http, 1)
    shown = ["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]
    result = subprocess.run(
        [*shlex.split(there), *shown], capture_output=True, text=True,
        timeout=PATIENCE_S, check=True, env=clean_environment(),
    )  # fmt: skip
    return int(result.stdout)


@pytest.mark.slow
def test_the_benchmarks_are_run_as_documented(tmp_path: Path):
    """On a small server, with few prompts; comparisons are of what the lines before have written."""
    prompts = "".join(json.dumps({"prompt": f"Say {word}."}) + "\n" for word in ("one", "two"))
    (tmp_path / "prompts.jsonl").write_text(prompts)
    with running("embedded:tiny") as server:
        for line in BENCHES:
            argv = shlex.split(to_server(line, server))[1:]
            result = subprocess.run(
                [*WEFT, *argv], cwd=tmp_path, capture_output=True, text=True,
                timeout=PATIENCE_S, check=False, env=clean_environment(),
            )  # fmt: skip
            assert result.returncode == 0, f"{line}\n{result.stderr}"
            if "--save-result" in argv:
                (saved,) = (p for p in tmp_path.glob("*.json") if p.stem not in ("before", "after"))
                (tmp_path / "before.json").write_bytes(saved.read_bytes())
                saved.rename(tmp_path / "after.json")
    assert (tmp_path / "run.html").is_file()


def to_server(line: str, server: Server) -> str:
    """With the addresses of a server, and a load that is soon over."""
    line = line.replace("http://HOST:8000", server.http).replace("HOST:50051", server.address)
    line = line.replace("--num-prompts 200 --request-rate 4 ", "--num-prompts 8 --request-rate 40 ")
    if not line.startswith("weft bench serve "):
        return line
    needed = {"--base-url": server.http, "--num-prompts": "8"}
    return " ".join(
        [line, *(f"{flag} {value}" for flag, value in needed.items() if flag not in line)]
    )
