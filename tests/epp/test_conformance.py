"""The cases of Gateway API Inference Extension's conformance suite that a picker takes part in, by their names.

The suite tests gateways and is written in Go. Here the picker alone gets the suite's requests. `docs/picker.md` has all
cases, and the tests of those that need a gateway.
"""

from collections import Counter

import pytest

from tests.epp.pools import Bench, bench, make_pool, request, spec
from weft.core.headers import TESTED_ENDPOINTS
from weft.epp.pool.endpoint import EndpointSpec

PICKER = """
plugins:
- type: header-based-testing-filter
- type: random-picker
schedulingProfiles:
- {name: default, plugins: [{pluginRef: header-based-testing-filter}, {pluginRef: random-picker}]}
"""
NUM_REQUESTS = 100
PORTS = (3000, 3002, 3004)


def picker(*specs: EndpointSpec) -> Bench:
    """A picker with the suite's configuration, which a header of the request directs."""
    return bench(PICKER, make_pool(*specs))


def reached(made: Bench, header: str) -> set[str]:
    """The endpoints that a hundred requests reach."""
    wanted = request(1, headers={TESTED_ENDPOINTS: header})
    counts = Counter(made.pick(wanted).endpoints[0] for _ in range(NUM_REQUESTS))
    assert counts.total() == NUM_REQUESTS
    return set(counts)


@pytest.mark.parametrize("numbers", [(3,), (1, 2), (1, 2, 3)], ids=["one", "two", "all"])
def test_gateway_following_epp_routing(numbers: tuple[int, ...]):
    """GatewayFollowingEPPRouting: only the designated pods get requests, and each of them does."""
    made = picker(*(spec(number, port=PORTS[0]) for number in (1, 2, 3)))
    header = ",".join(f"10.0.0.{number}" for number in numbers)
    assert reached(made, header) == {f"10.0.0.{number}:3000" for number in numbers}


@pytest.mark.parametrize(
    ("header", "ports_by_pod"),
    [
        ("10.0.0.2", {2: PORTS}),
        ("10.0.0.1,10.0.0.3:3002", {1: PORTS, 3: (3002,)}),
        ("10.0.0.1,10.0.0.2:3000,10.0.0.2:3004,10.0.0.3", {1: PORTS, 2: (3000, 3004), 3: PORTS}),
    ],
    ids=["one pod", "two pods, one with a rank", "all pods, one with two ranks"],
)
def test_gateway_following_epp_routing_with_data_parallelism(
    header: str, ports_by_pod: dict[int, tuple[int, ...]]
):
    """GatewayFollowingEPPRoutingWithDataParallelism: the same with ranks at several ports of a pod."""
    made = picker(
        *(
            EndpointSpec(name=f"e{number}-rank-{rank}", address=f"10.0.0.{number}", port=port)
            for number in (1, 2, 3)
            for rank, port in enumerate(PORTS)
        )
    )
    expected = {f"10.0.0.{pod}:{port}" for pod, ports in ports_by_pod.items() for port in ports}
    assert reached(made, header) == expected


def test_gateway_weighted_across_two_inference_pools():
    """GatewayWeightedAcrossTwoInferencePools: of all pods of two pools, a picker takes those of its own pool."""
    made = picker(*(spec(number, port=PORTS[0]) for number in (1, 2, 3)))
    header = ",".join(f"10.0.0.{number}" for number in range(1, 7))
    assert reached(made, header) == {f"10.0.0.{number}:3000" for number in (1, 2, 3)}
