"""`weft-picker` and `weft-bench`: what they take of the tree, and that each runs where nothing else of Weft is."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.busy import PATIENCE_S
from tests.cli.running import clean_environment, running, started
from weft.cli import entry, parts
from weft.cli.help import as_called
from weft.core.extras import installed

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PARTS = ("picker", "bench")
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules of commands that a part does not offer: they end with the advice to install all of Weft.
WITHOUT = {"weft.bench.targets.local_engine"}
INSTALL_S = 20 * PATIENCE_S


def project(part: str) -> dict[str, Any]:
    """The table of a part's pyproject.toml."""
    return tomllib.loads((ROOT / "packaging" / part / "pyproject.toml").read_text())


def included(part: str) -> dict[str, str]:
    """Paths in the tree, from the part's own folder, and where they go in the wheel."""
    return project(part)["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]


def modules(part: str) -> dict[str, Path]:
    """The part's modules, and their files."""
    found = {}
    for place in included(part).values():
        path = SRC / place
        for file in path.rglob("*.py") if path.is_dir() else [path]:
            if file.suffix == ".py":
                name = ".".join(file.relative_to(SRC).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = file
    return found


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a module imports, at its top or in a call, except for types."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    found = set()
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                file = SRC.joinpath(*name.split("."))
                is_module = file.is_dir() or file.with_suffix(".py").is_file()
                found.add(name if is_module else node.module)
        pending += ast.iter_child_nodes(node)
    return frozenset(found)


@pytest.mark.parametrize("part", PARTS)
def test_every_file_of_a_part_is_one_of_the_tree(part: str):
    """A part holds no file of its own, and each file has the place that it has in the whole."""
    places = included(part)
    assert [source for source, place in places.items() if source != f"../../src/{place}"] == []
    assert [place for place in places.values() if not (SRC / place).exists()] == []


@pytest.mark.parametrize("part", PARTS)
def test_a_part_holds_the_modules_that_it_imports(part: str):
    """A new import of a module that the part lacks would fail on its users' machines only."""
    held = modules(part)
    missing = {
        (name, target)
        for name in held.keys() - WITHOUT
        for target in imports(held[name])
        if target.split(".")[0] == "weft" and target not in held
    }
    assert missing == set()


@pytest.mark.parametrize("part", PARTS)
def test_a_part_needs_what_it_imports_and_in_the_ranges_of_the_whole(part: str):
    """Neither a dependency that came along by luck, nor one that nobody uses, nor a second range."""
    own = project(part)["project"]
    extras = own.get("optional-dependencies", {})
    optional = {need for extra in extras.values() for need in extra}
    assert set(own["dependencies"]) <= set(WHOLE["dependencies"])
    assert optional <= {n for extra in WHOLE["optional-dependencies"].values() for n in extra}
    providers = packages_distributions() | {"google": ["protobuf"], "lightkube": ["lightkube"]}
    roots = {
        target.split(".")[0]
        for name, file in modules(part).items()
        if name not in WITHOUT
        for target in imports(file)
    } - set(sys.stdlib_module_names) - {"weft", "opentelemetry"}  # fmt: skip
    needed = {providers[root][0].lower().replace("_", "-") for root in roots}
    named = {re.split(r"[><=]", need)[0] for need in own["dependencies"]}
    assert needed <= named | {re.split(r"[><=]", need)[0] for need in optional}
    assert named <= needed | {"uvloop"}  # which is imported by its name


def test_distributions_beside_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """They have the same files, so that one may have overwritten the other's with those of another version."""
    for name in ("weft_picker-0.1.0", "weft_serve-0.2.0", "weft_vllm-0.1.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    assert installed(tmp_path) == ["weft-picker", "weft-serve"]
    monkeypatch.setattr(entry, "installed", lambda: installed(tmp_path))
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 2
    assert "pip uninstall weft-picker weft-serve" in capsys.readouterr().err


@pytest.fixture
def broken_pipes() -> Iterator[None]:
    """Puts SIGPIPE's handler back: help ends its process at a broken pipe, and later tests write to such pipes."""
    handler = signal.getsignal(signal.SIGPIPE)
    yield
    signal.signal(signal.SIGPIPE, handler)


@pytest.mark.usefixtures("broken_pipes")
def test_a_part_calls_itself_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Its help shows lines that can be typed where the command `weft` is not installed."""
    monkeypatch.setattr(sys, "argv", ["/somewhere/weft-picker", "explain", "--help"])
    with pytest.raises(SystemExit) as ended:
        parts.picker()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: weft-picker explain ")
    assert as_called("weft epp needs weft-serve[otel]") == "weft-picker needs weft-picker[otel]"


@pytest.fixture(scope="module", params=PARTS)
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fresh environment with the wheel of one part and what it needs; no compiler is on the PATH."""
    out = tmp_path_factory.mktemp(request.param)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(out)]
    subprocess.run([*build, str(ROOT / "packaging" / request.param)], check=True, timeout=INSTALL_S)
    (wheel,) = out.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    for name in zipfile.ZipFile(wheel).namelist():
        assert name.startswith("weft/") or ".dist-info/" in name
    subprocess.run([sys.executable, "-m", "venv", out / "venv"], check=True, timeout=INSTALL_S)
    binaries = out / "venv/bin"
    pip = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    subprocess.run(
        [binaries / "python", "-m", "pip", "install", str(wheel)],
        check=True, cwd=out, env={"PATH": str(binaries), "HOME": str(out)} | pip, timeout=INSTALL_S,
    )  # fmt: skip
    return out


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["picker"], indirect=True)
def test_the_picker_alone_is_healthy(environment: Path):
    """It serves Envoy's port, and its health, with neither numpy nor an engine installed."""
    program = str(environment / "venv/bin/weft-picker")
    flags = ("--endpoint", "127.0.0.1:1", "--grpc-port", "0", "--grpc-health-port", "0")
    with started(
        *flags, "--metrics-port", "0", last="  metrics", program=(program,), PYTHONPATH=""
    ) as (_, lines):
        (health,) = (line.split()[1] for line in lines if line.startswith("  health"))
        with grpc.insecure_channel(health) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    (site,) = environment.glob("venv/lib/python*/site-packages")
    assert [
        name for name in ("numpy", "weft/engine", "weft/compute") if (site / name).exists()
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["bench"], indirect=True)
def test_the_benchmark_alone_measures_a_server(environment: Path, tmp_path: Path):
    """Over HTTP and over gRPC; what needs an engine in the process names the distribution that has one."""
    program = str(environment / "venv/bin/weft-bench")

    def weft_bench(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *words], env=clean_environment(PYTHONPATH=""), cwd=tmp_path,
            capture_output=True, text=True, check=False, timeout=10 * PATIENCE_S,
        )  # fmt: skip

    assert weft_bench("--help").stdout.startswith("Usage: weft-bench COMMAND")
    saving = ("--num-prompts", "4", "--output-len", "4", "--save-result", "--result-filename")
    with running("embedded:tiny") as server:
        for backend, url in (("openai", server.http), ("grpc", f"grpc://{server.address}")):
            place = ("--backend", backend, "--base-url", url)
            done = weft_bench("serve", *place, *saving, f"{backend}.json")
            assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("openai", "grpc")]
    assert [(one["completed"], one["failed"]) for one in found] == [(4, 0), (4, 0)]
    done = weft_bench("throughput", "--num-prompts", "1")
    assert (done.returncode, done.stderr) == (
        2, "error: this command needs all of Weft: pip install weft-serve\n",
    )  # fmt: skip
