"""Configurations of the kinds people deploy, driven with requests over fake endpoints."""

import base64

import pytest

from tests.epp.pools import Bench, bench, make_pool, pool_of, request, spec, with_loads
from weft.core.values.prompts import pack_tokens
from weft.epp.pool.endpoint import Adapters, EndpointSpec, Load
from weft.epp.prefix.events import Stored
from weft.epp.request.values import Drop, Refused

ROLE = "llm-d.ai/role"

OPTIMISED = """\
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - pluginRef: max-score-picker
"""


def test_prefix_beats_a_short_queue_but_not_a_long_one_and_a_full_cache():
    """3 for the prefix against 2 and 2."""
    pool = pool_of(2)
    made = bench(OPTIMISED, pool)
    home = made.host(*range(128))
    one, two = sorted(pool, key=lambda each: each.host != home)
    one.observe(Load(num_waiting=3), polled_at=made.clock.now + 1)
    assert made.host(*range(128)) == home
    one.observe(Load(num_waiting=3, kv_usage=0.9), polled_at=made.clock.now + 1)
    two.observe(Load(), polled_at=made.clock.now + 1)
    assert made.host(*range(128)) != home


PRECISE = """\
plugins:
- type: token-producer
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSizeTokens: 16, hashSeed: "42"}
    indexerConfig: {kvBlockIndexConfig: {enableMetrics: true}}
    kvEventsConfig: {topicFilter: "kv@", concurrency: 4, discoverPods: true,
                     podDiscoveryConfig: {socketPort: 5557}}
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 1}
"""
DEPRECATED_PRECISE = """\
plugins:
- type: precise-prefix-cache-scorer
  parameters: {tokenProcessorConfig: {hashAlgorithm: cbor-fnv}}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: precise-prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer}
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (PRECISE, "precise-prefix-cache-producer"),
        (DEPRECATED_PRECISE, "precise-prefix-cache-scorer"),
    ],
)
def test_precise_prefix_follows_what_engines_told(text: str, name: str):
    """Where the blocks are, not where requests went; the older plugin alike."""
    pool = pool_of(3)
    made = bench(text, pool)
    plugin = made.assembly.plugins[name]
    index = getattr(plugin, "inner", plugin).index
    third = list(pool)[2]
    event = Stored(hashes=[1, 2], parent=None, tokens=pack_tokens(range(32)), block_size=16)
    index.apply(third, event, model="m")
    hosts = {made.host(*range(40), model="m") for _ in range(5)}
    assert hosts == {"10.0.0.3"}
    record = made.director.decisions.get("r")
    assert record.cached_tokens[name] == {"10.0.0.3:8000": 32}


DISAGGREGATED = """\
plugins:
- type: prefill-filter
- type: decode-filter
- type: encode-filter
- type: queue-scorer
- type: prefix-cache-scorer
- type: max-score-picker
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: 100}
- type: always-disagg-multimodal-decider
- type: disagg-profile-handler
  parameters:
    profiles: {decode: decode, prefill: prefill, encode: encode}
    deciders: {prefill: prefix-based-pd-decider, encode: always-disagg-multimodal-decider}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer}, {pluginRef: max-score-picker}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer, weight: 2}]
- name: encode
  plugins: [{pluginRef: encode-filter}]
"""


def roles(*names: str) -> list[EndpointSpec]:
    return [spec(i + 1, **{ROLE: name}) for i, name in enumerate(names)]


def test_long_prompts_are_prefilled_elsewhere():
    """The destination decodes; the header names who prefills; a cached prompt stays whole."""
    made = bench(DISAGGREGATED, make_pool(*roles("prefill", "decode", "encode")))
    long = made.pick(request(*range(200)))
    again = made.pick(request(*range(200)))
    short = made.pick(request(*range(5000, 5050)))
    assert [each.endpoints for each in (long, again, short)] == [("10.0.0.2:8000",)] * 3
    assert long.set_headers == {"x-prefiller-host-port": "10.0.0.1:8000"}
    assert (again.set_headers, short.set_headers) == ({}, {})


def test_the_prefiller_is_named_as_the_client_speaks():
    """By its gRPC port to a gRPC request."""
    two = [
        EndpointSpec(
            name=name, address=f"10.0.0.{i}", port=8000, grpc_port=50051, labels={ROLE: name}
        )
        for i, name in enumerate(("prefill", "decode"), 1)
    ]
    decision = bench(DISAGGREGATED, make_pool(*two)).pick(request(*range(200), is_grpc=True))
    assert decision.endpoints == ("10.0.0.2:50051",)
    assert decision.set_headers == {"x-prefiller-host-port": "10.0.0.1:50051"}


def test_media_are_encoded_elsewhere():
    """Only when there are any."""
    made = bench(DISAGGREGATED, make_pool(*roles("prefill", "decode", "encode")))
    decision = made.pick(request(1, media=("a",)))
    assert decision.set_headers == {"x-encoder-hosts-ports": "10.0.0.3:8000"}


def test_no_stage_runs_apart_without_a_decider():
    """As in the reference, where a decider is what switches a stage on."""
    text = DISAGGREGATED.replace("    deciders: {", "    # {")
    made = bench(text, make_pool(*roles("prefill", "decode", "encode")))
    assert made.pick(request(*range(200), media=("a",))).set_headers == {}


def test_the_older_handler_decides_by_the_prefix():
    """Whose default is never to prefill apart."""
    text = (
        "plugins:\n- type: pd-profile-handler\n- type: prefill-filter\n- type: decode-filter\n"
        "schedulingProfiles:\n- {name: prefill, plugins: [{pluginRef: prefill-filter}]}\n"
        "- {name: decode, plugins: [{pluginRef: decode-filter}]}\n"
    )
    made = bench(text, make_pool(*roles("prefill", "decode")))
    assert made.pick(request(*range(200))).set_headers == {}


def test_decoder_does_it_all_when_nobody_prefills():
    """A missing stage is no missing service; a missing decoder is."""
    made = bench(DISAGGREGATED, make_pool(*roles("decode", "both")))
    assert made.pick(request(*range(200))).set_headers == {"x-prefiller-host-port": "10.0.0.2:8000"}
    alone = bench(DISAGGREGATED, make_pool(*roles("decode")))
    assert alone.pick(request(*range(200))).set_headers == {}
    with pytest.raises(Refused) as caught:
        bench(DISAGGREGATED, make_pool(*roles("prefill"))).pick(request(1))
    assert caught.value.reason is Drop.SATURATED


def test_older_disaggregation_plugins_still_work():
    """Their headers handler does nothing, and says so."""
    text = (
        "plugins:\n- type: prefill-header-handler\n- type: always-disagg-pd-decider\n"
        "- {type: pd-profile-handler, parameters: {deciderPluginName: always-disagg-pd-decider}}\n"
        "- type: prefill-filter\n- type: decode-filter\n"
        "schedulingProfiles:\n- {name: prefill, plugins: [{pluginRef: prefill-filter}]}\n"
        "- {name: decode, plugins: [{pluginRef: decode-filter}]}\n"
    )
    made = bench(text, make_pool(*roles("prefill", "decode")))
    assert made.pick(request(1)).set_headers == {"x-prefiller-host-port": "10.0.0.1:8000"}
    assert any("sets the headers" in each for each in made.assembly.config.warnings)


LORA = """\
plugins: [{type: lora-affinity-scorer}, {type: queue-scorer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: lora-affinity-scorer, weight: 3}, {pluginRef: queue-scorer, weight: 1}]
"""


def test_requests_for_an_adapter_go_where_it_is_loaded():
    """Then where there is room for it."""
    pool = pool_of(3)
    with_loads(
        pool,
        Load(adapters=Adapters(active=frozenset({"a"}), max_active=1)),
        Load(adapters=Adapters(active=frozenset({"b"}), max_active=1)),
        Load(adapters=Adapters(max_active=1)),
    )
    made = bench(LORA, pool)
    assert [made.host(1, model=name) for name in ("a", "b", "c")] == [
        "10.0.0.1", "10.0.0.2", "10.0.0.3",
    ]  # fmt: skip


SESSION = """\
plugins:
- {type: session-affinity-scorer%s}
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins: [{pluginRef: session-affinity-scorer, weight: 10}, {pluginRef: queue-scorer}]
"""


def test_session_token_leads_back_to_its_endpoint():
    """The client carries it; a token that is none, or of nobody, is no session."""
    pool = pool_of(3)
    made = bench(SESSION % "", pool)
    first = made.pick(request(1))
    token = first.response_headers["x-session-token"]
    assert base64.b64decode(token).decode() in {each.name for each in pool}
    assert first.tracks_response
    headers = {"x-session-token": token}
    assert {made.pick(request(i, headers=headers)).endpoints for i in range(20)} == {
        first.endpoints
    }
    for wrong in ("%%%", base64.b64encode(b"default/gone").decode(), "Ünicode"):
        assert made.pick(request(1, headers={"x-session-token": wrong})).endpoints


def test_session_id_is_remembered_for_its_time():
    """Without anything for the client to carry; the memory is swept."""
    text = (
        SESSION % ", parameters: {strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 60}}"
    )
    made = bench(text, pool_of(3))
    headers = {"x-session-id": "s"}
    first = made.pick(request(1, headers=headers))
    assert first.response_headers == {}
    assert {made.pick(request(i, headers=headers)).endpoints for i in range(20)} == {
        first.endpoints
    }
    plugin = made.assembly.plugins["session-affinity-scorer"]
    made.clock.advance(61)
    made.pick(request(1, headers={"x-session-id": "t"}))
    assert len(plugin) == 1


def test_session_filter_leaves_only_the_sessions_endpoint():
    """And everybody when it is gone."""
    made = bench("plugins: [{type: session-affinity-filter}]\n", pool_of(3))
    first = made.pick(request(1))
    headers = dict(first.response_headers)
    made.pick(request(2, request_id="b", headers=headers))
    (run,) = made.director.decisions.get("b").profiles
    assert len(run.filters[0].removed) == 2
    gone = [each for each in made.pool if each.host_port not in first.endpoints]
    made.pool.replace("test", [(each.spec, each.host) for each in gone])
    assert made.pick(request(3, headers=headers)).endpoints != first.endpoints


def test_cookie_can_name_the_session():
    """Through the producer that reads it."""
    text = (
        "plugins:\n- {type: session-id-producer, parameters: {cookieName: sid}}\n"
        "- {type: session-affinity-scorer, parameters: {strategy: session_id}}\n"
    )
    made = bench(text, pool_of(5))
    headers = {"cookie": "a=b; sid=s1"}
    assert len({made.pick(request(i, headers=headers)).endpoints for i in range(20)}) == 1


HEADER = """\
plugins: [{type: header-profile-handler}, {type: decode-filter}, {type: prefill-filter}]
schedulingProfiles:
- {name: decode, plugins: [{pluginRef: decode-filter}]}
- {name: prefill, plugins: [{pluginRef: prefill-filter}]}
"""


def test_header_chooses_the_profile():
    """The default without it; an unknown name is refused."""
    made = bench(HEADER, make_pool(*roles("prefill", "decode")))
    assert made.host(1) == "10.0.0.2"
    assert made.host(1, headers={"epp-profile": "prefill"}) == "10.0.0.1"
    with pytest.raises(Refused) as caught:
        made.pick(request(1, headers={"epp-profile": "none"}))
    assert caught.value.status == 429


def test_data_parallel_rank_is_named_in_a_header():
    """The request goes in at the primary port."""
    pool = make_pool(EndpointSpec(name="rank1", address="fd00::1", port=8001))
    decision = bench("plugins: [{type: data-parallel-profile-handler}]\n", pool).pick(request(1))
    assert decision.endpoints == ("[fd00::1]:8000",)
    assert decision.set_headers == {"x-data-parallel-host-port": "[fd00::1]:8001"}


def test_picker_may_name_fallbacks():
    """For gateways that read a list; the first counts as the pick."""
    text = "plugins: [{type: queue-scorer}, {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}]\n"
    made: Bench = bench(text, pool_of(3))
    decision = made.pick(request(1))
    assert len(decision.endpoints) == 2
    assert [len(each.unseen) for each in made.pool if each.host_port in decision.endpoints[:1]] == [
        1
    ]
    assert sum(len(each.unseen) for each in made.pool) == 1


def test_grpc_sample_of_the_reference_loads():
    """Its parser, its picker, and a profile of the usual scorers."""
    text = (
        "plugins:\n- {name: maxScore, type: max-score-picker}\n"
        "- {name: vllmgrpcParser, type: vllmgrpc-parser}\n- type: queue-scorer\n"
        "schedulingProfiles:\n- name: default\n  plugins:\n  - pluginRef: queue-scorer\n"
        "  - pluginRef: maxScore\nrequestHandler:\n  parsers:\n  - pluginRef: vllmgrpcParser\n"
    )
    made = bench(text, pool_of(2))
    assert made.assembly.config.parsers == ("vllmgrpc-parser",)
    assert made.pick(request(9906, is_grpc=True)).endpoints
