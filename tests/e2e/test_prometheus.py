"""A real Prometheus scrapes a live engine, and every panel of our dashboards has data."""

import asyncio
import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.busy import PATIENCE_S
from tests.cli.running import SMALL, running
from tests.ports import free_port
from weft.core.observe.metric_series import PREFIX, SERIES

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "weft.json").read_text(encoding="utf-8"))
GRAFANA = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
PERSES = [
    query["spec"]["plugin"]["spec"]["query"]
    for panel in json.loads((DEPLOY / "perses" / "weft.json").read_text(encoding="utf-8"))["spec"][
        "panels"
    ].values()
    for query in panel["spec"]["queries"]
]
EXPRESSIONS = list(dict.fromkeys((*GRAFANA, *PERSES)))
SCRAPES_S = 0.25
WINDOW = "3s"

# Panels of the dashboards that vLLM's users have: what they ask, written as they write it.
THEIRS = [
    "histogram_quantile(0.99, sum by(le) (rate(vllm:e2e_request_latency_seconds_bucket[3s])))",
    "rate(vllm:e2e_request_latency_seconds_sum[3s]) / rate(vllm:e2e_request_latency_seconds_count[3s])",
    "rate(vllm:prompt_tokens_total[3s])",
    "rate(vllm:generation_tokens_total[3s])",
    "histogram_quantile(0.99, sum by(le) (rate(vllm:inter_token_latency_seconds_bucket[3s])))",
    "histogram_quantile(0.99, sum by(le) (rate(vllm:time_per_output_token_seconds_bucket[3s])))",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "histogram_quantile(0.99, sum by(le) (rate(vllm:time_to_first_token_seconds_bucket[3s])))",
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sum by(le) (increase(vllm:request_prompt_tokens_bucket[3s]))",
    "sum by(le) (increase(vllm:request_generation_tokens_bucket[3s]))",
    "sum by(finished_reason) (increase(vllm:request_success_total[3s]))",
    "rate(vllm:request_queue_time_seconds_sum[3s])",
    "rate(vllm:request_prefill_time_seconds_sum[3s])",
    "rate(vllm:request_decode_time_seconds_sum[3s])",
    "rate(vllm:request_max_num_generation_tokens_sum[3s])",
    'up{job="weft"}',
]


@pytest.fixture(scope="session")
def prometheus_binary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`prometheus` of the PATH, or unpacked from the distribution's package without installing it."""
    installed = shutil.which("prometheus")
    if installed is not None:
        return installed
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("no prometheus on the PATH, and no apt-get and dpkg to unpack one with")
    directory = tmp_path_factory.mktemp("prometheus")
    fetched = subprocess.run(
        ["apt-get", "download", "prometheus"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    packages = list(directory.glob("prometheus_*.deb"))
    if not packages:
        pytest.skip(f"no prometheus on the PATH, and apt-get has none: {fetched.stderr[-200:]}")
    subprocess.run(["dpkg", "-x", packages[0], directory], check=True)
    return str(directory / "usr" / "bin" / "prometheus")


def test_the_dashboard_asks_for_series_that_exist():
    """A panel of a renamed series would stay empty without a word. Perses' has the same panels."""
    assert GRAFANA[0] == PERSES[0]
    assert len(GRAFANA) <= len(PERSES)
    named = {word for text in EXPRESSIONS for word in text.replace("{", "(").split("(")}
    asked = {word.removeprefix(PREFIX) for word in named if word.startswith(PREFIX)}
    suffixes = ("", "_total", "_sum", "_count", "_bucket")
    there = {series.name + suffix for series in SERIES for suffix in suffixes}
    assert asked
    assert asked <= there


def configuration(target: str) -> str:
    """Ours, pointed at a server of the test and in more of a hurry."""
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    settings["global"]["scrape_interval"] = f"{int(SCRAPES_S * 1000)}ms"
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    return yaml.safe_dump(settings)


@contextmanager
def started(binary: str, directory: Path, target: str, port: int) -> Iterator[None]:
    """Prometheus on `port`."""
    (directory / "prometheus.yml").write_text(configuration(target), encoding="utf-8")
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
            env={**os.environ, "GOMAXPROCS": "1"},
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


async def ask_for_ever(http: httpx2.AsyncClient, number: int) -> None:
    """One request after the other, of prompts that are alike."""
    body = {"prompt": [5] * (30 + number), "max_tokens": 4 + number, "n": 1 + number % 2}
    while True:
        answer = await http.post("/v1/completions", json={**body, "model": SMALL})
        assert answer.status_code == 200, answer.text


async def values(http: httpx2.AsyncClient, expression: str) -> list[float]:
    """What Prometheus makes of a panel's query; empty for no data, or for no number."""
    filled = expression.replace("$__rate_interval", WINDOW).replace("$model_name", ".+")
    answer = (await http.get("/api/v1/query", params={"query": filled})).json()
    assert answer["status"] == "success", (expression, answer)
    found = [float(series["value"][1]) for series in answer["data"]["result"]]
    return [] if any(map(math.isnan, found)) else found


async def without_data(http: httpx2.AsyncClient, expressions: list[str]) -> list[str]:
    """Those that have none now."""
    return [text for text in expressions if not await values(http, text)]


@pytest.mark.slow
async def test_every_panel_has_data_while_the_server_works(prometheus_binary: str, tmp_path: Path):
    """Ours for Grafana and Perses, and those that dashboards made for vLLM ask for, older names included."""
    with running(SMALL, "--show-hidden-metrics-for-version=0.10") as server:
        address = server.http
        port = free_port()
        async with (
            httpx2.AsyncClient(base_url=address, timeout=PATIENCE_S) as weft,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http,
            asyncio.TaskGroup() as group,
        ):
            callers = [group.create_task(ask_for_ever(weft, number)) for number in range(4)]
            with started(prometheus_binary, tmp_path, address.removeprefix("http://"), port):
                await until_ready(http)
                missing = await until_there(http, EXPRESSIONS + THEIRS)
            for caller in callers:
                caller.cancel()
    assert missing == []


async def until_ready(http: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if (await http.get("/-/ready")).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.1)


async def until_there(http: httpx2.AsyncClient, expressions: list[str]) -> list[str]:
    """What has no data even after 30 s; rates need some scrapes."""
    missing = expressions
    for _ in range(60):
        missing = await without_data(http, missing)
        if not missing:
            break
        await asyncio.sleep(0.5)
    return missing
