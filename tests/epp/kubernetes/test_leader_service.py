"""A Service that leads to the leader of several pickers, all of which are ready."""

import json

import pytest

from tests.doubles.api_server import PODS, ApiServerDouble
from tests.epp.kubernetes.cluster import pod, put_pods
from tests.epp.pools import until
from weft.core.errors import ConfigError
from weft.epp.build import open_picker
from weft.epp.config.options import PickerOptions
from weft.epp.kubernetes.leader_elector import LeaderElector

SLICES = "apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
ELECTED = {"pool_name": "llm", "ha_enable_leader_election": True}


def led_to(api: ApiServerDouble) -> list[tuple[str, str, int]]:
    """Pod, address and port of each endpoint of the Service."""
    made = api.objects.get(SLICES, {}).get("leader")
    if made is None:
        return []
    (port,) = made["ports"]
    return [
        (one["targetRef"]["name"], *one["addresses"], port["port"]) for one in made["endpoints"]
    ]


def candidate(monkeypatch: pytest.MonkeyPatch, number: int) -> LeaderElector:
    monkeypatch.setenv("POD_NAME", f"picker-{number}")
    monkeypatch.setenv("POD_IP", f"10.0.0.{number}")
    elector = LeaderElector("ns", "llm")
    elector.serve_by("leader", 9002)
    return elector


async def test_the_service_leads_to_the_leader(
    api: ApiServerDouble, monkeypatch: pytest.MonkeyPatch
):
    """Also after another picker has become it, and after somebody has changed the slice."""
    first, second = candidate(monkeypatch, 1), candidate(monkeypatch, 2)
    try:
        for each in (first, second):
            await each.try_acquire_or_renew()
        assert led_to(api) == [("picker-1", "10.0.0.1", 9002)]
        labels = api.objects[SLICES]["leader"]["metadata"]["labels"]
        assert labels["kubernetes.io/service-name"] == "leader"
        changed = json.loads(json.dumps(api.objects[SLICES]["leader"])) | {"endpoints": []}
        api.put(SLICES, changed)
        await first.try_acquire_or_renew()
        assert led_to(api) == [("picker-1", "10.0.0.1", 9002)]
        await first.release()
        assert led_to(api) == [("picker-1", "10.0.0.1", 9002)]  # which drains
        await second.try_acquire_or_renew()
        assert led_to(api) == [("picker-2", "10.0.0.2", 9002)]
    finally:
        await first.close()
        await second.close()


async def test_a_standby_is_ready(api: ApiServerDouble, monkeypatch: pytest.MonkeyPatch):
    """Readiness is apart from leadership where a Service leads to the leader; the gauge tells which one it is."""
    put_pods(api, PODS, pod(1))
    leading = candidate(monkeypatch, 1)
    await leading.try_acquire_or_renew()
    monkeypatch.setenv("POD_NAME", "picker-2")
    monkeypatch.setenv("POD_IP", "10.0.0.2")
    standby = await open_picker(
        PickerOptions(**ELECTED, leader_service="leader", pool_namespace="ns")
    )
    try:
        assert (standby.may_be_called(), led_to(api)) == (True, [("picker-1", "10.0.0.1", 9002)])
        assert b'llm_d_epp_leader{name="llm"} 0.0' in standby.metrics.text()
        await leading.close()
        await until(lambda: led_to(api) == [("picker-2", "10.0.0.2", 9002)])
        assert b'llm_d_epp_leader{name="llm"} 1.0' in standby.metrics.text()
    finally:
        await standby.close()


async def test_what_the_service_needs_is_named(
    api: ApiServerDouble, monkeypatch: pytest.MonkeyPatch
):
    """The election, and the pod's name and address."""
    with pytest.raises(ConfigError, match="--leader-service needs --ha-enable-leader-election"):
        PickerOptions(pool_name="llm", leader_service="leader")
    monkeypatch.delenv("POD_IP", raising=False)
    elector = LeaderElector("ns", "llm")
    with pytest.raises(ConfigError, match="POD_NAME and POD_IP"):
        elector.serve_by("leader", 9002)
    await elector.close()
