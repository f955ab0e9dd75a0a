"""The fields of an `EndpointPickerConfig` file, and its strict reading."""

from typing import Any

import msgspec

from weft.core.config.quantity import parse_duration_s, parse_quantity
from weft.core.errors import ConfigError
from weft.epp.config.decode import decode, parse_document
from weft.epp.config.parameters import Part

# Accepted values of `apiVersion`, all with the same meaning: newest first, the deprecated group last.
API_VERSIONS = ("llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
KIND = "EndpointPickerConfig"

BUILT_IN = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
"""


class PluginSpec(Part, frozen=True, kw_only=True):
    """A plugin in the configuration. Its name is its type unless the file gives a name."""

    type: str
    name: str | None = None
    parameters: dict[str, Any] | None = None


class PluginRef(Part, frozen=True, kw_only=True):
    """A reference to a plugin by name."""

    plugin_ref: str


class ProfilePlugin(Part, frozen=True, kw_only=True):
    """A plugin in a scheduling profile. Only scorers have a weight."""

    plugin_ref: str
    weight: float | None = None


class ProfileSpec(Part, frozen=True, kw_only=True):
    """A scheduling profile."""

    name: str
    plugins: list[ProfilePlugin] = []


class SourceSpec(Part, frozen=True, kw_only=True):
    """A data source and the extractors that read its data."""

    plugin_ref: str
    extractors: list[PluginRef] = []


class DiscoverySpec(Part, frozen=True, kw_only=True):
    """The plugin that discovers endpoints: `pluginRef` or, in newer files, `endpoints.pluginRef`."""

    plugin_ref: str | None = None
    endpoints: PluginRef | None = None
    peers: PluginRef | None = None

    def __post_init__(self) -> None:
        if (self.plugin_ref is None) == (self.endpoints is None) and self.peers is None:
            raise ValueError("needs exactly one of pluginRef and endpoints")

    def named(self) -> tuple[str, str] | None:
        """Returns the name of the plugin that discovers endpoints, and the key that names the plugin; None if none is
        named.
        """
        if self.endpoints is not None:
            return "endpoints.pluginRef", self.endpoints.plugin_ref
        return None if self.plugin_ref is None else ("pluginRef", self.plugin_ref)


class DataLayerSpec(Part, frozen=True, kw_only=True):
    """Sources of the endpoints and of their load data."""

    inject_defaults: bool = True
    sources: list[SourceSpec] = []
    discovery: DiscoverySpec | None = None
    peer_discovery: PluginRef | None = None
    cross_replica_syncer_plugin_ref: str | None = None
    cross_replica_sync_interval: str | None = None


class BandSpec(Part, frozen=True, kw_only=True):
    """A priority band of flow control, as configured."""

    priority: int = 0
    max_bytes: str | int | None = None
    max_requests: str | int | None = None
    fairness_policy_ref: str | None = None
    ordering_policy_ref: str | None = None
    default_request_ttl: str | None = msgspec.field(default=None, name="defaultRequestTTL")

    def __post_init__(self) -> None:
        _check_amounts(self.max_bytes, self.max_requests)
        _check_ttls(self.default_request_ttl)


class FlowControlSpec(Part, frozen=True, kw_only=True):
    """Flow control, as configured. Without the feature gate of flow control, only the saturation detector is used."""

    max_bytes: str | int | None = None
    max_requests: str | int | None = None
    default_request_ttl: str | None = msgspec.field(default=None, name="defaultRequestTTL")
    no_endpoint_request_ttl: str | None = msgspec.field(default=None, name="noEndpointRequestTTL")
    default_priority_band: BandSpec | None = None
    default_negative_priority_band: BandSpec | None = None
    priority_bands: list[BandSpec] = []
    usage_limit_policy_plugin_ref: str | None = None
    saturation_detector: PluginRef | None = None
    enable_eviction: bool = False

    def __post_init__(self) -> None:
        _check_amounts(self.max_bytes, self.max_requests)
        _check_ttls(self.default_request_ttl, self.no_endpoint_request_ttl)


class HandlerSpec(Part, frozen=True, kw_only=True):
    """The request parsers, as configured."""

    parsers: list[PluginRef] = []


class PickerConfig(Part, frozen=True, kw_only=True):
    """The whole configuration file."""

    api_version: str
    kind: str
    feature_gates: list[str] = []
    plugins: list[PluginSpec] = []
    scheduling_profiles: list[ProfileSpec] = []
    data_layer: DataLayerSpec | None = None
    flow_control: FlowControlSpec | None = None
    request_handler: HandlerSpec | None = None
    saturation_detector: PluginRef | None = None
    parser: PluginRef | None = None


def read_config(text: str, source: str) -> PickerConfig:
    """Reads a configuration strictly. Raises `ConfigError` with the path of the wrong key."""
    document = parse_document(text, source)
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: must be a mapping with apiVersion and kind")
    config = decode(_without_nulls(document), PickerConfig, "")
    if config.api_version not in API_VERSIONS:
        raise ConfigError(
            f"apiVersion: must be {API_VERSIONS[0]!r} or {API_VERSIONS[1]!r}, got {config.api_version!r}"
        )
    if config.kind != KIND:
        raise ConfigError(f"kind: must be {KIND!r}, got {config.kind!r}")
    return config


def _without_nulls(value: Any) -> Any:
    """Returns `value` without the keys whose value is empty (`plugins:`): such a key counts as absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _check_amounts(*amounts: str | int | None) -> None:
    for amount in amounts:
        if amount is not None and parse_quantity(amount) < 0:
            raise ValueError(f"must not be negative, got {amount!r}")


def _check_ttls(*durations: str | None) -> None:
    for duration in durations:
        if duration is not None and parse_duration_s(duration) < 0:
            raise ValueError(f"a TTL must not be negative, got {duration!r}")
