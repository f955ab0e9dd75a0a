import re

import pytest

from tests.epp.plugins.test_scorers import make_inflight, match
from tests.epp.pools import around, cycle, make_pool, parameters, pool_of, spec, with_loads
from weft.core.errors import ConfigError
from weft.epp.config.decode import decode
from weft.epp.config.parameters import NoParameters
from weft.epp.decision.cycle import Schedule
from weft.epp.plugins.detectors.concurrency import ConcurrencyDetector, ConcurrencyParameters
from weft.epp.plugins.detectors.utilization import UtilizationDetector, UtilizationParameters
from weft.epp.plugins.filters import header_testing
from weft.epp.plugins.filters.by_label import LabelFilter, LabelParameters
from weft.epp.plugins.filters.endpoint_attribute import AttributeFilter, AttributeFilterParameters
from weft.epp.plugins.filters.label_selector import LabelSelectorFilter, SelectorParameters
from weft.epp.plugins.filters.prefix_cache_affinity import (
    PrefixAffinityFilter,
    PrefixAffinityParameters,
)
from weft.epp.plugins.filters.role import decode_filter, encode_filter, prefill_filter
from weft.epp.plugins.filters.utilization import UtilizationFilter, UtilizationFilterParameters
from weft.epp.pool.endpoint import Load

ROLE = "llm-d.ai/role"
ROLES = ["decode", "prefill", "encode", "prefill-decode", "both", "encode-prefill",
         "encode-prefill-decode"]  # fmt: skip


def names(endpoints) -> list[str]:
    return [endpoint.spec.name for endpoint in endpoints]


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (decode_filter, ["e1", "e4", "e5", "e7", "e8"]),
        (prefill_filter, ["e2", "e4", "e5", "e6", "e7"]),
        (encode_filter, ["e3", "e6", "e7"]),
    ],
)
def test_role_filters_keep_their_roles(make, kept: list[str]):
    """An endpoint without a role decodes and does nothing else."""
    pool = make_pool(*(spec(i + 1, **{ROLE: role}) for i, role in enumerate(ROLES)), spec(8))
    found = make(NoParameters(), around()).keep(cycle(list(pool)), list(pool))
    assert names(found) == kept


@pytest.mark.parametrize(
    ("selector", "kept"),
    [
        ({"matchLabels": {"a": "1"}}, ["e1", "e2"]),
        ({"matchLabels": {"a": "1", "b": "1"}}, ["e2"]),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["2", "3"]}]}, ["e3"]),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, ["e3", "e4"]),
        ({"matchExpressions": [{"key": "b", "operator": "Exists"}]}, ["e2"]),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, ["e4"]),
    ],
)
def test_label_selector_selects_as_kubernetes_does(selector, kept: list[str]):
    """All requirements hold together; NotIn is met by a label that is not there."""
    pool = make_pool(spec(1, a="1"), spec(2, a="1", b="1"), spec(3, a="2"), spec(4))
    found = LabelSelectorFilter(parameters(SelectorParameters, **selector), around())
    assert names(found.keep(cycle(list(pool)), list(pool))) == kept


@pytest.mark.parametrize(
    "selector",
    [{}, {"matchExpressions": [{"key": "a", "operator": "In"}]},
     {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["1"]}]},
     {"matchExpressions": [{"key": "a", "operator": "Like", "values": ["1"]}]}],
)  # fmt: skip
def test_selectors_without_sense_are_refused(selector):
    """An operator has the values it needs and no others."""
    with pytest.raises(ConfigError, match=r"^p"):
        decode(selector, SelectorParameters, "p")


def test_deprecated_label_filter_knows_values_and_the_unlabelled():
    """Its older parameters still work."""
    pool = make_pool(spec(1, a="1"), spec(2, a="2"), spec(3))
    values = parameters(LabelParameters, label="a", validValues=["2"], allowsNoLabel=True)
    found = LabelFilter(values, around()).keep(cycle(list(pool)), list(pool))
    assert names(found) == ["e2", "e3"]


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        ("10.0.0.2", ["e2"]),
        ("10.0.0.3:8000, 10.0.0.1,10.0.0.3", ["e3", "e1"]),
        ("10.0.0.1:9999", []),
        ("256.256.256.256", []),
    ],
)
def test_header_testing_filter_keeps_the_named_in_order(header: str, kept: list[str]):
    """By address, or address and port; each once."""
    pool = pool_of(3)
    asked = cycle(list(pool), headers={"test-epp-endpoint-selection": header})
    found = header_testing.HeaderTestingFilter(NoParameters(), around())
    assert names(found.keep(asked, list(pool))) == kept


def test_header_testing_filter_keeps_all_without_the_header():
    """It is there for tests only."""
    candidates = list(pool_of(2))
    found = header_testing.HeaderTestingFilter(NoParameters(), around())
    assert found.keep(cycle(candidates), candidates) == candidates


def affinity_filter(pool, *, tokens: tuple[int, ...] = (0, 0), **settings):
    inflight = make_inflight(pool, *(0 for _ in tokens))
    for i, (endpoint, count) in enumerate(zip(pool, tokens, strict=True)):
        made = cycle(list(pool), num_tokens=count)
        made.ticket_id = i
        inflight.picked(made, Schedule("p", {"p": [endpoint]}))
    values = parameters(PrefixAffinityParameters, **settings)
    built = {"inflight-load-producer": inflight}
    return PrefixAffinityFilter(values, around(pool, built=built))


@pytest.mark.parametrize(
    ("held", "settings", "tokens", "kept"),
    [
        ((4, 0), {}, (0, 0), [0]),
        ((3, 0), {}, (0, 0), [0, 1]),  # 0.75 is less than 0.80
        ((3, 0), {"affinityThreshold": 0.75}, (0, 0), [0]),
        ((4, 0), {"explorationProbability": 1.0}, (0, 0), [0, 1]),
        ((4, 0), {"peakPrefillThroughput": 1000}, (19_000, 0), [0, 1]),
        ((4, 0), {"peakPrefillThroughput": 1000}, (17_000, 0), [0]),
        ((4, 0), {"peakPrefillThroughput": 1000, "maxTTFTPenaltyMs": 0}, (10**9, 0), [0]),
    ],
)
def test_prefix_affinity_stays_unless_it_costs_too_much(held, settings, tokens, kept):
    """Sticky by share; free when exploring or when the wait exceeds the penalty."""
    pool, found = match(*held)
    candidates = list(pool)
    filter_ = affinity_filter(pool, tokens=tokens, **settings)
    asked = cycle(candidates, match=found)
    assert list(filter_.keep(asked, candidates)) == [candidates[i] for i in kept]


@pytest.mark.parametrize(
    ("conditions", "falls_back", "kept"),
    [
        ([{"metric": "waiting-queue", "maxValue": 2}], False, ["e1", "e2"]),
        ([{"metric": "waiting-queue", "maxValue": 2},
          {"metric": "kv-cache-utilization", "maxValue": 0.5}], False, ["e1"]),
        ([{"metric": "running-requests", "maxValue": 0}], False, []),
        ([{"metric": "running-requests", "maxValue": 0}], True, ["e1", "e2", "e3"]),
        ([{"metric": "active-requests", "maxValue": 1}], False, ["e1", "e3"]),
    ],
)  # fmt: skip
def test_utilization_filter_holds_every_cap(conditions, falls_back: bool, kept: list[str]):
    """AND of all; back to everybody only if asked."""
    pool = pool_of(3)
    candidates = with_loads(
        pool,
        Load(num_running=1),
        Load(num_running=2, num_waiting=2, kv_usage=0.9),
        Load(num_running=3, num_waiting=3),
    )
    built = {"inflight-load-producer": make_inflight(pool, 0, 2, 1)}
    values = parameters(
        UtilizationFilterParameters, conditions=conditions, fallbackOnEmpty=falls_back
    )
    found = UtilizationFilter(values, around(pool, built=built))
    assert names(found.keep(cycle(candidates), candidates)) == kept


@pytest.mark.parametrize(
    ("metric", "cap", "words"),
    [
        ("kv-cache-utilization", 80, "kv-cache-utilization is a share, 0 to 1, not 80"),
        ("kv-cache-utilization", -1, "conditions[0].maxValue: expected"),
        ("waiting-queue", -1, "conditions[0].maxValue: expected"),
        ("running-requests", -0.5, "conditions[0].maxValue: expected"),
    ],
)
def test_caps_that_nothing_or_everything_exceeds_are_refused(metric: str, cap: float, words: str):
    """A per cent for a share would keep everybody, less than nothing nobody."""
    conditions = [{"metric": metric, "maxValue": cap}]
    with pytest.raises(ConfigError, match=re.escape(words)):
        decode({"conditions": conditions}, UtilizationFilterParameters, "p")


@pytest.mark.parametrize("metric", ["waiting-queue", "running-requests"])
def test_caps_hold_for_what_servers_tell(metric: str):
    """What was just sent to an idle server neither waits nor runs there until it says so."""
    idle, busy = candidates = with_loads(pool_of(2), Load(), Load(num_waiting=3, num_running=3))
    idle.unseen |= dict.fromkeys(range(10), 1001.0)
    values = parameters(UtilizationFilterParameters, conditions=[{"metric": metric, "maxValue": 2}])
    found = UtilizationFilter(values, around())
    assert found.keep(cycle(candidates), [idle, busy]) == [idle]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, ["e1", "e3"]), ({"onMissing": "Fail"}, ["e1"])],
)
def test_attribute_filter_compares(settings, kept: list[str]):
    """Endpoints without the attribute pass unless told otherwise."""
    candidates = with_loads(
        pool_of(3), Load(attributes={"x": 1.0}), Load(attributes={"x": 3.0}), Load()
    )
    values = parameters(
        AttributeFilterParameters,
        attribute="x",
        algorithm={"type": "threshold", "threshold": {"operator": "LessThan", "value": 2}},
        **settings,
    )
    assert names(AttributeFilter(values, around()).keep(cycle(candidates), candidates)) == kept


def test_utilization_detector_takes_the_worse_of_queue_and_cache():
    """Mean over the endpoints that tell; as a filter it drops the full."""
    candidates = with_loads(
        pool_of(3), Load(num_waiting=5), Load(kv_usage=0.4), Load(num_waiting=10, kv_usage=0.8)
    )
    detector = UtilizationDetector(UtilizationParameters(), around())
    assert detector.saturation(candidates, 1000.0) == pytest.approx((1 + 0.5 + 2) / 3)
    assert names(detector.keep(cycle(candidates), candidates)) == ["e1", "e2"]


def test_picks_since_the_last_poll_do_not_fill_an_idle_server():
    """It takes them at once; only what it tells says that they wait."""
    idle, full = candidates = with_loads(pool_of(2), Load(), Load(num_waiting=10))
    idle.unseen |= dict.fromkeys(range(100), 1001.0)
    detector = UtilizationDetector(UtilizationParameters(), around())
    assert detector.saturation([idle], 1000.0) == 0.0
    assert detector.saturation([full], 1000.0) == 2.0
    assert detector.keep(cycle(candidates), candidates) == [idle]


def test_pool_that_tells_nothing_is_not_shed():
    """Failed polls must not stop servers that are well; an empty pool has no room at all."""
    detector = UtilizationDetector(UtilizationParameters(), around())
    candidates = with_loads(pool_of(2), Load(num_waiting=50), Load(num_waiting=50))
    assert detector.saturation(candidates, 1000.0) == 10.0
    assert detector.saturation(candidates, 1004.0) == 0.0
    assert detector.keep(cycle(candidates), candidates) == candidates
    assert detector.saturation([], 1000.0) == 1.0


@pytest.mark.parametrize(
    ("mode", "saturation"), [("requests", 0.75), ("tokens", 1.5), ("hybrid", 1.5)]
)
def test_concurrency_detector_counts_what_is_under_way(mode: str, saturation: float):
    """Requests, tokens, or the worse of both per endpoint."""
    pool = pool_of(2)
    built = {"inflight-load-producer": make_inflight(pool, 1, 2, tokens=100)}
    values = parameters(
        ConcurrencyParameters, concurrencyMode=mode, maxConcurrency=2, maxTokenConcurrency=100
    )
    detector = ConcurrencyDetector(values, around(pool, built=built))
    assert detector.saturation(list(pool), 0.0) == saturation
