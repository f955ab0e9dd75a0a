import pytest

from tests.epp.pools import around, cycle, make_pool, parameters, pool_of, spec, with_loads
from weft.core.errors import ConfigError
from weft.epp.config.decode import decode
from weft.epp.config.parameters import NoParameters
from weft.epp.decision.cycle import PrefixMatch, Schedule
from weft.epp.plugins.producers.inflight_load import InflightLoad, InflightParameters
from weft.epp.plugins.scorers import context_length
from weft.epp.plugins.scorers.active_request import ActiveRequestParameters, ActiveRequestScorer
from weft.epp.plugins.scorers.endpoint_attribute import AttributeScorer, AttributeScorerParameters
from weft.epp.plugins.scorers.header_label_affinity import HeaderLabelParameters, HeaderLabelScorer
from weft.epp.plugins.scorers.kv_cache_utilization import KvUsageScorer
from weft.epp.plugins.scorers.load_aware import LoadAwareParameters, LoadAwareScorer
from weft.epp.plugins.scorers.lora_affinity import LoraAffinityScorer
from weft.epp.plugins.scorers.no_hit_lru import NoHitLruParameters, NoHitLruScorer
from weft.epp.plugins.scorers.prefix_cache import PrefixScorer, PrefixScorerParameters
from weft.epp.plugins.scorers.queue_scorer import QueueScorer, RunningScorer
from weft.epp.plugins.scorers.token_load import TokenLoadParameters, TokenLoadScorer
from weft.epp.pool.endpoint import Adapters, Load


@pytest.mark.parametrize(
    ("scorer", "loads", "scores"),
    [
        (QueueScorer, [Load(num_waiting=each) for each in (0, 5, 10)], [1.0, 0.5, 0.0]),
        (QueueScorer, [Load(num_waiting=7)] * 3, [1.0, 1.0, 1.0]),
        (RunningScorer, [Load(num_running=each) for each in (4, 2, 0)], [0.0, 0.5, 1.0]),
        (KvUsageScorer, [Load(kv_usage=each) for each in (0.0, 0.25, 1.0)], [1.0, 0.75, 0.0]),
    ],
)
def test_load_scorers_rate_by_their_number(scorer, loads: list[Load], scores: list[float]):
    """Queue and running relative to the candidates, all equal being best; KV use absolute."""
    candidates = with_loads(pool_of(3), *loads)
    assert scorer(NoParameters(), around()).score(cycle(candidates), candidates) == scores


@pytest.mark.parametrize(("waiting", "score"), [(0, 0.5), (64, 0.25), (128, 0.0), (500, 0.0)])
def test_load_aware_scorer_falls_to_zero_at_its_threshold(waiting: int, score: float):
    """Half for an empty queue, whatever the others have."""
    candidates = with_loads(pool_of(1), Load(num_waiting=waiting))
    scorer = LoadAwareScorer(LoadAwareParameters(), around())
    assert scorer.score(cycle(candidates), candidates) == [score]


def test_picks_a_server_cannot_have_counted_yet_count_as_waiting():
    """Between two polls a burst is seen at once; the next poll takes over."""
    pool = pool_of(2)
    first, _ = candidates = with_loads(pool, Load(), Load())
    first.unseen[1] = 1001.0
    scorer = QueueScorer(NoParameters(), around())
    before = scorer.score(cycle(candidates), candidates)

    first.observe(Load(num_waiting=0), polled_at=1002.0)

    assert (before, scorer.score(cycle(candidates), candidates)) == ([0.0, 1.0], [1.0, 1.0])


def match(*held: int, total: int = 4, size: int = 64, weight: float = 1.0):
    """A pool of endpoints holding so many blocks each, and the match."""
    pool = pool_of(len(held))
    counts = dict(zip(pool, held, strict=True))
    weights = {endpoint: weight * count for endpoint, count in counts.items()}
    return pool, PrefixMatch(total, size, counts, weights)


@pytest.mark.parametrize(
    ("settings", "scores"),
    [
        ({}, [0.0, 0.5, 1.0]),
        ({"matchLengthWeight": 1.0, "matchLengthScaleTokens": 256}, [0.0, 0.25, 1.0]),
        ({"matchLengthWeight": 0.5, "matchLengthScaleTokens": 512}, [0.0, 0.28125, 0.625]),
    ],
)
def test_prefix_scorer_blends_share_and_length(settings: dict[str, float], scores: list[float]):
    """(1-w) * blocks/total + w * min(1, tokens/scale) squared."""
    pool, found = match(0, 2, 4)
    candidates = list(pool)
    scorer = PrefixScorer(parameters(PrefixScorerParameters, **settings), around())
    assert scorer.score(cycle(candidates, match=found), candidates) == scores


def test_prefix_scorer_gives_nothing_without_a_match():
    """No producer ran, or the prompt was too short to have blocks."""
    candidates = list(pool_of(2))
    scorer = PrefixScorer(PrefixScorerParameters(), around())
    assert scorer.score(cycle(candidates), candidates) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("adapters", "score"),
    [
        (Adapters(active=frozenset({"a"}), max_active=1), 1.0),
        (Adapters(active=frozenset({"b"}), max_active=2), 0.8),
        (Adapters(active=frozenset({"b"}), waiting=frozenset({"a"}), max_active=1), 0.6),
        (Adapters(active=frozenset({"b"}), max_active=1), 0.0),
        (Adapters(), 0.0),
    ],
)
def test_lora_scorer_prefers_where_the_adapter_is(adapters: Adapters, score: float):
    """Active, then room, then waiting, then nothing."""
    candidates = with_loads(pool_of(1), Load(adapters=adapters))
    scorer = LoraAffinityScorer(NoParameters(), around())
    assert scorer.score(cycle(candidates, model="a"), candidates) == [score]


def make_inflight(pool, *counts: int, tokens: int = 0) -> InflightLoad:
    """A counter in which each endpoint has so many requests of so many tokens."""
    producer = InflightLoad(InflightParameters(), around(pool))
    for endpoint, count in zip(pool, counts, strict=True):
        for _ in range(count):
            made = cycle(list(pool), num_tokens=tokens)
            made.ticket_id = len(producer._shares)
            producer.picked(made, Schedule("p", {"p": [endpoint]}))
    return producer


@pytest.mark.parametrize(
    ("settings", "scores"),
    [({}, [1.0, 0.5, 0.0]), ({"idleThreshold": 2}, [1.0, 1.0, 0.0]),
     ({"maxBusyScore": 0.5}, [1.0, 0.25, 0.0])],
)  # fmt: skip
def test_active_request_scorer_rates_against_the_busiest(settings, scores: list[float]):
    """Idle ones are best; the best busy one gets no more than told."""
    pool = pool_of(3)
    built = {"inflight-load-producer": make_inflight(pool, 0, 2, 4)}
    values = parameters(ActiveRequestParameters, **settings)
    scorer = ActiveRequestScorer(values, around(pool, built=built))
    assert scorer.score(cycle(list(pool)), list(pool)) == scores


def test_token_load_scorer_rates_against_its_threshold():
    """1 - tokens/threshold, never below 0."""
    pool = pool_of(3)
    built = {"inflight-load-producer": make_inflight(pool, 0, 1, 3, tokens=50)}
    values = parameters(TokenLoadParameters, queueThresholdTokens=100)
    scorer = TokenLoadScorer(values, around(pool, built=built))
    assert scorer.score(cycle(list(pool)), list(pool)) == [1.0, 0.5, 0.0]


def test_no_hit_lru_scorer_takes_turns_among_cold_requests():
    """Never used first; then whoever served a cold request longest ago."""
    pool = pool_of(3)
    one, two, three = candidates = list(pool)
    built = {"prefix-cache-scorer": PrefixScorer(PrefixScorerParameters(), around())}
    scorer = NoHitLruScorer(NoHitLruParameters(), around(pool, built=built))
    cold = cycle(candidates)
    fresh = scorer.score(cold, candidates)
    scorer.picked(cold, Schedule("p", {"p": [two]}))
    scorer.picked(cold, Schedule("p", {"p": [one]}))

    used = scorer.score(cold, candidates)

    assert (fresh, used) == ([1.0, 1.0, 1.0], [0.0, 0.5, 1.0])
    warm = cycle(candidates, match=PrefixMatch(1, 64, {three: 1}, {three: 1.0}))
    assert scorer.score(warm, candidates) == [0.5, 0.5, 0.5]


def test_header_label_scorer_compares_header_and_label():
    """Equal is 1; no header is nobody."""
    pool = make_pool(spec(1, zone="a"), spec(2, zone="b"), spec(3))
    values = parameters(HeaderLabelParameters, headerName="X-Zone", labelKey="zone")
    scorer = HeaderLabelScorer(values, around(pool))
    asked = cycle(list(pool), headers={"x-zone": "b"})
    assert scorer.score(asked, list(pool)) == [0.0, 1.0, 0.0]
    assert scorer.score(cycle(list(pool)), list(pool)) == [0.0, 0.0, 0.0]


def labelled(*ranges: str):
    key = "llm-d.ai/context-length-range"
    return list(make_pool(*(spec(i + 1, **{key: each}) for i, each in enumerate(ranges))))


def test_context_length_scorer_prefers_the_tightest_range():
    """In range above 0.3, out of it below, nearer is better; a wrong label scores 0."""
    candidates = [*labelled("0-2048", "0-131072", "4096-8192", "8193-9000", "x"), *pool_of(1)]
    scorer = context_length.ContextLengthAware(context_length.ContextLengthParameters(), around())
    tight, wide, near, far, wrong, unlabelled = scorer.score(
        cycle(candidates, num_tokens=1000), candidates
    )
    assert 1.0 >= tight > wide > 0.3 > near > far > wrong == 0.0
    assert unlabelled == 0.5


def test_context_length_filter_is_off_until_asked_for():
    """Then endpoints without the label still pass."""
    candidates = [*labelled("0-10", "11-20,90-110"), *pool_of(1)]
    on = parameters(context_length.ContextLengthParameters, enableFiltering=True)
    asked = cycle(candidates, num_tokens=100)
    off = context_length.ContextLengthAware(context_length.ContextLengthParameters(), around())
    assert off.keep(asked, candidates) == candidates
    assert context_length.ContextLengthAware(on, around()).keep(asked, candidates) == candidates[1:]


@pytest.mark.parametrize(
    ("algorithm", "scores"),
    [
        ({"type": "linear_lower_is_better"}, [1.0, 0.5, 0.0, 0.0]),
        ({"type": "linear_higher_is_better"}, [0.0, 0.5, 1.0, 0.0]),
        ({"type": "linear_lower_is_better", "normalization": {"fixedRange": {"min": 0, "max": 8}}},
         [0.75, 0.5, 0.25, 0.0]),
    ],
)  # fmt: skip
def test_attribute_scorer_is_linear(algorithm, scores: list[float]):
    """Over the candidates' range or a fixed one; without the attribute 0."""
    loads = [Load(attributes={"x": each}) for each in (2.0, 4.0, 6.0)]
    candidates = with_loads(pool_of(4), *loads, Load())
    values = parameters(AttributeScorerParameters, attributeKey="x", algorithm=algorithm)
    scorer = AttributeScorer(values, around())
    assert scorer.score(cycle(candidates), candidates) == scores


def test_attribute_range_must_not_be_empty():
    """The path says which."""
    algorithm = {
        "type": "linear_lower_is_better",
        "normalization": {"fixedRange": {"min": 1, "max": 1}},
    }
    with pytest.raises(ConfigError, match=r"^p\.algorithm\.normalization\.fixedRange: min must be"):
        decode({"attributeKey": "x", "algorithm": algorithm}, AttributeScorerParameters, "p")
