"""`max-saturation-detector`: whichever of several finds least room counts, each for the stages it sees."""

import asyncio

import pytest

from tests.epp.flow.virtual import now, report, run, scene, virtually
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
@virtually
async def test_the_greatest_counts(
    stages: str, roles: tuple[str, str], num_sent: int, num_waiting: int, expected: dict[str, float]
):
    """Of those that see the stage; where endpoints have no roles all do."""
    pool = make_pool(*(spec(i + 1, **labels(role)) for i, role in enumerate(roles)))
    made = scene(CONFIG % stages, pool)
    report(pool, num_waiting=num_waiting)
    for number in range(num_sent):
        made.send(str(number), 10.0)
    await asyncio.sleep(0.5)
    assert {
        stage: sample(made.made, POOL, inference_pool="default", stage=stage) for stage in expected
    } == pytest.approx(expected)


@virtually
async def test_each_can_be_seen():
    """Which of them it is that closes the pool."""
    pool = make_pool(spec(1))
    made = scene(CONFIG % "", pool)
    report(pool, num_waiting=8)
    made.send("a", 10.0)
    await asyncio.sleep(0.5)
    made.made.assembly.metrics.refresh()
    assert [
        sample(made.made, EACH, detector=name, stage="") for name in ("flight", "queue")
    ] == pytest.approx([0.1, 0.9])


# -- as endpoints report it ---------------------------------------------------------------------

SCRAPED = """\
featureGates: [flowControl]
plugins:
- {type: queue-scorer}
- {type: scraped-concurrency-detector, parameters: {maxConcurrency: 10, ownDispatchWindow: 3s}}
flowControl: {saturationDetector: {pluginRef: scraped-concurrency-detector}}
"""


def scraped(roles: tuple[str, str], num_known: int) -> dict[str, float | None]:
    """Of two endpoints that each run three and have one waiting, when two more were sent to them half a second ago."""

    async def main() -> dict[str, float | None]:
        pool = make_pool(*(spec(i + 1, **labels(role)) for i, role in enumerate(roles)))
        made = scene(SCRAPED, pool)
        report(pool, num_running=3, num_waiting=1)
        for name in "ab":
            made.send(name, 100.0)
        await asyncio.sleep(5)  # by then what was reported is stale
        for endpoint in list(pool)[:num_known]:
            endpoint.observe(endpoint.load, polled_at=now())
        for name in "cd":
            made.send(name, 100.0)
        await asyncio.sleep(0.5)
        found = {
            stage: sample(made.made, POOL, inference_pool="default", stage=stage)
            for stage in ("decode", "prefill")
        }
        made.made.director.close()
        return found

    return run(main)


@pytest.mark.parametrize(
    ("roles", "num_known", "decode", "prefill"),
    [
        (("", ""), 2, 10 / 20, None),  # eight are reported, two are on their way
        (("", ""), 1, 10 / 10, None),  # who reports nothing has no room, and had four
        (("", ""), 0, 0.0, None),  # polls that fail close no pool
        (("decode", "prefill"), 2, 10 / 10, 10 / 10),  # what is in prefill will decode
    ],
)
def test_what_is_under_way_anywhere_counts(
    roles: tuple[str, str], num_known: int, decode: float, prefill: float | None
):
    """As reported, and what was sent since, against the room of the stage's endpoints that report."""
    found = scraped(roles, num_known)
    assert found["decode"] == pytest.approx(decode)
    assert found["prefill"] == (None if prefill is None else pytest.approx(prefill))


@virtually
async def test_what_was_sent_counts_for_a_while():
    """`ownDispatchWindow`: an endpoint whose reports do not show it is not full for ever."""
    pool = make_pool(spec(1))
    made = scene(SCRAPED.replace("3s", "1s"), pool)
    seen = []
    report(pool)
    made.send("a", 100.0)
    for _ in range(2):
        await asyncio.sleep(0.9)
        seen.append(sample(made.made, POOL, inference_pool="default", stage="effective"))
    made.made.director.close()
    assert seen == pytest.approx([0.1, 0.0])
