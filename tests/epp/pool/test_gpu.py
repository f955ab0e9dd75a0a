"""GPU telemetry: exporters' pages, and the plugins that go by them."""

import asyncio

import pytest

from tests.epp.config.deployed import STARTING
from tests.epp.pool.test_scrape import answer, server
from tests.epp.pools import around, cycle, make_pool, opened, request, spec, until
from weft.epp.build import load_config
from weft.epp.config.options import PickerOptions
from weft.epp.config.parameters import NoParameters
from weft.epp.decision.attributes import attribute_reader
from weft.epp.metrics.series import PickerMetrics
from weft.epp.plugins.gpu_telemetry import GpuTelemetry
from weft.epp.pool.endpoint import EndpointSpec
from weft.epp.pool.gpu import GpuPoller, GpuReader, GpuSourceParameters

NODE = """\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",container="vllm",namespace="n",pod="e1"} 40
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",container="vllm",namespace="n",pod="e1"} 95
DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-c",container="vllm",namespace="n",pod="e2"} 10
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-d",container="",namespace="",pod=""} 0
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",pod="e1"} 100
"""
BARE = 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 30\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 20\n'
UNMAPPED = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",pod=""} 120\n'


@pytest.mark.parametrize(
    ("page", "pod", "value"),
    [(NODE, "e1", 0.95), (NODE, "e2", 0.1), (NODE, "e3", None), (BARE, "e1", 0.3),
     (UNMAPPED, "e1", 1.0), ("DCGM_FI_DEV_GPU_UTIL NaN\n", "e1", None), ("up 1\n", "e1", None)],
)  # fmt: skip
async def test_the_busiest_gpu_of_an_endpoint_counts(page: str, pod: str, value: float | None):
    """Of a node's page only its own; of a page without pods all."""
    load = await GpuReader(pod).read_page(page.encode())
    assert (load.attributes["GPUUtilization"] if load else None) == value


@pytest.mark.parametrize(
    ("attribute", "producer"),
    [("GPUUtilization", "dcgm-extractor"), ("GPUUtilization/dcgm-extractor", None)],
)
def test_utilization_is_an_attribute_for_as_long_as_it_is_fresh(attribute: str, producer):
    """By both spellings; what is old, or of an endpoint that left, is unknown."""
    pool = make_pool(spec(1), spec(2))
    one, two = pool
    telemetry = GpuTelemetry(NoParameters(), around(pool))
    read = attribute_reader(attribute, producer, around(built={"dcgm-extractor": telemetry}))
    telemetry.observe(one, 0.7, 1003.0)
    assert (read(one, 1003.0), read(one, 1003.1), read(two, 1000.0)) == (0.7, None, None)
    assert telemetry.attribute(one, "other", 1000.0) is None
    pool.replace("test", [])
    assert read(one, 1000.0) is None


class Exporter:
    """Answers with a page, or raises."""

    port = None

    def __init__(self, page: str) -> None:
        self.page = page

    async def load(self):
        load = await GpuReader("e1").read_page(self.page.encode())
        if load is None:
            raise OSError("away")
        return load


async def test_an_exporter_that_was_away_is_read_again(caplog: pytest.LogCaptureFixture):
    """Its failures are said once, and end neither its polls nor what is known before."""
    (endpoint,) = pool = make_pool(spec(1))
    telemetry = GpuTelemetry(NoParameters(), around(pool))
    poller = GpuPoller(
        make_pool(), PickerMetrics(), GpuSourceParameters(), 1.0, 3.0, telemetry.observe
    )
    exporter = Exporter("")
    caplog.set_level("INFO")
    for exporter.page in ("", "", BARE):
        await poller.poll(endpoint, exporter, lambda: 1000.0)
    assert telemetry.attribute(endpoint, "GPUUtilization", 1000.0) == 0.3
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_an_exporter_of_the_node_is_asked_where_the_parameters_say():
    """It names the pod of each GPU, which has other names as an endpoint at each of its ports."""
    placed = EndpointSpec(
        name="one-rank-0", pod="one", address="192.0.2.1", port=8000, node_address="127.0.0.1"
    )
    pool = make_pool(placed, spec(2))
    (endpoint, _) = pool
    telemetry = GpuTelemetry(NoParameters(), around(pool))
    page = b'DCGM_FI_DEV_GPU_UTIL{pod="one"} 40\nDCGM_FI_DEV_GPU_UTIL{pod="other"} 90\n'
    async with server(answer(page)) as (port, _):
        parameters = GpuSourceParameters(port=port, use_node_address=True)
        poller = GpuPoller(pool, PickerMetrics(), parameters, 0.05, 3.0, telemetry.observe)
        try:
            now = asyncio.get_running_loop().time
            await until(lambda: telemetry.attribute(endpoint, "GPUUtilization", now()) == 0.4)
        finally:
            await poller.close()


def test_halves_that_nothing_joins_are_reported():
    """Nobody is to believe that a source without its extractor does something; model lists never do."""
    options = PickerOptions(
        config_text=STARTING["samples/sim-epp-gpu"], allow_experimental_plugins=True
    )
    assert [each.partition(": ")[2] for each in load_config(options).warnings] == [
        "'models-data-source' has no effect: no plugin uses the models that endpoints list",
        "'models-data-extractor' has no effect: no plugin uses the models that endpoints list",
    ]
    text = STARTING["samples/sim-epp-gpu"].replace(
        '"pluginRef": "dcgm-extractor"', '"pluginRef": "d"'
    )
    with pytest.raises(Exception, match="no plugin is named 'd'"):
        load_config(PickerOptions(config_text=text, allow_experimental_plugins=True))


async def test_requests_avoid_busy_gpus():
    """From exporters' pages over HTTP to the pick; an exporter that is away leaves its endpoint in use."""
    async with (
        server(answer(b'DCGM_FI_DEV_GPU_UTIL{pod="one"} 99\n')) as (port, _),
        server(answer(b"vllm:num_requests_waiting 0\n")) as (first, _),
        server(answer(b"vllm:num_requests_waiting 0\n")) as (second, _),
    ):
        text = STARTING["samples/sim-epp-gpu"].replace("9400", str(port)).replace("1s", "50ms")
        async with opened(
            PickerOptions(
                config_text=text,
                allow_experimental_plugins=True,
                endpoints=(
                    f"127.0.0.1:{first},name=one,llm-d.ai/role=decode",
                    f"127.0.0.1:{second},name=two,llm-d.ai/role=decode",
                ),
            )
        ) as picker:
            one, two = picker.pool
            telemetry = picker.assembly.plugins["dcgm-extractor"]
            now = asyncio.get_running_loop().time
            await until(lambda: telemetry.attribute(one, "GPUUtilization", now()) == 0.99)
            passing = picker.assembly.plugins["endpoint-attribute-filter"]
            made = cycle([one, two])
            made.now = now()
            assert passing.keep(made, [one, two]) == [two]
            decision = await picker.director.pick(request(1), None)
            assert decision.endpoints == (two.host_port,)
