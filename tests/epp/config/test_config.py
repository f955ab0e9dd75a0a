import copy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.epp.pools import HEAD
from weft.core.errors import ConfigError
from weft.epp.config.config import BUILT_IN, read_config
from weft.epp.plugins.registry import PLUGIN_TYPES, REFUSED_TYPES
from weft.epp.request.parsers.table import DEFAULT_PARSERS
from weft.epp.resolve import ResolvedConfig, resolve


def load(text: str, *, allow_experimental: bool = False) -> ResolvedConfig:
    return resolve(read_config(text, "test"), allow_experimental=allow_experimental)


def load_rest(text: str) -> ResolvedConfig:
    return load(HEAD + text)


def test_built_in_configuration_scores_queue_cache_and_prefix():
    """Weights 2, 2, 3; the rest is filled in."""
    config = load(BUILT_IN)

    (profile,) = config.profiles
    assert profile.scorers == (
        ("queue-scorer", 2), ("kv-cache-utilization-scorer", 2), ("prefix-cache-scorer", 3),
    )  # fmt: skip
    assert (profile.picker, config.handler) == ("max-score-picker", "single-profile-handler")
    assert config.parsers == DEFAULT_PARSERS
    assert config.sources == (("metrics-data-source", ("core-metrics-extractor",)),)


def test_older_api_version_is_accepted():
    """Its deprecated alias still stands in many files."""
    text = BUILT_IN.replace("llm-d.ai/", "inference.networking.x-k8s.io/")
    assert load(text) == load(BUILT_IN)


def test_producers_are_made_for_those_who_read_them():
    """A scorer that reads prefixes gets the default producer, and that gets tokens, before it."""
    names = [plugin.name for plugin in load_rest("plugins: [{type: prefix-cache-scorer}]").plugins]
    order = ["token-producer", "approx-prefix-cache-producer", "prefix-cache-scorer"]
    assert [name for name in names if name in order] == order


def test_without_profiles_all_plugins_form_one():
    """Every filter, scorer and picker, in the order of the file."""
    config = load_rest(
        "plugins: [{type: decode-filter}, {type: queue-scorer}, {type: random-picker}]"
    )
    (profile,) = config.profiles
    assert (profile.name, profile.filters, profile.scorers, profile.picker) == (
        "default", ("decode-filter",), (("queue-scorer", 1.0),), "random-picker",
    )  # fmt: skip


def test_profile_without_picker_takes_the_configured_one():
    """And not the default, which nobody asked for."""
    config = load_rest(
        "plugins: [{type: queue-scorer}, {type: random-picker, name: any}]\n"
        "schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorer}]}]"
    )
    assert config.profiles[0].picker == "any"


def test_explicit_parsers_have_no_fallback():
    """An unclaimed path is then an error, not a pass."""
    config = load_rest(
        "plugins: [{type: vllmgrpc-parser, name: g}]\nrequestHandler: {parsers: [{pluginRef: g}]}"
    )
    assert config.parsers == ("vllmgrpc-parser",)


def test_deprecated_detector_place_counts_if_the_new_one_is_unset():
    """The newer field wins."""
    text = (
        "plugins: [{type: utilization-detector, name: u}, {type: concurrency-detector, name: c}]\n"
        "saturationDetector: {pluginRef: c}\n"
    )
    assert load_rest(text).detector == "c"
    newer = load_rest(text + "flowControl: {saturationDetector: {pluginRef: u}}")
    assert newer.detector == "u"
    assert "feature gate is off" in newer.warnings[0]


REFUSALS = [
    ("plugin: []", "plugin: unknown key; did you mean 'plugins'"),
    ("plugins: [{type: queue-scorer, weight: 1}]", "plugins[0].weight: unknown key"),
    ("plugins: [{type: que-scorer}]", "plugins[0].type: no plugin type"),
    ("plugins: [{name: q}]", "plugins[0]: object missing required field `type`"),
    ("plugins: {}", "plugins: expected `array`"),
    ("plugins: [{type: queue-scorer, parameters: {a: 1}}]", "plugins[0].parameters.a: unknown"),
    ("plugins: [{type: load-aware-scorer, parameters: {threshold: 0}}]",
     "plugins[0].parameters.threshold: expected `int` >= 1"),
    ("plugins: [{type: load-aware-scorer, parameters: {threshold: '9'}}]",
     "plugins[0].parameters.threshold: expected `int`, got `str`"),
    ("plugins: [{type: queue-scorer}, {type: queue-scorer}]", "plugins[1].name: 'queue-scorer'"),
    (
        "plugins: [{type: k8s-notification-source}]",
        "plugins[0].type: 'k8s-notification-source' is refused: --pool-name",
    ),
    ("plugins: [{type: utilization-filter}]", "plugins[0].type: 'utilization-filter' is experim"),
    ("plugins: [{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: x}}]",
     "plugins[0].parameters.prefixMatchInfoProducerName: no plugin is named 'x'"),
    (("plugins: [{type: queue-scorer}, {type: prefix-cache-scorer,"
     " parameters: {prefixMatchInfoProducerName: queue-scorer}}]"), "not a data producer"),
    ("schedulingProfiles: [{name: a, plugins: [{pluginRef: x}]}]",
     "schedulingProfiles[0].plugins[0].pluginRef: no plugin is named 'x'"),
    (("plugins: [{type: queue-scorer}]\n"
     "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: .nan}]}]"),
     "schedulingProfiles[0].plugins[0].weight: must be a finite number"),
    (("plugins: [{type: random-picker}]\n"
     "schedulingProfiles: [{name: a, plugins: [{pluginRef: random-picker, weight: 1}]}]"),
     "schedulingProfiles[0].plugins[0].weight: 'random-picker' is not a scorer"),
    ("schedulingProfiles: [{name: a}, {name: b}]", "needs a profile handler"),
    ("schedulingProfiles: [{name: a}, {name: a}]", "schedulingProfiles[1].name"),
    ("plugins: [{type: single-profile-handler}]\nschedulingProfiles: [{name: a}, {name: b}]",
     "schedulingProfiles: single-profile-handler takes one profile, found 2"),
    ("plugins: [{type: single-profile-handler}, {type: disagg-profile-handler}]",
     "exactly one profile handler"),
    ("plugins: [{type: disagg-profile-handler, name: h}]\nschedulingProfiles: [{name: a}]",
     "plugins[0].parameters.profiles.decode: no profile is named 'decode'"),
    ("featureGates: [flowControl]\nflowControl: {priorityBands: [{priority: 1}, {priority: 1}]}",
     "flowControl.priorityBands[1].priority: duplicate band of priority 1"),
    ("featureGates: [flowControl]\nflowControl: {defaultPriorityBand: {priority: 1}}",
     "flowControl.defaultPriorityBand.priority: must be absent"),
    ("featureGates: [flowControl]\nflowControl: {priorityBands: [{fairnessPolicyRef: fcfs}]}",
     "flowControl.priorityBands[0].fairnessPolicyRef: no plugin is named 'fcfs'"),
    (("featureGates: [flowControl]\nplugins: [{type: edf-ordering-policy}]\n"
      "flowControl: {usageLimitPolicyPluginRef: edf-ordering-policy}"),
     "flowControl.usageLimitPolicyPluginRef: 'edf-ordering-policy' is a edf-ordering-policy, not"),
    ("featureGates: [flowControl=yes]", "featureGates[0]: must be flowControl=true or"),
    ("featureGates: [other]", "featureGates[0]: unknown gate 'other'"),
    ("flowControl: {maxBytes: 1Q}", "flowControl: must be a quantity"),
    ("flowControl: {defaultRequestTTL: 1d}", "flowControl: must be a duration"),
    ("flowControl: {priorityBands: [{priority: 1, maxRequest: 1}]}",
     "flowControl.priorityBands[0].maxRequest: unknown key"),
    ("dataLayer: {peerDiscovery: {pluginRef: x}}", "dataLayer.peerDiscovery: state shared"),
    (("plugins: [{type: metrics-data-source, name: a}, {type: metrics-data-source, name: b}]\n"
     "dataLayer: {sources: [{pluginRef: a}, {pluginRef: b}]}"), "dataLayer.sources[1]: only one source"),
    ("dataLayer: {discovery: {pluginRef: x}}", "dataLayer.discovery.pluginRef: no plugin"),
    ("plugins: [{type: file-discovery, parameters: {path: /e}}]",
     "plugins[0]: 'file-discovery' is not named in dataLayer.discovery"),
    ("plugins: [{type: k8s-notification-source}]", "--pool-name watches Kubernetes objects"),
    ("plugins: [{type: queue-scorer}]\nplugins: []", "key 'plugins' appears twice"),
    ("1: 2", "keys must be strings"),
    ("plugins: [", "not valid YAML"),
    ("---\nkind: x", "expected one document, found 2"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSALS)
def test_what_is_wrong_is_refused_with_its_path(text: str, message: str):
    """One line that names the key, what was wrong, and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        load_rest(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "a", "kind: EndpointPickerConfig", HEAD + "kind: x"])
def test_what_is_no_configuration_is_refused(text: str):
    """A picker never starts on a guess."""
    with pytest.raises(ConfigError):
        load(text)


def test_plugins_that_refer_to_each_other_in_a_circle_are_refused():
    """The circle is spelt out."""
    text = (
        "plugins:\n"
        "- {type: no-hit-lru-scorer, name: a, parameters: {prefixPluginName: b}}\n"
        "- {type: no-hit-lru-scorer, name: b, parameters: {prefixPluginName: a}}\n"
    )
    with pytest.raises(ConfigError, match=r"circle: a -> b -> a"):
        load_rest(text)


def test_aliases_that_expand_without_end_are_refused():
    """A kilobyte must not become gigabytes."""
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 20)]
    with pytest.raises(ConfigError, match="too large or too deep"):
        load_rest("\n".join(lines))


@pytest.mark.parametrize("type_", sorted(REFUSED_TYPES))
def test_each_refused_type_is_refused_by_name(type_: str):
    """With a sentence, whether or not experiments are allowed."""
    with pytest.raises(ConfigError, match=f"'{type_}' is refused: "):
        load(HEAD + f"plugins: [{{type: {type_}}}]", allow_experimental=True)


@pytest.mark.parametrize(
    "type_",
    ["disaggregatedset-rollout-screener", "destination-endpoint-served-verifier"],
)
def test_types_are_refused_under_the_names_that_the_reference_registers(type_: str):
    """Another spelling would say that no such type is known."""
    with pytest.raises(ConfigError, match=f"'{type_}' is refused: "):
        load_rest(f"plugins: [{{type: {type_}}}]")


def test_no_type_is_both_offered_and_refused():
    """The two tables do not overlap."""
    assert not PLUGIN_TYPES.keys() & REFUSED_TYPES.keys()


def test_deprecated_names_work_and_are_reported():
    """The old name loads; the warning says the new one."""
    config = load_rest("plugins: [{type: by-label-selector, parameters: {matchLabels: {a: b}}}]")
    assert config.profiles[0].filters == ("by-label-selector",)
    assert "use 'label-selector-filter'" in config.warnings[0]


# -- fuzz -------------------------------------------------------------------------------------

SEED = yaml.safe_load(
    HEAD
    + """\
featureGates: [haPopulateNonLeaderDatastore=true]
plugins:
- {type: queue-scorer, name: q}
- {type: prefix-cache-scorer, parameters: {matchLengthWeight: 0.5}}
- {type: decode-filter}
- {type: label-selector-filter, parameters: {matchExpressions: [{key: a, operator: In, values: [b]}]}}
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
- {type: disagg-profile-handler, parameters: {profiles: {decode: d}, stageOrder: [decode]}}
- {type: precise-prefix-cache-producer, parameters: {speculativeTTL: 1s, indexerConfig: {}}}
- {type: core-metrics-extractor, parameters: {engineConfigs: [{name: v, loraSpec: "a{b=c}"}]}}
schedulingProfiles:
- name: d
  plugins: [{pluginRef: q, weight: 2}, {pluginRef: decode-filter}, {pluginRef: max-score-picker}]
flowControl: {maxBytes: 1Gi, defaultRequestTTL: 60s, saturationDetector: {pluginRef: u}}
"""
)
# Without colons: an error names its place before the first one.
KEYS = st.text(st.characters(exclude_characters=":"), max_size=6)
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.builds(list), st.builds(dict), st.builds(lambda: ["d"]), st.builds(lambda: {"x": 1}),
    st.sampled_from(sorted(PLUGIN_TYPES)), st.sampled_from(["q", "d", "1Gi", "5s"]),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            found += places(item, (*path, key))
    return found


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_mutation_gives_a_configuration_or_an_error_that_names_a_place(data: st.DataObject):
    """Never a traceback: whatever stands anywhere in the file."""
    document = copy.deepcopy(SEED)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(document)))
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        match data.draw(st.sampled_from(["set", "delete", "rename"])):
            case "set":
                parent[path[-1]] = data.draw(JUNK)
            case "delete":
                del parent[path[-1]]
            case _ if isinstance(parent, dict):
                parent[data.draw(KEYS)] = parent.pop(path[-1])
            case _:
                pass
        if not places(document):
            break
    assert outcome(yaml.safe_dump(document, allow_unicode=True))


@pytest.mark.parametrize(
    "text", ['{"\\ud800": 1}', 'apiVersion: "\\ud800"', 'plugins: ["a\\udfff"]']
)
def test_half_a_character_is_refused(text: str):
    """YAML can spell it; it must end as an error of the file, not as a traceback."""
    with pytest.raises(ConfigError, match="half of a surrogate pair"):
        load(text)


def outcome(text: str) -> str:
    """The place an error names; "loaded" if there is none."""
    try:
        load(text, allow_experimental=True)
    except ConfigError as error:
        return str(error).partition(":")[0]
    return "loaded"
