"""`max-saturation-detector`: whichever of several finds least room counts, each for the stages it sees."""

import asyncio

import pytest

from tests.epp.flow.virtual import report, run, scene
from tests.epp.pools import make_pool, sample, spec

CONFIG = """\
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- {name: flight, type: concurrency-detector, parameters: {maxConcurrency: 10}}
- {name: queue, type: utilization-detector, parameters: {queueDepthThreshold: 10}}
- {name: most, type: max-saturation-detector, parameters: {detectors: [flight, queue]%s}}
flowControl: {saturationDetector: {pluginRef: most}}
"""
POOL = "llm_d_epp_flow_control_pool_saturation"
EACH = "llm_d_epp_flow_control_detector_saturation"


def labels(role: str) -> dict[str, str]:
    return {"llm-d.ai/role": role} if role else {}


@pytest.mark.parametrize(
    ("stages", "roles", "num_sent", "num_waiting", "expected"),
    [
        ("", ("", ""), 4, 1, {"decode": 0.3, "effective": 0.3}),  # one waits, and two were sent
        ("", ("", ""), 4, 0, {"decode": 0.2, "effective": 0.2}),
        ("", ("decode", "prefill"), 0, 9, {"decode": 0.9, "prefill": 0.9}),
        (", stages: {queue: [prefill]}", ("decode", "prefill"), 0, 9, {"decode": 0.0, "prefill": 0.9}),
        (
            ", stages: {queue: [prefill], flight: [prefill]}", ("decode", "prefill"), 0, 9,
            {"decode": 0.0, "effective": 0.9},
        ),
        (", stages: {queue: [prefill]}", ("", ""), 0, 9, {"decode": 0.9}),  # there are no stages
    ],
)  # fmt: skip
def test_the_greatest_counts(
    stages: str, roles: tuple[str, str], num_sent: int, num_waiting: int, expected: dict[str, float]
):
    """Of those that see the stage; where endpoints have no roles all do."""

    async def main() -> dict[str, float | None]:
        pool = make_pool(*(spec(i + 1, **labels(role)) for i, role in enumerate(roles)))
        made = scene(CONFIG % stages, pool)
        report(pool, num_waiting=num_waiting)
        for number in range(num_sent):
            made.send(str(number), 10.0)
        await asyncio.sleep(0.5)
        return {
            stage: sample(made.made, POOL, inference_pool="default", stage=stage)
            for stage in expected
        }

    assert run(main) == pytest.approx(expected)


def test_each_can_be_seen():
    """Which of them it is that closes the pool."""

    async def main() -> list[float | None]:
        pool = make_pool(spec(1))
        made = scene(CONFIG % "", pool)
        report(pool, num_waiting=8)
        made.send("a", 10.0)
        await asyncio.sleep(0.5)
        made.made.assembly.metrics.refresh()
        return [sample(made.made, EACH, detector=name, stage="") for name in ("flight", "queue")]

    assert run(main) == pytest.approx([0.1, 0.9])
