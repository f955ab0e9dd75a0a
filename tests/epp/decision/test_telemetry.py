"""What requests leave in the picker's series: counts, times, labels that stay bounded."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from tests.epp.pools import (
    bench,
    cycle,
    make_pool,
    pool_of,
    profile,
    request,
    rewrite,
    sample,
    spec,
)
from weft.epp.config.config import BUILT_IN
from weft.epp.decision.telemetry import KEEP_LEFT_S, RequestMetrics
from weft.epp.decision.tickets import Ending
from weft.epp.metrics.series import MAX_REQUEST_SERIES, NameCap, PickerMetrics
from weft.epp.pool.endpoint import Load
from weft.epp.pool.objects import Objects
from weft.epp.pool.pool import Pool
from weft.epp.request.values import Refused, Usage

DEFAULT = BUILT_IN.partition("kind: EndpointPickerConfig\n")[2]
ACTIVE = profile("active-request-scorer")


OTHERS = dict.fromkeys(("model_name", "target_model_name", "fairness_id"), "other") | {
    "priority": "0"
}
REQUEST = {"model_name": "m", "target_model_name": "m", "fairness_id": "f", "priority": "0"}


def test_followed_requests_are_measured():
    """Duration, first token, tokens; running while they run."""
    made = bench(DEFAULT, pool_of(1), track_responses=True)
    headers = {"x-llm-d-inference-fairness-id": "f"}
    decision = made.pick(request(1, model="m", headers=headers, is_streaming=True))
    assert sample(made, "llm_d_epp_request_running", **REQUEST) == 1
    made.clock.advance(0.5)
    made.director.on_response_headers(decision.ticket, 200)
    made.director.on_first_token(decision.ticket)
    made.clock.advance(0.3)
    made.director.on_piece(decision.ticket)
    made.clock.advance(0.7)
    made.director.on_piece(decision.ticket)
    made.director.on_size(decision.ticket, 900)
    made.director.on_usage(
        decision.ticket,
        Usage(num_prompt_tokens=7, num_completion_tokens=11, num_cached_tokens=4),
    )
    made.director.on_end(decision.ticket, Ending.NATURAL)

    assert sample(made, "llm_d_epp_request_running", **REQUEST) == 0
    assert sample(made, "llm_d_epp_request_duration_seconds_sum", **REQUEST) == 1.5
    assert sample(made, "llm_d_epp_request_ttft_seconds_sum", **REQUEST, streaming="true") == 0.5
    assert sample(made, "llm_d_epp_request_streaming_tpot_seconds_sum", **REQUEST) == 0.1
    assert sample(made, "llm_d_epp_request_streaming_itl_seconds_sum", **REQUEST) == 1.0
    assert sample(made, "llm_d_epp_request_streaming_itl_seconds_count", **REQUEST) == 2
    assert sample(made, "llm_d_epp_response_size_bytes_sum", **REQUEST) == 900
    assert sample(made, "llm_d_epp_request_input_tokens_sum", **REQUEST) == 7
    assert sample(made, "llm_d_epp_request_output_tokens_sum", **REQUEST) == 11
    assert sample(made, "llm_d_epp_request_cached_tokens_sum", **REQUEST) == 4
    assert sample(made, "llm_d_epp_request_total", **REQUEST) == 1


def test_failed_responses_are_errors():
    """By the server's status or by how they ended; they do not spoil the durations."""
    made = bench(DEFAULT, pool_of(1), track_responses=True)
    headers = {"x-llm-d-inference-fairness-id": "f"}
    for status, ending in ((503, Ending.NATURAL), (200, Ending.DISCONNECTED)):
        decision = made.pick(request(1, model="m", headers=headers))
        made.director.on_response_headers(decision.ticket, status)
        made.director.on_end(decision.ticket, ending)
    errors = [
        sample(made, "llm_d_epp_request_error_total", **REQUEST, error_code=code)
        for code in ("ModelServerError", "client-disconnected")
    ]
    assert errors == [1, 1]
    assert sample(made, "llm_d_epp_request_duration_seconds_count", **REQUEST) == 0


def test_older_names_carry_the_same_values():
    """Dashboards of former versions still work."""
    made = bench(DEFAULT, pool_of(2))
    made.pick(request(1, model="m"))
    next(iter(made.pool)).observe(Load(num_waiting=3), polled_at=made.clock.now)
    lines = made.assembly.metrics.text().decode().splitlines()
    values = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines}
    assert values['llm_d_epp_ready_endpoints{name="default"}'] == "2.0"
    assert values['inference_pool_ready_pods{name="default"}'] == "2.0"
    labels = 'fairness_id="default-flow",model_name="m",priority="0",target_model_name="m"'
    assert values[f"llm_d_epp_request_total{{{labels}}}"] == "1.0"
    assert values[f"inference_objective_request_total{{{labels}}}"] == "1.0"
    assert values["inference_extension_scheduler_e2e_duration_seconds_count"] == "1.0"
    queue = 'inference_pool_per_pod_queue_size{model_server_pod="e1",name="default"}'
    assert values[queue] == "3.0"


def test_refusals_are_errors_by_name():
    """Under the words that their bodies begin with."""
    made = bench(DEFAULT, Pool())
    with pytest.raises(Refused):
        made.pick(request(1, model="m"))
    labels = REQUEST | {"fairness_id": "default-flow", "error_code": "ServiceUnavailable"}
    assert sample(made, "llm_d_epp_request_error_total", **labels) == 1


def test_estimated_prompts_count_once():
    """At the decision if nobody follows the response, else at its end."""
    for follows, before in ((False, 1), (True, 0)):
        made = bench(DEFAULT, pool_of(1), track_responses=follows)
        decision = made.pick(request(1, 2, 3, model="m"))
        labels = REQUEST | {"fairness_id": "default-flow"}
        series = "llm_d_epp_request_input_tokens_"
        assert sample(made, series + "count", **labels) == before
        made.director.on_end(decision.ticket, Ending.NATURAL)
        assert sample(made, series + "count", **labels) == 1
        assert sample(made, series + "sum", **labels) == 3


def test_staleness_is_visible():
    """How many endpoints are picked blindly."""
    pool = pool_of(2)
    made = bench(DEFAULT, pool)
    next(iter(pool)).observe(Load(), polled_at=made.clock.now)
    assert (
        sample(made, "llm_d_epp_flow_control_stale_endpoints", detector="utilization-detector") == 1
    )


def test_model_names_are_capped():
    """Clients choose them, so they must not fill the memory."""
    made = bench(DEFAULT, pool_of(1))
    for i in range(1003):
        made.pick(request(1, model=f"m{i}"))
    labels = REQUEST | {
        "fairness_id": "default-flow",
        "model_name": "other",
        "target_model_name": "other",
    }
    assert sample(made, "llm_d_epp_request_total", **labels) == 3


def test_metrics_can_be_read_whatever_clients_call_a_model():
    """Labels are short, and so is what is kept of a decision; who is asked is the whole name."""
    made = bench(DEFAULT, pool_of(1), track_responses=True)
    huge = "m" * 2**20
    headers = {
        "x-llm-d-inference-fairness-id": "f" * 2**16,
        "x-llm-d-model-name-rewrite": "r" * 2**16,
    }
    decision = made.pick(request(1, model=huge, headers=headers))
    made.director.on_end(decision.ticket, Ending.NATURAL)
    assert len(made.assembly.metrics.text()) < 200_000
    assert sample(made, "llm_d_epp_request_total", **OTHERS) == 1
    assert 0 < len(msgspec.json.encode(made.director.decisions.get("r"))) < 2000
    assert decision.rewritten_model == "r" * 2**16


def test_labels_do_not_multiply():
    """A thousand models and a thousand fairness ids would make a million series."""
    telemetry = RequestMetrics(PickerMetrics(), follows=False)
    labels = []
    for i in range(MAX_REQUEST_SERIES + 5):
        made = cycle([], model=f"m{i // 100}")
        made.fairness_id = f"f{i % 100}"
        labels.append(telemetry.labels(made))
    assert len(set(labels)) == MAX_REQUEST_SERIES + 1
    assert labels[-5:] == [("other", "other", "other", "0")] * 5


def test_series_of_an_endpoint_that_has_left_go_once_they_have_been_read():
    """Under an autoscaler each server has another name. One that comes back counts on."""
    made = bench(DEFAULT, pool_of(1))
    labels = {"status": "success", "target_model_name": "m", "endpoint_name": "e1"}
    labels |= {"namespace": "default", "port": "8000"}

    def decisions():
        return sample(made, "llm_d_epp_scheduler_attempts_total", **labels)

    made.pick(request(1, model="m"))
    made.pool.replace("test", [])
    assert decisions() == 1
    made.clock.advance(KEEP_LEFT_S - 1)
    made.pool.replace("test", [(spec(1), "10.0.0.1")])
    made.pick(request(1, model="m"))
    assert decisions() == 2
    made.pool.replace("test", [])
    assert decisions() == 2
    made.clock.advance(KEEP_LEFT_S)
    assert decisions() is None
    made.pool.replace("test", [(spec(1), "10.0.0.1")])
    made.pick(request(1, model="m"))
    assert decisions() == 1


def test_series_are_written_while_others_are_made():
    """They are written on another thread: thousands would hold the event loop."""
    metrics = PickerMetrics()
    with ThreadPoolExecutor(1) as other:
        written = other.submit(lambda: [metrics.rendered() for _ in range(5)])
        num_made = 0
        while not written.done() and num_made < 20_000:
            metrics.request_size.labels(str(num_made), "", "", "").observe(1.0)
            num_made += 1
        assert len(written.result()) == 5


def test_models_of_the_objects_are_not_capped():
    """A person wrote them, and wants to see them."""
    objects = Objects({}, [rewrite("r", "served", "asked")])
    cap = NameCap(1)
    cap.allowed = objects.model_names
    assert [cap(name) for name in ("x", "y", "asked", "served")] == [
        "x",
        "other",
        "asked",
        "served",
    ]


def test_fairness_ids_are_capped_everywhere():
    """Also in the counts of what is under way, which are of nothing else: each is for an endpoint as well."""
    made = bench(ACTIVE, pool_of(1))
    tickets = []
    for i in range(1002):
        headers = {"x-llm-d-inference-fairness-id": f"f{i}"}
        tickets.append(made.pick(request(1, headers=headers)).ticket)
    metrics = made.assembly.metrics
    registry = metrics.registry.restricted_registry(["llm_d_epp_inflight_requests"])
    metrics.refresh()
    [family] = registry.collect()
    assert len({tuple(sample.labels.items()) for sample in family.samples}) == 1001
    for ticket in tickets:
        made.director.on_end(ticket, Ending.NATURAL)
    metrics.refresh()
    assert list(registry.collect()) == []


def test_what_the_page_says_of_a_pool_is_of_the_pool_as_it_is():
    """A stage that nobody takes any more has no saturation, and an endpoint that left no queue."""
    pool = make_pool(
        spec(1, **{"llm-d.ai/role": "prefill"}), spec(2, **{"llm-d.ai/role": "decode"})
    )
    made = bench(ACTIVE, pool)
    metrics = made.assembly.metrics
    metrics.refresh()
    pool.replace("test", [(each.spec, each.host) for each in pool if each.spec.name == "e2"])
    metrics.refresh()
    found = {
        tuple(sample.labels.values())[-1]
        for family in metrics.registry.collect()
        for sample in family.samples
        if family.name.endswith(("pool_saturation", "per_endpoint_queue_size"))
    }
    assert found == {"decode", "effective", "e2"}


def test_running_requests_are_known_without_following():
    """Scalers read them: the number that endpoints report, by the models of recent requests."""
    made = bench(DEFAULT, pool_of(1))
    for number, model in enumerate("aaab"):
        made.pick(request(number, model=model))
    (endpoint,) = made.pool
    endpoint.observe(Load(num_running=6, num_waiting=2), polled_at=made.clock() + 1.0)
    made.assembly.metrics.refresh()

    def running(model: str) -> float:
        labels = {"model_name": model, "target_model_name": model, "priority": "0"}
        return sample(made, "llm_d_epp_request_running", fairness_id="default-flow", **labels)

    assert [running("a"), running("b")] == pytest.approx([6.0, 2.0])
    endpoint.observe(Load(), polled_at=made.clock() + 2.0)
    made.assembly.metrics.refresh()
    assert [running("a"), running("b")] == [0.0, 0.0]
