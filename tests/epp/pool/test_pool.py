import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.epp.pools import make_pool, pool_of, spec
from weft.core.address import join_host_port
from weft.core.errors import ConfigError
from weft.epp.pool.discovery import Resolver
from weft.epp.pool.endpoint import EndpointSpec, parse_endpoint, split_host_port


@pytest.mark.parametrize(
    ("text", "parts"),
    [("10.0.0.1", ("10.0.0.1", None)), ("10.0.0.1:80", ("10.0.0.1", 80)),
     ("[::1]:80", ("::1", 80)), ("[::1]", ("::1", None)), ("::1", ("::1", None)),
     ("0:0:0:0:0:0:0:1", ("::1", None)), ("Host:1", ("host", 1)), ("h:x", ("h", None))],
)  # fmt: skip
def test_addresses_are_split_and_spelt_one_way(text: str, parts):
    """IPv6 with and without brackets; names in lower case."""
    assert split_host_port(text) == parts


def test_a_port_of_any_length_is_another_one():
    """A gateway or a client may name it, and Python reads no number of so many digits."""
    host, port = split_host_port("10.0.0.1:" + "8" * 5000)
    assert (host, port is not None and port > 65535) == ("10.0.0.1", True)


def test_ipv6_is_joined_in_brackets():
    """As a gateway expects it."""
    assert (join_host_port("::1", 80), join_host_port("1.2.3.4", 80)) == ("[::1]:80", "1.2.3.4:80")


@pytest.mark.parametrize(
    ("subset", "found"),
    [
        (None, ["e1", "e2", "e3"]),
        ((), []),
        (("10.0.0.2",), ["e2"]),
        (("10.0.0.2:8000", "10.0.0.1:9"), ["e2"]),
        (("[fd00:0::3]:8000",), ["e3"]),
        (("fd00::3",), ["e3"]),
    ],
)
def test_subset_allows_by_address_and_port(subset, found: list[str]):
    """A port that is told must be right; an empty hint allows nobody."""
    pool = make_pool(spec(1), spec(2), EndpointSpec(name="e3", address="fd00::3", port=8000))
    assert [endpoint.spec.name for endpoint in pool.select(subset)] == found


def test_unchanged_endpoints_keep_their_state():
    """Another address is another endpoint."""
    pool = pool_of(2)
    one, two = pool
    left = []
    pool.on_left(left.append)
    pool.replace("test", [(one.spec, "10.0.0.1"), (spec(2), "10.0.0.9")])
    assert left == [two]
    assert next(iter(pool)) is one


def test_an_endpoint_keeps_its_state_under_other_labels():
    """Its caches hold what they held; readers of labels see the new ones, in a new list of endpoints."""
    pool = pool_of(2)
    one, two = pool
    members, left = pool.ready, []
    pool.on_left(left.append)
    pool.replace("test", [(one.spec, "10.0.0.1"), (spec(2, zone="b"), "10.0.0.2")])
    assert (left, list(pool)) == ([], [one, two])
    assert [endpoint.labels for endpoint in pool] == [{}, {"zone": "b"}]
    assert pool.ready is not members


def test_an_endpoint_joins_anew_when_a_label_changes_that_is_read_as_it_joins():
    """As the label of its engine is, by which it is polled."""
    pool = pool_of(1)
    pool.join_by("engine")
    (former,) = pool
    pool.replace("test", [(spec(1, engine="sglang"), "10.0.0.1")])
    assert next(iter(pool)) is not former


@given(st.lists(st.sets(st.integers(1, 9)), max_size=20))
def test_slots_are_unique_and_small(steps: list[set[int]]):
    """A slot is a bit in the prefix indexes; no two live endpoints share one."""
    pool = make_pool()
    for wanted in steps:
        pool.replace("test", [(spec(i), f"10.0.0.{i}") for i in wanted])
        slots = [endpoint.slot for endpoint in pool]
        assert len(set(slots)) == len(slots) == len(wanted)
        assert all(slot < 18 for slot in slots)


def test_endpoints_of_the_command_line():
    """Name, metrics port and labels behind the address."""
    found = parse_endpoint("[::1]:8000,name=a,metricsPort=9,llm-d.ai/role=decode")
    assert found == EndpointSpec(
        name="a", address="::1", port=8000, metrics_port=9, labels={"llm-d.ai/role": "decode"}
    )
    assert parse_endpoint("host:1").name == "host:1"
    assert parse_endpoint("h:1,grpcPort=2").grpc_port == 2


@pytest.mark.parametrize(
    "text", ["", "h", "h:0", "h:70000", ":1", "h:1,x", "h:1,metricsPort=no", "h:1,grpcPort=0"]
)
def test_wrong_endpoints_of_the_command_line_are_refused(text: str):
    """With what was written."""
    with pytest.raises(ConfigError, match="endpoint "):
        parse_endpoint(text)


def test_an_endpoint_may_speak_grpc_at_a_port_of_its_own():
    """Either port names it in a subset hint."""
    pool = make_pool(EndpointSpec(name="e", address="10.0.0.1", port=8000, grpc_port=50051))
    (endpoint,) = pool
    assert endpoint.address(is_grpc=False) == "10.0.0.1:8000"
    assert endpoint.address(is_grpc=True) == "10.0.0.1:50051"
    for hint in ("10.0.0.1:8000", "10.0.0.1:50051", "10.0.0.1"):
        assert pool.select((hint,)) == [endpoint]
    assert pool.select(("10.0.0.1:1",)) == []


async def test_hostnames_are_resolved_and_lost_ones_left_out():
    """IPv4 first; a name nobody knows is no endpoint."""
    specs = [
        EndpointSpec(name="a", address="localhost", port=1),
        EndpointSpec(name="b", address="nobody.invalid", port=1),
        EndpointSpec(name="c", address="::1", port=1),
    ]
    found = await Resolver().resolve_all(specs)
    assert [(each.name, host) for each, host in found] == [("a", "127.0.0.1"), ("c", "::1")]


async def test_a_name_that_stays_lost_is_reported_once(caplog):
    """A fleet may name more workers than there are, and is looked up every few seconds."""
    resolver = Resolver()
    specs = [EndpointSpec(name="a", address="nobody.invalid", port=1)]
    for _ in range(3):
        assert await resolver.resolve_all(specs) == []
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "endpoint address nobody.invalid cannot be resolved"
    ]
