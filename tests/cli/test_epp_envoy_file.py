"""deploy/envoy.yaml and `weft up` are one configuration."""

from pathlib import Path

import yaml

from weft.cli.up.envoy import EnvoyPlan, envoy_config

FILE = Path(__file__).resolve().parents[2] / "deploy" / "envoy.yaml"


def test_the_file_is_what_weft_up_makes():
    """Neither can be changed alone."""
    plan = EnvoyPlan(
        listen=("0.0.0.0", 8080),
        http_workers=(("127.0.0.1", 8000), ("127.0.0.1", 8001)),
        admin=("127.0.0.1", 9901),
    )
    assert yaml.safe_load(FILE.read_text(encoding="utf-8")) == envoy_config(plan)


def test_clients_headers_are_stripped_before_the_picker_and_nothing_is_cut():
    """The order of the filters and the timeouts are what the safety rests on."""
    (listener,) = envoy_config(EnvoyPlan())["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    names = [one["name"].rsplit(".", 1)[-1] for one in manager["http_filters"]]
    assert names == ["header_mutation", "ext_proc", "router"]
    mutations = manager["http_filters"][0]["typed_config"]["mutations"]["request_mutations"]
    assert {"remove_on_match": {"key_matcher": {"prefix": "x-gateway-"}}} in mutations
    route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    assert route["timeout"] == "0s"
