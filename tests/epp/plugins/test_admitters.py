import pytest

from tests.epp.pools import around, bench, cycle, parameters, pool_of, request, with_loads
from weft.epp.plugins.admitters import ProbabilisticAdmitter, ProbabilisticParameters
from weft.epp.pool.endpoint import Load
from weft.epp.pool.objects import Objects
from weft.epp.request.values import Drop, Refused


def num_shed(*, priority: int, waiting: int, **values: float) -> int:
    """Of a thousand requests."""
    pool = pool_of(2)
    candidates = with_loads(pool, *[Load(num_waiting=waiting)] * 2)
    admitter = ProbabilisticAdmitter(parameters(ProbabilisticParameters, **values), around(pool))
    count = 0
    for _ in range(1000):
        asked = cycle(candidates)
        asked.priority = priority
        try:
            admitter.admit(asked)
        except Refused as refused:
            count += (refused.status, refused.reason) == (429, Drop.SATURATED)
    return count


def test_only_sheddable_requests_are_shed_by_chance():
    """Saturation 0.2 sheds 300 * 0.2 ** 5 of them: 9.6 %."""
    assert num_shed(priority=0, waiting=50) == 0
    assert num_shed(priority=-1, waiting=0) == 0
    assert 40 < num_shed(priority=-1, waiting=1) < 180
    assert num_shed(priority=-1, waiting=2) == 1000


def test_the_curve_can_be_set():
    """Also where numbers would leave the range of a float."""
    assert num_shed(priority=-1, waiting=2, k=0.0001) < 20
    assert num_shed(priority=-1, waiting=10**9, power=500.0) == 1000


def test_an_endpoint_that_reports_nothing_counts_as_full():
    """As in the reference."""
    admitter = ProbabilisticAdmitter(ProbabilisticParameters(), around())
    asked = cycle(list(pool_of(1)))
    asked.priority = -1
    with pytest.raises(Refused):
        admitter.admit(asked)


def test_the_director_asks_admitters_before_it_chooses():
    """A request that is shed counts nowhere."""
    made = bench(
        "plugins: [{type: probabilistic-admitter}, {type: utilization-detector,"
        " parameters: {queueDepthThreshold: 9999}}]\n"
        "flowControl: {saturationDetector: {pluginRef: utilization-detector}}\n",
        pool_of(2),
    )
    made.director.objects = Objects(priorities={"batch": -1})
    headers = {"x-llm-d-inference-objective": "batch"}
    with_loads(made.pool, *[Load(num_waiting=5)] * 2)
    with pytest.raises(Refused, match="refused with probability 1"):
        made.pick(request(1, headers=headers))
    assert made.pick(request(1)).endpoints
    assert sum(len(each.unseen) for each in made.pool) == 1
