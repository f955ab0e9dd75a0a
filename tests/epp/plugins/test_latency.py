"""Predicted latency in the director: what is learnt, what is predicted, and who is chosen for it."""

import json
import math
from collections.abc import Iterable

import msgspec
import pytest

from tests.epp.config.deployed import in_stages
from tests.epp.config.written import Plugin, config
from tests.epp.pools import Bench, bench, cycle, make_pool, pool_of, request, sample, with_loads
from weft.core.errors import ConfigError
from weft.epp.build import load_config
from weft.epp.config.options import PickerOptions
from weft.epp.decision.cycle import Cycle, LatencyPredictions, Prediction
from weft.epp.decision.tickets import Decision, Ending
from weft.epp.plugins.admitters import LatencySloAdmitter, LatencySloParameters
from weft.epp.plugins.filters.slo_headroom_tier import HeadroomTierFilter, HeadroomTierParameters
from weft.epp.plugins.scorers.latency import LatencyScorer, LatencyScorerParameters
from weft.epp.pool.endpoint import Endpoint, EndpointSpec, Load
from weft.epp.pool.objects import Objects
from weft.epp.request.slo import Slo, read_slo
from weft.epp.request.values import Drop, Refused, Usage
from weft.epp.server.explain_page import lines, summary

PRODUCER = "predicted-latency-producer"
STREAMING = """\
plugins:
- {type: predicted-latency-producer, parameters: {streamingMode: true%s}}
- {type: slo-headroom-tier-filter, parameters: {epsilonExploreNeg: 0}}
- {type: latency-scorer}
- {type: latency-slo-admitter}
"""
# Seconds to the first token and per token after it, by host.
SPEED = {"10.0.0.1": (0.1, 0.01), "10.0.0.2": (0.4, 0.04)}
ENOUGH = 30
BOTH = {"x-llm-d-slo-ttft-ms": "200", "x-llm-d-slo-tpot-ms": "20"}
WHOLE = """\
plugins: [{type: predicted-latency-producer}, {type: latency-scorer}, {type: weighted-random-picker}]
"""


def answer(made: Bench, decision: Decision, *, num_tokens: int = 11) -> None:
    """The endpoint's own time passes, and its response is seen whole."""
    ticket = decision.ticket
    assert ticket is not None
    first_s, next_s = SPEED[decision.endpoints[0].rpartition(":")[0]]
    made.clock.advance(first_s)
    made.director.on_first_token(ticket)
    made.clock.advance(next_s * (num_tokens - 1))
    made.director.on_usage(ticket, Usage(num_completion_tokens=num_tokens))
    made.director.on_end(ticket, Ending.NATURAL)


def ask(made: Bench, *hosts: str, **fields: object) -> Decision:
    """A streamed request, to one of these if any are named."""
    return made.pick(request(*range(64), is_streaming=True, **fields), hosts or None)


def taught(text: str, count: int = ENOUGH) -> Bench:
    """A director that has seen responses of both endpoints."""
    made = bench(text, pool_of(2), num_recorded_decisions=10)
    for host in [*SPEED] * count:
        answer(made, ask(made, host))
    return made


def predictions(made: Bench, request_id: str, **headers: str) -> dict[str, dict[str, float | None]]:
    """What is predicted for a request, by host: as an explained decision has it."""
    ask(made, request_id=request_id, headers=headers)
    record = made.director.decisions.get(request_id)
    assert record is not None
    return {
        name.rpartition(":")[0]: {
            key: getattr(known, key)
            for key in ("ttft_ms", "tpot_ms", "ttft_headroom_ms", "tpot_headroom_ms")
        }
        for name, known in record.latency[PRODUCER].items()
    }


def test_each_endpoint_has_its_own_latency():
    """Learnt from first tokens and ends, and only from those."""
    found = predictions(taught(STREAMING % ""), "r")
    for host, (first_s, next_s) in SPEED.items():
        assert found[host]["ttft_ms"] == pytest.approx(first_s * 1000, rel=0.2)
        assert found[host]["tpot_ms"] == pytest.approx(next_s * 1000, rel=0.2)
        assert found[host]["ttft_headroom_ms"] is None


def test_a_request_goes_where_its_slo_is_met():
    """Also by the older names of the headers; and a request of none goes to who is idle."""
    made = taught(STREAMING % "")
    hosts = {ask(made, headers=BOTH).endpoints[0] for _ in range(5)}
    older = {"x-slo-ttft-ms": "200"}
    hosts |= {ask(made, headers=older).endpoints[0] for _ in range(5)}
    assert hosts == {"10.0.0.1:8000"}
    assert ask(made).endpoints == ("10.0.0.2:8000",)


def test_headroom_is_explained():
    """In the record, in the header for the client, and for a person to read."""
    made = taught(STREAMING % "")
    found = predictions(made, "r", **BOTH)
    for host in SPEED:
        known = found[host]
        assert known["ttft_headroom_ms"] == pytest.approx(200 - (known["ttft_ms"] or 0), abs=0.01)
        assert known["tpot_headroom_ms"] == pytest.approx(20 - (known["tpot_ms"] or 0), abs=0.01)
    record = made.director.decisions.get("r")
    assert record.slo_ms == {"ttft": 200.0, "tpot": 20.0}
    entry = made.director.decisions.find("r")
    assert entry is not None
    assert set(summary(entry)["latency"][PRODUCER]) == {"10.0.0.1:8000"}
    text = "\n".join(lines(_plain(record)))
    assert "SLO      ttft 200 ms, tpot 20 ms" in text
    assert "(headroom -" in text
    assert "(headroom +" in text


def _plain(record: object) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(record)
    return plain


def test_the_buffer_scales_the_slo():
    """`sloBufferFactor` 0.5 leaves half of each."""
    found = predictions(taught(STREAMING % ", sloBufferFactor: 0.5"), "r", **BOTH)["10.0.0.1"]
    assert found["ttft_headroom_ms"] == pytest.approx(100 - (found["ttft_ms"] or 0), abs=0.01)
    assert found["tpot_headroom_ms"] == pytest.approx(10 - (found["tpot_ms"] or 0), abs=0.01)


def test_the_strictest_request_under_way_counts_for_its_endpoint():
    """Who has no objective per token leaves room for who has; until that one is over."""
    made = taught(STREAMING % "")
    strict = ask(made, "10.0.0.1", headers={"x-llm-d-slo-tpot-ms": "15"})
    ask(made, "10.0.0.1", headers={"x-llm-d-slo-tpot-ms": "30"})
    known = predictions(made, "during", **{"x-llm-d-slo-tpot-ms": "20"})["10.0.0.1"]
    assert known["tpot_headroom_ms"] == pytest.approx(15 - (known["tpot_ms"] or 0), abs=0.01)
    assert strict.ticket is not None
    made.director.on_end(strict.ticket, Ending.DISCONNECTED)
    known = predictions(made, "after", **{"x-llm-d-slo-tpot-ms": "50"})["10.0.0.1"]
    assert known["tpot_headroom_ms"] == pytest.approx(20 - (known["tpot_ms"] or 0), abs=0.01)


def test_cold_starts_fall_back():
    """Nobody known: by load. One endpoint known: the others as that one, until they are known themselves."""
    made = bench(STREAMING % "", pool_of(2), num_recorded_decisions=10)
    with_loads(made.pool, Load(num_waiting=9, kv_usage=0.9), Load())
    assert predictions(made, "cold", **BOTH) == {}
    assert ask(made, headers=BOTH).endpoints == ("10.0.0.2:8000",)
    for _ in range(ENOUGH):
        answer(made, ask(made, "10.0.0.1"))
    found = predictions(made, "warm")
    assert found["10.0.0.2"]["ttft_ms"] == pytest.approx(100, rel=0.5)


def test_an_endpoint_that_leaves_is_forgotten():
    """With what is under way there; a late answer does not bring it back."""
    made = taught(STREAMING % "")
    producer = made.assembly.plugins[PRODUCER]
    late = ask(made, "10.0.0.2", headers=BOTH)
    (first, second) = made.pool
    assert producer.ttft.num_samples(second) == ENOUGH
    made.pool.replace("test", [(first.spec, first.host)])
    assert len(producer) == 0
    answer(made, late)
    assert producer.ttft.num_samples(second) == producer.tpot.num_samples(second) == 0
    made.pool.replace("test", [])
    made.pool.replace("test", [(first.spec, first.host), (second.spec, second.host)])
    assert predictions(made, "anew") == {}


def test_requests_that_are_not_heard_of_are_dropped():
    """After `contextTTL`, and at their end whatever that is."""
    made = bench(STREAMING % ", contextTTL: 10s", pool_of(1))
    producer = made.assembly.plugins[PRODUCER]
    for ending in (Ending.DISCONNECTED, Ending.ERROR, Ending.EVICTED, Ending.NATURAL):
        ticket = ask(made).ticket
        assert ticket is not None
        made.director.on_end(ticket, ending)
    assert len(producer) == 0
    ask(made)
    made.clock.advance(11)
    ask(made)
    assert len(producer) == 1


def test_only_times_that_are_times_are_learnt():
    """No first token, no sample; none of a failed response's end; and no NaN of a server's gets in."""
    made = bench(STREAMING % "", pool_of(1), num_recorded_decisions=10)
    producer = made.assembly.plugins[PRODUCER]
    (endpoint,) = made.pool
    endpoint.observe(Load(kv_usage=math.nan, num_waiting=10**400), polled_at=made.clock.now)
    for status in (200, 500):
        ticket = ask(made).ticket
        assert ticket is not None
        made.clock.advance(1)
        made.director.on_response_headers(ticket, status)
        made.director.on_end(ticket, Ending.NATURAL)
    assert producer.ttft.num_samples(endpoint) == 0
    for seconds in (0.0, -1.0, math.nan, math.inf, 1e9):
        producer.ttft.learn(endpoint, "", [1.0] * 6, seconds)
    assert producer.ttft.num_samples(endpoint) == 0
    for _ in range(ENOUGH):
        answer(made, ask(made))
    assert predictions(made, "r")["10.0.0.1"]["ttft_ms"] == pytest.approx(100, rel=0.2)


def test_without_streaming_mode_whole_responses_are_learnt():
    """The first latency is then the whole one, and there is no second."""
    made = taught(WHOLE)
    known = predictions(made, "r", **BOTH)["10.0.0.1"]
    assert known["ttft_ms"] == pytest.approx(200, rel=0.2)
    assert known["tpot_ms"] is known["tpot_headroom_ms"] is None


def test_without_predictions_it_only_learns():
    """`predictInProduce: false`."""
    made = taught(STREAMING % ", predictInProduce: false")
    assert predictions(made, "r", **BOTH) == {}
    assert made.assembly.plugins[PRODUCER].ttft.num_samples(next(iter(made.pool))) == ENOUGH


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "1e999"])
def test_an_slo_must_be_milliseconds(text: str):
    """The refusal names the header."""
    made = bench(STREAMING % "", pool_of(1))
    with pytest.raises(Refused, match=r"^x-llm-d-slo-tpot-ms: must be milliseconds") as refused:
        ask(made, headers={"x-llm-d-slo-tpot-ms": text})
    assert refused.value.status == 400


def test_an_slo_of_0_is_none():
    """As in the reference; and the current name comes before the older one."""
    assert not read_slo({"x-llm-d-slo-ttft-ms": "0"})
    headers = {"x-slo-ttft-ms": "7", "x-llm-d-slo-ttft-ms": "1500"}
    assert read_slo(headers) == Slo(ttft_s=1.5)


def test_series_say_what_was_predicted_and_what_was_missed():
    """The reference's names and labels, and the older names."""
    made = taught(STREAMING % "")
    answer(made, ask(made, "10.0.0.2", headers=BOTH))
    labels = {
        "plugin_name": PRODUCER, "plugin_type": PRODUCER, "model_name": "", "target_model_name": "",
    }  # fmt: skip
    prefix = "llm_d_epp_"
    for latency in ("ttft", "tpot"):
        count = sample(made, f"{prefix}request_predicted_{latency}_seconds_count", **labels)
        assert count >= ENOUGH
        missed = f"{prefix}request_slo_violation_total"
        assert sample(made, missed, **labels, type=latency) == 1
        last = f"{prefix}inference_request_metric"
        assert sample(made, last, **labels, type=f"{latency}_slo_violation") == 1
        duration = f"{prefix}request_{latency}_prediction_duration_seconds_count"
        assert sample(made, duration, **labels) == 2 * ENOUGH + 1
    assert b"inference_objective_request_slo_violation_total{" in made.assembly.metrics.text()


def test_sheddable_requests_are_refused_where_nobody_could_meet_them():
    """Others wait for what there is; and who is idle may do better than is predicted."""
    made = taught(STREAMING % "")
    made.director.objects = Objects(priorities={"batch": -1})
    impossible = {"x-llm-d-slo-ttft-ms": "1", "x-llm-d-inference-objective": "batch"}
    with_loads(made.pool, Load(num_running=1, kv_usage=0.5), Load())
    assert ask(made, headers=impossible).endpoints
    with_loads(made.pool, *[Load(num_running=1, kv_usage=0.5)] * 2)
    with pytest.raises(
        Refused, match="no endpoint is predicted to meet the request's SLO"
    ) as refused:
        ask(made, headers=impossible)
    assert (refused.value.status, refused.value.reason) == (429, Drop.SATURATED)
    assert ask(made, headers={"x-llm-d-slo-ttft-ms": "1"}).endpoints


def known(
    candidates: Iterable[Endpoint], *rooms: tuple[float, float] | None, requests: int = 1
) -> Cycle:
    """A request with both objectives, and these headrooms of its candidates."""
    made = cycle(list(candidates))
    of = {
        endpoint: Prediction(
            ttft_s=1.0, tpot_s=1.0, ttft_headroom_s=room[0], tpot_headroom_s=room[1],
            num_requests=requests,
        )
        for endpoint, room in zip(made.candidates, rooms, strict=True)
        if room is not None
    }  # fmt: skip
    made.predictions[PRODUCER] = LatencyPredictions(Slo(1.0, 1.0), of)
    return made


def scored(asked: Cycle, **values: object) -> list[float]:
    scorer = LatencyScorer(LatencyScorerParameters(**values), None)  # type: ignore[arg-type]
    return scorer.score(asked, asked.candidates)


def test_the_scorer_packs_or_spreads():
    """`least` headroom that is enough, by default; or `most`. Who misses anything gets nothing."""
    asked = known(pool_of(3), (0.1, 0.1), (0.9, 0.9), (-0.1, 0.9))
    assert scored(asked) == [1.0, 0.01, 0.0]
    assert scored(asked, headroom_selection_strategy="most") == [0.01, 1.0, 0.0]


def test_a_latency_in_which_all_are_equal_does_not_count():
    """Otherwise it would press the other together."""
    asked = known(pool_of(3), (0.5, 0.1), (0.5, 0.2), (0.5, 0.3))
    assert scored(asked) == [1.0, 0.51, 0.01]


def test_where_all_miss_the_least_miss_wins():
    """Who is idle, then tokens that are late, then first tokens, then both; never the worst, as `most` would."""
    pool = list(pool_of(3))
    late = known(pool, (-0.1, -0.1), (0.1, -0.9), (-0.1, 0.1))
    assert scored(late) == [0.0, 0.51, 0.0]
    both = known(pool, (-0.1, -0.1), (-0.9, -0.9), (-0.5, -0.5))
    assert scored(both, headroom_selection_strategy="most") == [1.0, 0.01, 0.51]
    idle = known(pool, (-0.1, -0.1), (-0.9, -0.9), None, requests=0)
    assert scored(idle) == [1.0, 0.01, 0.0]


def test_the_filter_keeps_one_tier():
    """Those that meet, or with the chance that is set those that do not; no prediction counts as missing."""
    pool = list(pool_of(3))
    asked = known(pool, (0.1, 0.1), (-0.1, 0.1), None)

    def kept(chance: float, of: Cycle) -> list[Endpoint]:
        parameters = HeadroomTierParameters(epsilon_explore_neg=chance)
        return list(HeadroomTierFilter(parameters, None).keep(of, pool))  # type: ignore[arg-type]

    assert kept(0.0, asked) == pool[:1]
    assert kept(1.0, asked) == pool[1:]
    assert kept(0.0, known(pool, (-0.1, 0.1), (-0.1, 0.1), None)) == pool
    assert kept(1.0, known(pool, None, None, None)) == pool


def test_the_admitter_knows_nothing_and_refuses_nothing():
    """No predictions, no objectives: it fails open."""
    admitter = LatencySloAdmitter(LatencySloParameters(), None)  # type: ignore[arg-type]
    pool = with_loads(pool_of(1), Load(num_running=1, kv_usage=0.5))
    asked = known(pool, None)
    asked.priority = -1
    admitter.admit(asked)
    asked = known(pool, (-1.0, -1.0))
    asked.priority = -1
    with pytest.raises(Refused):
        admitter.admit(asked)
    asked.predictions[PRODUCER] = LatencyPredictions(Slo(), asked.predictions[PRODUCER].of)
    admitter.admit(asked)


def warned(*plugins: Plugin) -> tuple[str, ...]:
    return load_config(PickerOptions(config_text=config(*plugins))).warnings


def test_keys_of_older_files_are_taken_and_reported():
    """Single tokens are not sampled here; the other keys count."""
    parameters = {
        "samplingMean": 500, "maxDecodeTokenSamplesForPrediction": 10, "contextTTL": 300000000000,
        "sloBufferFactor": 0.9, "endpointRoleLabel": "llm-d.ai/role", "predictInProduce": False,
    }  # fmt: skip
    scoring = {"ttftWeight": 0.7, "tpotWeight": 0.3, "headroomSelectionStrategy": "most"}
    found = warned((PRODUCER, parameters), ("latency-scorer", scoring))
    assert [each.partition(": ")[0].rpartition(".")[2] for each in found] == [
        "samplingMean", "maxDecodeTokenSamplesForPrediction",
    ]  # fmt: skip


def test_keys_of_the_other_source_are_reported():
    """A throughput says nothing where latencies are predicted, nor a predictor where they are not."""
    name = "prefix-cache-affinity-filter"
    (found,) = warned((name, {"ttftSource": "latencyPredictor", "peakPrefillThroughput": 9}))
    assert "peakPrefillThroughput: has no effect: ttftSource is latencyPredictor" in found
    (found,) = warned((name, {"latencyPredictionInfoProducerName": "mine"}))
    assert "latencyPredictionInfoProducerName: has no effect" in found


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        ((PRODUCER, {"useEncoderCacheFeatures": True}), "useEncoderCacheFeatures is refused: the models"),
        ((PRODUCER, {"contextTTL": 0}), "contextTTL must be more than 0"),
        ((PRODUCER, {"contextTTL": "soon"}), "must be a duration"),
        ((PRODUCER, {"sloBufferFactor": 0}), "sloBufferFactor"),
        ((PRODUCER, {"predictionServerURL": "http://localhost:8001"}), "predictionServerURL"),
        (("latency-scorer", {"headroomSelectionStrategy": "all"}), "headroomSelectionStrategy"),
        (("latency-scorer", {"latencyPredictionInfoProducerName": "queue-scorer"}), "not a data producer"),
        (("slo-headroom-tier-filter", {"epsilonExploreNeg": 2}), "epsilonExploreNeg"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_name(plugin: Plugin, words: str):
    """Before anything starts."""
    with pytest.raises(ConfigError, match=words):
        warned("queue-scorer", plugin)


def test_the_first_token_is_learnt_of_who_computes_the_prompt():
    """Where prefill runs apart; the time per token is that of who decodes, and has no meaning for the other."""
    role = "llm-d.ai/role"
    whole = config(
        (PRODUCER, {"streamingMode": True, "endpointRoleLabel": role}),
        *in_stages("latency-scorer"),
        profiles={"prefill": "prefill-filter latency-scorer", "decode": "decode-filter"},
    )
    parts = json.loads(whole)
    made = bench(
        "".join(f"{key}: {json.dumps(parts[key])}\n" for key in ("plugins", "schedulingProfiles")),
        make_pool(
            EndpointSpec(name="p", address="10.0.0.1", port=8000, labels={role: "prefill"}),
            EndpointSpec(name="d", address="10.0.0.2", port=8000, labels={role: "decode"}),
        ),
        num_recorded_decisions=1,
    )
    for _ in range(ENOUGH):
        answer(made, ask(made))
    producer = made.assembly.plugins[PRODUCER]
    prefill, decode = made.pool
    assert [producer.ttft.num_samples(each) for each in (prefill, decode)] == [ENOUGH, 0]
    assert [producer.tpot.num_samples(each) for each in (prefill, decode)] == [0, ENOUGH]
    assert predictions(made, "r")["10.0.0.1"]["tpot_ms"] is None


@pytest.mark.parametrize(("allowed_ms", "second"), [(200, "10.0.0.1"), (2000, "10.0.0.2")])
def test_affinity_gives_way_to_the_predicted_latency(allowed_ms: int, second: str):
    """Who has the prefix keeps the request, unless it would wait longer there than is allowed."""
    made = bench(
        "plugins:\n- {type: predicted-latency-producer, parameters: {streamingMode: true}}\n"
        "- {type: prefix-cache-affinity-filter, parameters: {ttftSource: latencyPredictor,"
        f" maxTTFTPenaltyMs: {allowed_ms}}}}}\n- {{type: latency-scorer}}\n",
        pool_of(2),
    )
    prompts = {"10.0.0.1": range(1000, 1640), "10.0.0.2": range(5000, 5640)}
    for host, prompt in [*prompts.items()] * ENOUGH:
        answer(made, made.pick(request(*prompt, is_streaming=True), (host,)))
    headers = {"x-llm-d-slo-ttft-ms": "300"}
    chosen = [
        made.pick(request(*prompt, is_streaming=True, headers=headers)).endpoints[0]
        for prompt in prompts.values()
    ]
    assert chosen == ["10.0.0.1:8000", f"{second}:8000"]
