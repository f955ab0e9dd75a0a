"""A picker of clusters: what it reads of other pickers, and where it sends requests."""

from pathlib import Path

import pytest

from tests.epp.config.deployed import STARTING
from tests.epp.pool.test_scrape import answer, server
from tests.epp.pools import around, bench, cycle, opened, pool_of, request, until, with_loads
from weft.core.errors import ConfigError
from weft.epp.config.options import PickerOptions
from weft.epp.config.parameters import NoParameters
from weft.epp.decision.cycle import Cycle
from weft.epp.plugins.clusters import ClusterKvUsageScorer, ClusterQueueScorer
from weft.epp.pool.clusters import (
    KV_ATTRIBUTE,
    QUEUE_ATTRIBUTE,
    ClusterExtractorParameters,
    ClusterReader,
    ClusterSourceParameters,
)
from weft.epp.pool.endpoint import Load
from weft.epp.pool.endpoints_file import read_endpoints
from weft.epp.pool.poller import make_tls


def leaf_page(*loads: Load) -> bytes:
    """The page of a picker whose endpoints have these loads."""
    pool = pool_of(len(loads))
    with_loads(pool, *loads)
    made = bench("plugins: [{type: queue-scorer}]\n", pool, pool_name="leaf")
    made.assembly.metrics.refresh()
    return made.assembly.metrics.rendered()


async def test_the_page_of_a_picker_is_the_load_of_its_cluster():
    """Averages over its pool, as this picker writes them too."""
    page = leaf_page(Load(num_waiting=4, kv_usage=0.5), Load(num_waiting=1, kv_usage=0.1))
    load = await ClusterReader(ClusterExtractorParameters()).read_page(page)
    assert load.attributes == {KV_ATTRIBUTE: pytest.approx(0.3), QUEUE_ATTRIBUTE: 2.5}
    assert (load.num_waiting, load.kv_usage) == (2, pytest.approx(0.3))


@pytest.mark.parametrize(
    ("page", "attributes"),
    [
        (b"mine{a=\"b\"} 3\nmine{a=\"c\"} 9\n", {QUEUE_ATTRIBUTE: 3.0}),
        (b"llm_d_epp_average_kv_cache_utilization 7\n", {KV_ATTRIBUTE: 1.0}),
        (b"mine{a=\"b\"} NaN\n", None),
        (b"vllm:num_requests_waiting 3\n", None),
    ],
)  # fmt: skip
async def test_a_series_may_have_another_name(page: bytes, attributes: dict[str, float] | None):
    """One that is absent, or no number, says nothing."""
    reader = ClusterReader(ClusterExtractorParameters(queue_size_metric="mine{a=b}"))
    load = await reader.read_page(page)
    assert (load.attributes if load else None) == attributes


def test_clusters_are_scored_by_their_averages():
    """One that reports nothing scores nothing, and does not stretch the range."""
    loads = [
        Load(attributes={QUEUE_ATTRIBUTE: queue, KV_ATTRIBUTE: queue / 10})
        for queue in (1.5, 2.0, 5.0)
    ]
    candidates = with_loads(pool_of(4), *loads, Load())
    queue = ClusterQueueScorer(NoParameters(), around())
    kv = ClusterKvUsageScorer(NoParameters(), around())
    made: Cycle = cycle(candidates)
    assert queue.score(made, candidates) == pytest.approx([1.0, 3.0 / 3.5, 0.0, 0.0])
    assert kv.score(made, candidates) == pytest.approx([0.85, 0.8, 0.5, 0.0])
    assert queue.score(made, candidates[3:]) == [0.0]


def test_the_picker_of_a_cluster_may_report_elsewhere(tmp_path: Path):
    """By two labels, which mean nothing in a file of plain endpoints."""
    path = tmp_path / "clusters.yaml"
    path.write_text(
        "endpoints:\n"
        "- {name: a, address: gw.a.example, port: 443, labels: {metricsAddress: epp.a.example, metricsPort: '9090'}}\n"
        "- {name: b, address: gw.b.example, port: 443, labels: {metricsAddress: epp.b.example}}\n"
        "- {name: c, address: gw.c.example, port: 443}\n"
        "- {name: d, address: gw.d.example, port: 443, labels: {metricsAddress: 'no host'}}\n"
        "- {name: e, address: gw.e.example, port: 443, labels: {metricsAddress: e, metricsPort: x}}\n"
    )
    found, problems = read_endpoints(path, are_clusters=True)
    assert [(each.metrics_address, each.metrics_port) for each in found] == [
        ("epp.a.example", 9090), ("epp.b.example", None), (None, None),
    ]  # fmt: skip
    assert [problem.partition(" must")[0] for problem in problems] == [
        "endpoints[3]: labels.metricsAddress", "endpoints[4]: labels.metricsPort",
    ]  # fmt: skip
    plain, problems = read_endpoints(path)
    assert problems == []
    assert {(each.metrics_address, each.metrics_port) for each in plain} == {(None, None)}


def test_clusters_are_read_over_verified_tls():
    """Unless a file says otherwise."""
    parameters = ClusterSourceParameters()
    assert parameters.scheme == "https"
    assert make_tls(parameters).check_hostname
    with pytest.raises(ConfigError, match="certificate cannot be read"):
        make_tls(ClusterSourceParameters(ca_cert_path="/absent"))


def hub_config(path: Path, *ports: int) -> str:
    """The guide's configuration over clusters whose pickers report at these ports of another address."""
    entries = [
        f"- {{name: c{i}, address: 10.0.0.{i + 1}, port: 80, "
        f"labels: {{metricsAddress: 127.0.0.1, metricsPort: '{port}'}}}}\n"
        for i, port in enumerate(ports)
    ]
    path.write_text("endpoints:\n" + "".join(entries))
    return STARTING["guides/multi-cluster-routing"].replace("/etc/endpoints.yaml", str(path))


async def test_requests_go_to_the_cluster_that_has_room(tmp_path: Path):
    """As the pickers of both report it, over HTTP; one that is away keeps its cluster in the pool."""
    busy = answer(leaf_page(Load(num_waiting=9, kv_usage=0.9)))
    idle = answer(leaf_page(Load(num_waiting=1, kv_usage=0.1)))
    async with server(busy) as (one, _), server(idle) as (two, _):
        text = hub_config(tmp_path / "clusters.yaml", one, two, 1)
        async with opened(PickerOptions(config_text=text, allow_experimental_plugins=True)) as hub:
            full, free, away = hub.pool
            await until(lambda: full.loaded_at and free.loaded_at and away.num_poll_failures)
            decision = await hub.director.pick(request(1), None)
            assert decision.endpoints == ("10.0.0.2:80",)
            assert not away.is_refusing
