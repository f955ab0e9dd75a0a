"""The topology plugins: prefill near the endpoint that decodes."""

from dataclasses import replace

import pytest

from tests.epp.pools import Bench, bench, make_pool, request, spec

ROLE = "llm-d.ai/role"
CONFIG = """\
plugins:
- {type: topology-extractor, parameters: {hostname: slice, rack: rack, zone: zone}}
- {type: topology-affinity-filter, parameters: {minAffinity: %s}}
- {type: topology-affinity-scorer}
- {type: always-disagg-pd-decider}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- {type: prefill-filter}
- {type: decode-filter}
schedulingProfiles:
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: topology-affinity-filter}]
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: %s}]
"""


def made(reference: str, level: str = "host") -> Bench:
    """One that decodes, and four that prefill: on its slice, in its rack, in its zone, elsewhere."""
    places = [
        ("s1", "r1", "z1"),
        ("s1", "r1", "z1"),
        ("s2", "r1", "z1"),
        ("s3", "r2", "z1"),
        ("", "", ""),
    ]
    return bench(
        CONFIG % (level, reference),
        make_pool(*(
            spec(i + 1, slice=host, rack=rack, zone=zone, **{ROLE: "prefill" if i else "decode"})
            for i, (host, rack, zone) in enumerate(places)
        )),
    )  # fmt: skip


def test_prefill_is_nearest_to_decode():
    """By the score of the nearest level that they share."""
    built = made("topology-affinity-scorer")
    assert built.pick(request(1, request_id="r")).set_headers == {
        "x-prefiller-host-port": "10.0.0.2:8000"
    }
    _, run = built.director.decisions.get("r").profiles
    assert [score.raw for score in run.scorers[0].scores.values()] == [1.0, 0.2, 0.05, 0.0]


@pytest.mark.parametrize(
    ("level", "hosts"),
    [("host", {2}), ("rack", {2, 3}), ("zone", {2, 3, 4}), ("region", {2, 3, 4})],
)
def test_prefill_is_no_farther_than_wanted(level: str, hosts: set[int]):
    """A place that is not known is near to none."""
    built = made("topology-affinity-filter", level)
    found = {built.pick(request(1)).set_headers["x-prefiller-host-port"] for _ in range(40)}
    assert found <= {f"10.0.0.{number}:8000" for number in hosts}
    built.pick(request(1, request_id="r"))
    _, run = built.director.decisions.get("r").profiles
    assert len(run.scorers or run.totals) == len(hosts)


def test_without_labels_an_address_is_a_host():
    """Two ports of one machine are near each other."""
    text = CONFIG.replace(", parameters: {hostname: slice, rack: rack, zone: zone}", "")
    beside = replace(spec(3, port=8001, **{ROLE: "prefill"}), address="10.0.0.1")
    pool = make_pool(spec(1, **{ROLE: "decode"}), beside, spec(2, **{ROLE: "prefill"}))
    built = bench(text % ("host", "topology-affinity-filter"), pool)
    assert built.pick(request(1)).set_headers == {"x-prefiller-host-port": "10.0.0.1:8001"}
