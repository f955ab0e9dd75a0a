"""What `deploy/` and its pages say of our flags, settings, ports, paths, series and probes is there, by the code."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from tests.deploy.command_line import is_taken
from weft.cli.commands import make_app
from weft.cli.options import ServeOptions
from weft.cli.picker.options import EppOptions
from weft.cli.up.envoy import PROBE_PAGES
from weft.core.headers import PREFILLER
from weft.core.observe.metric_series import PREFIX, SERIES, Kind
from weft.engine.transfer.settings import DEFAULT_PORT as TRANSFER_PORT
from weft.epp.flow.series import FlowSeries
from weft.epp.metrics.series import PREFIX as PICKER_PREFIX
from weft.epp.metrics.series import PickerMetrics
from weft.epp.server.pages import PUBLIC
from weft.web.http.options import HttpOptions
from weft.web.http.state import ServerState
from weft.web.routes import all_endpoints

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
# Held to the code by tests of their own: test_epp_envoy_file.py, test_kubernetes.py, test_prometheus.py.
ELSEWHERE = {
    DEPLOY / "envoy.yaml",
    DEPLOY / "kubernetes" / "fleet" / "envoy.yaml",
    DEPLOY / "grafana" / "weft.json",
    DEPLOY / "perses" / "weft.json",
}
# These also run programs that are not ours, with flags of their own; vLLM's are held to vLLM's in test_pool.py.
MIXED = {".md", ".txt", ""}
VLLMS = {DEPLOY / "kubernetes" / name / "workers.yaml" for name in ("pool-vllm", "pool-lws")}
TEXT = {
    "setting": r"\b(WEFT_[A-Z][A-Z0-9_]*)",
    "series": r"\b((?:vllm:|llm_d_epp_)\w+)",
    "port": r"(?:(?:127\.0\.0\.1|localhost|0\.0\.0\.0):|\b(?:containerPort|port|targetPort|grpcPort)[:=] ?)(\d+)",
    "path": r"(?:https?://[\w.]+:\d+|\bpath: )(/[\w/]+)",
    "body": r"client_max_body_size (\d+m)",
}


def facts() -> Iterator[tuple[str, str, str]]:
    """File, kind and value of all that is named anywhere in `deploy/` or on its pages."""
    files = {path for path in DEPLOY.rglob("*") if path.is_file()} - ELSEWHERE
    for path in sorted((*files, *(ROOT / "docs" / name for name in ("deploy.md", "services.md")))):
        text = path.read_text(encoding="utf-8")
        found = {*_of_text(text, has_others=path.suffix in MIXED or path in VLLMS)}
        if path.suffix == ".yaml" and "templates" not in path.parts:
            for document in yaml.safe_load_all(text):
                found |= {*_of_yaml(document)}
        for kind, value in sorted(found):
            yield path.relative_to(ROOT).as_posix(), kind, value


def _of_text(text: str, *, has_others: bool) -> Iterator[tuple[str, str]]:
    for kind, pattern in TEXT.items():
        yield from ((kind, value) for value in re.findall(pattern, text))
    joined = re.sub(r"\\\n#?", "", text)
    for line in re.findall(r"(?<![\w/.@-])weft ((?:serve|epp|up)(?: [^`\n#|]*)?)", joined):
        yield "command", line.strip()
    for words in re.findall(r"^(?:CMD|ENTRYPOINT) (\[.*\])", text, re.MULTILINE):
        program, *rest = json.loads(words)
        if program in {"weft", "serve"}:  # others are no commands of ours
            yield "command", shlex.join(rest if program == "weft" else [program, *rest])
    for ports in re.findall(r"^EXPOSE (.*)", text, re.MULTILINE):
        yield from (("port", port) for port in ports.split())
    if not has_others:
        yield from (("flag", flag) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def _of_yaml(node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, list):
        for item in node:
            yield from _of_yaml(item)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        yield from _of_yaml(value)
        if key in {"command", "args"} and value[:1] in (["serve"], ["epp"]):
            yield "command", shlex.join(map(str, value))
        elif key == "ports":
            published = (one for one in value if isinstance(one, str))
            yield from (("port", port) for one in published for port in one.split(":"))


def _flags() -> set[str]:
    app = make_app()
    collections = (app[name].assemble_argument_collection() for name in ("serve", "epp"))
    own = {name for arguments in collections for one in arguments for name in one.names}
    return own | {"--concurrency"}  # Envoy's own


def _exposed() -> set[str]:
    suffixes = {
        Kind.COUNTER: ("_total",),
        Kind.GAUGE: ("",),
        Kind.HISTOGRAM: ("_bucket", "_sum", "_count"),
    }
    ours = {f"{PREFIX}{one.name}{end}" for one in SERIES for end in suffixes[one.kind]}
    metrics = PickerMetrics()
    FlowSeries(metrics, "default")
    picker = metrics.declared
    kinds = {
        kind.value: ends if kind is not Kind.COUNTER else ("",) for kind, ends in suffixes.items()
    }
    return ours | {
        f"{PICKER_PREFIX}{one.name.removeprefix(PICKER_PREFIX)}{end}"
        for one in picker
        for end in kinds[one.kind]
    }


def _ports() -> set[str]:
    serve, epp = ServeOptions(), EppOptions()
    own = {serve.port, serve.grpc_port, epp.grpc_port, epp.grpc_health_port, epp.metrics_port}
    own.add(TRANSFER_PORT)
    files = (DEPLOY / "envoy.yaml", DEPLOY / "kubernetes" / "fleet" / "envoy.yaml")
    envoy = re.findall(r"port_value: (\d+)", "".join(map(Path.read_text, files)))
    return {*map(str, own), *envoy}


def _paths() -> set[str]:
    served = {endpoint.path for endpoint in all_endpoints(ServerState(CollectorRegistry()))}
    return served | {*PUBLIC} | {*PROBE_PAGES} | {"/v1"}


FACTS = list(facts())
FLAGS, EXPOSED, PORTS, PATHS = _flags(), _exposed(), _ports(), _paths()
CHECKS: dict[str, Callable[[str], bool]] = {
    "setting": lambda name: "--" + name.removeprefix("WEFT_").replace("_", "-").lower() in FLAGS,
    "flag": FLAGS.__contains__,
    "series": EXPOSED.__contains__,
    "port": PORTS.__contains__,
    "path": PATHS.__contains__,
    "body": lambda size: size == f"{HttpOptions().max_body_bytes // 2**20}m",
    "command": is_taken,
}


@pytest.mark.parametrize(("path", "kind", "value"), FACTS)
def test_what_a_deployment_names_is_there(path: str, kind: str, value: str):
    """A flag, setting, port, path or series that was renamed is renamed in the recipes too."""
    assert CHECKS[kind](value), f"{path}: {kind} {value} is not ours"


def test_facts_of_every_kind_are_found():
    """A recipe that nobody reads would pass."""
    assert {kind for _, kind, _ in FACTS} == {*CHECKS}
    assert {path for path, _, _ in FACTS} >= {"deploy/docker/Dockerfile", "deploy/nginx/weft.conf"}


@pytest.mark.parametrize("directive", ["proxy_set_header", "grpc_set_header"])
def test_nobody_outside_names_the_server_that_computes_a_prompt(directive: str):
    """Over either protocol: nginx leaves out a header whose value is empty."""
    text = (ROOT / "deploy" / "nginx" / "weft.conf").read_text(encoding="utf-8")
    assert f'{directive} {PREFILLER} "";' in text
