import gc
import weakref
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from tests.epp.pools import (
    Bench,
    bench,
    make_pool,
    pool_of,
    profile,
    request,
    rewrite,
    sample,
    spec,
    with_loads,
)
from weft.epp.config.config import BUILT_IN
from weft.epp.decision.tickets import Ending
from weft.epp.pool.endpoint import EndpointSpec, Load
from weft.epp.pool.objects import Objects
from weft.epp.request.values import Drop, Refused

DEFAULT = BUILT_IN.partition("kind: EndpointPickerConfig\n")[2]
ACTIVE = profile("active-request-scorer")


class Text(str):
    """Text whose end can be seen."""

    __slots__ = ("__weakref__",)


def refusal(bench: Bench, *args, **fields) -> Refused:
    with pytest.raises(Refused) as caught:
        bench.pick(request(1), *args, **fields)
    return caught.value


def test_empty_pool_is_unavailable():
    """503, and why."""
    refused = refusal(bench(DEFAULT, pool_of(0)))
    assert (refused.status, refused.reason) == (503, Drop.NO_ENDPOINTS)
    assert "the pool is empty" in refused.message


def test_subset_that_names_nobody_is_unavailable():
    """An empty hint means nobody; the flag makes it count for nothing."""
    refused = refusal(bench(DEFAULT, pool_of(2)), ())
    assert (refused.status, refused.reason) == (503, Drop.NO_ENDPOINTS)
    assert (
        bench(DEFAULT, pool_of(2), disable_endpoint_subset_filter=True)
        .pick(request(1), ())
        .endpoints
    )


def test_filters_that_leave_nobody_are_saturation():
    """429; the message names filter and profile."""
    refused = refusal(bench(profile("prefill-filter"), pool_of(2)))
    assert (refused.status, refused.reason) == (429, Drop.SATURATED)
    assert "'prefill-filter' of profile 'default'" in refused.message


def test_closed_director_refuses():
    """Whoever asks while the picker shuts down is told so."""
    made = bench(DEFAULT, pool_of(1))
    made.director.close()
    refused = refusal(made)
    assert (refused.status, refused.reason) == (503, Drop.SHUTTING_DOWN)
    assert not made.director.is_ready


@pytest.mark.parametrize(
    "text",
    [DEFAULT, profile("queue-scorer"), profile("running-requests-size-scorer"), ACTIVE,
     profile("kv-cache-utilization-scorer"), profile("load-aware-scorer"), profile("token-load-scorer"),
     profile("lora-affinity-scorer")],
)  # fmt: skip
def test_bursts_between_polls_are_spread(text: str):
    """A thousand different requests before the next poll: nobody gets more than a fair share."""
    made = bench(text, pool_of(10))
    counts = Counter(made.host(*range(i * 100, i * 100 + 70)) for i in range(1000))
    assert set(counts.values()) == {100}


def test_burst_does_not_pile_on_the_one_idle_endpoint():
    """It is best until it has as much to do as the others."""
    pool = pool_of(4)
    with_loads(pool, Load(), *[Load(num_waiting=10)] * 3)
    made = bench(profile("queue-scorer"), pool)
    first = Counter(made.host(i) for i in range(10))
    then = Counter(made.host(i) for i in range(40))
    assert first == {"10.0.0.1": 10}
    assert max(then.values()) <= 11


def test_credit_ends_with_the_poll_the_first_token_or_its_time():
    """Whichever comes first; none of them leaves anything behind."""
    pool = pool_of(3)
    one, two, three = pool
    made = bench(profile("queue-scorer"), pool)
    decisions = {each.endpoints[0]: each for each in (made.pick(request(i)) for i in range(3))}
    one.observe(Load(), polled_at=made.clock.now + 1)
    made.director.on_first_token(decisions[two.host_port].ticket)
    assert [len(each.unseen) for each in pool] == [0, 0, 1]
    made.clock.advance(11)
    made.director.sweep()
    assert len(three.unseen) == 0


def test_pick_just_before_a_poll_is_not_forgotten():
    """It may not have reached the server when that counted."""
    pool = pool_of(1)
    made = bench(profile("queue-scorer"), pool)
    made.pick(request(1))
    (one,) = pool
    one.observe(Load(), polled_at=made.clock.now + 0.01)
    assert one.expected_waiting == 1


@pytest.mark.parametrize("ending", list(Ending))
def test_every_ending_gives_back_what_was_counted(ending: Ending):
    """Once, however often it is told."""
    made = bench(ACTIVE, pool_of(1))
    decision = made.pick(request(1, 2, 3))
    inflight, (one,) = made.assembly.plugins["inflight-load-producer"], made.pool
    assert (inflight.num_requests(one), inflight.num_tokens(one)) == (1, 3)
    assert decision.tracks_response
    for _ in range(2):
        made.director.on_end(decision.ticket, ending)
    assert (inflight.num_requests(one), inflight.num_tokens(one)) == (0, 0)
    assert (made.director.num_open, inflight._shares, dict(one.unseen)) == (0, {}, {})


def test_tokens_end_with_the_first_token_when_streaming():
    """The request itself goes on."""
    made = bench(ACTIVE, pool_of(1))
    inflight, (one,) = made.assembly.plugins["inflight-load-producer"], made.pool
    made.director.on_first_token(made.pick(request(1, 2, is_streaming=True)).ticket)
    made.director.on_first_token(made.pick(request(3, 4, request_id="s")).ticket)
    assert (inflight.num_requests(one), inflight.num_tokens(one)) == (2, 2)


def test_requests_whose_end_never_comes_are_swept():
    """An odd end must not leak a count."""
    made = bench(ACTIVE, pool_of(1), ticket_ttl_s=60.0)
    inflight, (one,) = made.assembly.plugins["inflight-load-producer"], made.pool
    made.pick(request(1))
    made.clock.advance(61)
    made.pick(request(2, request_id="later"))
    made.director.sweep()
    assert (inflight.num_requests(one), made.director.num_open) == (1, 1)


def test_endpoint_that_left_does_not_come_back_with_old_counts():
    """Its requests end into nothing."""
    made = bench(ACTIVE, pool_of(1))
    decision = made.pick(request(1))
    inflight = made.assembly.plugins["inflight-load-producer"]
    made.pool.replace("test", [])
    made.director.on_end(decision.ticket, Ending.ERROR)
    assert inflight._num_requests == {}


def test_untracked_decisions_keep_no_state():
    """By default the response phase is closed, and nobody waits for an end."""
    made = bench(DEFAULT, pool_of(1))
    decision = made.pick(request(1))
    assert not decision.tracks_response
    assert made.director.num_open == 0


# -- models and priorities --------------------------------------------------------------------

OBJECTS = Objects(
    {"batch": -1},
    [rewrite("r", "m-v2", "m")],
)


def test_rewrites_beat_the_rewrite_header():
    """The object first, the header without one, and no rewriting without a model."""
    made = bench(DEFAULT, pool_of(1))
    made.director.objects = OBJECTS
    header = {"x-gateway-model-name-rewrite": "h"}
    assert made.pick(request(1, model="m", headers=header)).rewritten_model == "m-v2"
    assert made.pick(request(1, model="n", headers=header)).rewritten_model == "h"
    assert made.pick(request(1, model="n")).rewritten_model is None
    assert made.pick(request(1, headers=header)).rewritten_model is None


GENERIC = Objects({}, [rewrite("g", "any")])


@pytest.mark.parametrize(
    ("objects", "headers", "settings", "model"),
    [
        (GENERIC, {"x-gateway-model-name-rewrite": "h"}, {"default_model": "d"}, "any"),
        (OBJECTS, {"x-gateway-model-name-rewrite": "h"}, {"default_model": "d"}, "h"),
        (OBJECTS, {}, {"default_model": "d"}, "d"),
    ],
)
def test_a_missing_model_is_filled_in(objects: Objects, headers, settings, model: str):
    """By a rewrite for every model, by the client's header, by the picker's default, in this order."""
    made = bench(DEFAULT, pool_of(1), **settings)
    made.director.objects = objects
    wanted = request(1, needs_model=True, headers=headers)
    assert made.pick(wanted).rewritten_model == model


def test_a_missing_model_that_nothing_fills_in_is_refused():
    """And counted: 400, as the reference says it."""
    made = bench(DEFAULT, pool_of(1))
    with pytest.raises(Refused, match="model not found in request body") as caught:
        made.pick(request(1, needs_model=True))
    assert caught.value.status == 400
    labels = {"model_name": "", "target_model_name": "", "fairness_id": "default-flow"}
    name = "llm_d_epp_request_error_total"
    assert sample(made, name, **labels, priority="0", error_code="BadRequest") == 1
    assert made.pick(request(1)).rewritten_model is None  # a wire that names no model needs none


def test_what_is_only_counted_teaches_the_prefix_index_nothing():
    """No server computes the prompt of `count_tokens`, so none holds it."""
    made = bench(DEFAULT, pool_of(2))
    producer = made.assembly.plugins["approx-prefix-cache-producer"]
    made.pick(replace(request(), prompts=()))
    assert len(producer._index) == 0


@pytest.mark.parametrize(
    ("header", "is_shed"),
    [("x-llm-d-inference-objective", True), ("x-gateway-inference-objective", True), ("x", False)],
)
def test_sheddable_requests_are_refused_when_the_pool_is_full(header: str, is_shed: bool):
    """Negative priority and saturation of 1 or more: 429; the others go on."""
    pool = pool_of(1)
    made = bench(DEFAULT, pool)
    with_loads(pool, Load(num_waiting=5))
    made.director.objects = OBJECTS
    wanted = request(1, headers={header: "batch"})
    if is_shed:
        with pytest.raises(Refused, match="sheddable") as caught:
            made.pick(wanted)
        assert (caught.value.status, caught.value.reason) == (429, None)
    else:
        assert made.pick(wanted).endpoints


def test_a_burst_to_idle_servers_sheds_nobody():
    """What was sent since the last poll does not wait; servers say what does."""
    pool = pool_of(2)
    made = bench(DEFAULT, pool)
    with_loads(pool, Load(), Load())
    made.director.objects = OBJECTS
    headers = {"x-llm-d-inference-objective": "batch"}
    hosts = Counter(made.host(i, headers=headers) for i in range(40))
    assert hosts == {"10.0.0.1": 20, "10.0.0.2": 20}


def test_conditional_requests_need_a_cached_prefix():
    """`prefer: if-available` is 412 until the chosen endpoint holds a block."""
    made = bench(DEFAULT, pool_of(1))
    wanted = request(*range(64), headers={"prefer": "if-available"})
    with pytest.raises(Refused) as caught:
        made.pick(wanted)
    assert caught.value.status == 412
    made.pick(request(*range(64)))
    assert made.pick(wanted).endpoints


def test_token_ids_that_fit_no_token_are_refused():
    """400, not an internal error."""
    made = bench(DEFAULT, pool_of(1))
    with pytest.raises(Refused) as caught:
        made.pick(request(-1))
    assert caught.value.status == 400


def test_endpoints_that_refuse_connections_are_no_candidates():
    """While others are left; the record says so, and the gauge counts the others."""
    pool = pool_of(2)
    one, two = pool
    one.is_refusing = True
    made = bench(DEFAULT, pool)
    assert {made.host(i) for i in range(5)} == {two.host}
    assert {made.director.pick_any(None, is_grpc=False) for _ in range(20)} == {two.host_port}
    assert made.director.decisions.get("r").unreachable == [one.host_port]
    assert sample(made, "llm_d_epp_ready_endpoints", name="default") == 1
    two.is_refusing = True
    assert {made.host(100 + i) for i in range(20)} == {one.host, two.host}


def test_grpc_goes_to_the_grpc_port():
    """Whether it is scheduled or not."""
    made = bench(
        DEFAULT,
        make_pool(EndpointSpec(name="e", address="10.0.0.1", port=8000, grpc_port=50051)),
    )
    assert made.pick(request(1, is_grpc=True)).endpoints == ("10.0.0.1:50051",)
    assert made.pick(request(1)).endpoints == ("10.0.0.1:8000",)
    assert made.director.pick_any(None, is_grpc=True) == "10.0.0.1:50051"


def test_unschedulable_requests_go_to_any_endpoint():
    """Within the subset."""
    made = bench(DEFAULT, pool_of(3))
    assert {made.director.pick_any(None, is_grpc=False) for _ in range(200)} == {
        f"10.0.0.{i}:8000" for i in (1, 2, 3)
    }
    assert made.director.pick_any(("10.0.0.2",), is_grpc=False) == "10.0.0.2:8000"
    with pytest.raises(Refused):
        made.director.pick_any(("10.9.9.9",), is_grpc=False)


# -- explained --------------------------------------------------------------------------------


def test_decision_is_explained():
    """Candidates, what each filter took, raw and weighted scores, the runner-up, cached tokens."""
    role = "llm-d.ai/role"
    pool = make_pool(spec(1), spec(2), spec(3, **{role: "prefill"}))
    made = bench(
        "plugins: [{type: decode-filter}, {type: queue-scorer}, {type: prefix-cache-scorer}]\n"
        "schedulingProfiles:\n- name: p\n  plugins:\n  - pluginRef: decode-filter\n"
        "  - {pluginRef: queue-scorer, weight: 2}\n  - {pluginRef: prefix-cache-scorer, weight: 3}\n",
        pool,
    )
    first = made.pick(request(*range(100), request_id="a")).endpoints[0]
    other = next(e.host_port for e in pool if e.host_port != first and not e.labels)
    made.pick(request(*range(100), request_id="b"))

    record = made.director.decisions.get("b")

    (run,) = record.profiles
    assert (record.status, record.endpoints, run.picked) == (200, [first], [first])
    assert run.candidates == [f"10.0.0.{i}:8000" for i in (1, 2, 3)]
    assert [(each.name, each.removed) for each in run.filters] == [
        ("decode-filter", ["10.0.0.3:8000"])
    ]
    queue, prefix = run.scorers
    assert (queue.weight, queue.scores[first].raw, queue.scores[other].weighted) == (2.0, 0.0, 2.0)
    assert (prefix.scores[first].raw, prefix.scores[first].weighted) == (1.0, 3.0)
    assert (run.totals, run.runner_up) == ({first: 3.0, other: 2.0}, other)
    assert record.cached_tokens == {"approx-prefix-cache-producer": {first: 100}}
    assert len(record.stale) == 3
    assert b"runner_up" in msgspec.json.encode(record)


def test_refusals_are_explained_too():
    """With what had happened up to then."""
    made = bench(profile("prefill-filter"), pool_of(1))
    refusal(made)
    record = made.director.decisions.get("r")
    assert (record.status, record.endpoints) == (429, [])
    assert record.profiles[0].filters[0].removed == ["10.0.0.1:8000"]


def test_ring_keeps_the_last_decisions():
    """Bounded, newest first, by request id."""
    made = bench(DEFAULT, pool_of(1), num_recorded_decisions=2)
    for name in ("a", "b", "c", "b"):
        made.pick(request(1, request_id=name))
    ring = made.director.decisions
    assert [decision.request_id for decision in ring.newest(9)] == ["b", "c"]
    assert ring.get("a") is None


def test_ring_lets_go_of_prompts():
    """A thousand long prompts would fill the memory."""
    made = bench(DEFAULT, pool_of(1))
    text = Text("long")
    seen = weakref.ref(text)
    made.pick(request(text=text))
    del text
    assert len(made.director.decisions) == 1
    assert seen() is None


def test_ring_lets_go_of_what_was_refused():
    """A refusal is an exception, and its traceback holds the request with its body."""
    made = bench(ACTIVE, pool_of(1))
    body = Text("prompt")
    letting_go = weakref.ref(body)
    refused = replace(request(text=body), needs_model=True)
    with pytest.raises(Refused):
        made.pick(refused)
    del body, refused
    gc.collect()
    assert letting_go() is None
    record = made.director.decisions.get("r")
    assert record is not None
    assert (record.status, record.message) == (400, "model not found in request body")


def test_scores_are_in_the_metadata_if_wanted():
    """Under the reference's key."""
    decision = bench(DEFAULT, pool_of(1), emit_endpoint_scores=True).pick(request(1))
    assert decision.metadata == {"x-gateway-destination-endpoint-scores": {"10.0.0.1:8000": 4.0}}


def test_text_prompts_match_by_their_start():
    """Four bytes a token: a shared beginning is shared blocks."""
    made = bench(DEFAULT, pool_of(2))
    made.pick(request(text="a" * 512 + "b", request_id="a"))
    made.pick(request(text="a" * 512 + "c", request_id="b"))
    (cached,) = made.director.decisions.get("b").cached_tokens.values()
    assert list(cached.values()) == [128]
