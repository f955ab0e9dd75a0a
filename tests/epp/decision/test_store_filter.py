"""Requests that name stored objects go to a server that has them."""

import pytest

from tests.epp.pools import Bench, bench, make_pool, request, spec, with_loads
from weft.core.checks.object_ids import new_store_name
from weft.epp.config.config import BUILT_IN
from weft.epp.pool.endpoint import Load
from weft.epp.pool.pool import Pool
from weft.epp.request.values import Drop, Refused

DEFAULT = BUILT_IN.partition("kind: EndpointPickerConfig\n")[2]
IN_MEMORY = new_store_name(is_durable=False)
IN_FILE = new_store_name(is_durable=True)
APART = """
plugins:
- type: prefill-filter
- type: decode-filter
- type: always-disagg-pd-decider
- type: random-picker
- type: disagg-profile-handler
  parameters: {profiles: {decode: decode, prefill: prefill}, deciders: {prefill: always-disagg-pd-decider}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: random-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: random-picker}]}
"""


def loaded(*stores: str) -> Pool:
    """A pool of servers with these stores. The first server has the longest queue."""
    pool = make_pool(*(spec(number + 1) for number in range(len(stores))))
    with_loads(
        pool,
        *(Load(store=store, num_waiting=9 - place) for place, store in enumerate(stores)),
    )
    return pool


def refusal(made: Bench, store: str) -> Refused:
    """The refusal of a request for an object of a store; the same for requests without a prompt."""
    with pytest.raises(Refused) as caught:
        made.pick(request(1, store=store))
    with pytest.raises(Refused) as other:
        made.director.pick_any(None, is_grpc=False, store=store)
    assert other.value.message == caught.value.message
    return caught.value


def test_a_request_goes_to_the_server_that_has_the_object():
    """However long its queue is; other requests go where the load says."""
    made = bench(DEFAULT, loaded(IN_MEMORY, "", IN_FILE))
    assert [made.host(1, store=IN_MEMORY) for _ in range(5)] == ["10.0.0.1"] * 5
    anywhere = {made.director.pick_any(None, is_grpc=False, store=IN_MEMORY) for _ in range(20)}
    assert anywhere == {"10.0.0.1:8000"}
    assert made.host(2) != "10.0.0.1"


def test_servers_that_share_a_file_all_serve_its_objects():
    """The load decides among them."""
    made = bench(DEFAULT, loaded("", IN_FILE, IN_FILE))
    assert {made.host(number, store=IN_FILE) for number in range(8)} == {"10.0.0.2", "10.0.0.3"}


def test_an_object_in_the_memory_of_a_lost_server_is_not_found():
    """404 with the reason: no other server has it, and it does not come back."""
    refused = refusal(bench(DEFAULT, loaded("", IN_FILE)), IN_MEMORY)
    assert (refused.status, refused.retry_after_s) == (404, None)
    assert "in the memory of a server that has ended" in refused.message


def test_an_object_in_a_file_of_an_absent_server_is_unavailable():
    """503: the server may come back with its file."""
    refused = refusal(bench(DEFAULT, loaded("", IN_MEMORY)), IN_FILE)
    assert (refused.status, refused.reason, refused.retry_after_s) == (503, Drop.NO_ENDPOINTS, 1)
    assert "not available now" in refused.message


def test_a_server_that_refuses_connections_counts_as_absent():
    """Its process has ended, and so has its memory."""
    pool = loaded(IN_MEMORY, "")
    next(iter(pool)).is_refusing = True
    assert refusal(bench(DEFAULT, pool), IN_MEMORY).status == 404


def test_nothing_is_called_lost_before_all_servers_have_reported():
    """A picker that has just started asks the client to try again."""
    refused = refusal(bench(DEFAULT, make_pool(spec(1), spec(2))), IN_MEMORY)
    assert (refused.status, refused.retry_after_s) == (503, 1)
    assert "not known yet" in refused.message


def test_prefill_runs_apart_also_for_a_stored_object():
    """Only the destination must have the object."""
    roles = ("decode", "decode", "prefill")
    pool = make_pool(*(spec(n, **{"llm-d.ai/role": role}) for n, role in enumerate(roles, start=1)))
    with_loads(pool, Load(store=IN_MEMORY), Load(), Load())
    decision = bench(APART, pool).pick(request(1, store=IN_MEMORY))
    assert decision.endpoints == ("10.0.0.1:8000",)
    assert decision.set_headers["x-prefiller-host-port"] == "10.0.0.3:8000"
