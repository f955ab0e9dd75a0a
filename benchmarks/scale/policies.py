"""What is compared: configurations that our picker runs, and what a gateway does without a picker."""

from dataclasses import dataclass
from typing import Literal

# The reference's default, as its chart writes it, with the intervals that its flags default to.
LLM_D_DEFAULT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters: {interval: 50ms}
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: core-metrics-extractor}]
"""

_HEAD = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
"""

_PREFIX_ONLY = (
    _HEAD
    + """\
plugins:
- type: prefix-cache-scorer
"""
)

_PRECISE_ONLY = (
    _HEAD
    + """\
plugins:
- type: precise-prefix-cache-producer
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
"""
)

_PRECISE = (
    _HEAD
    + """\
plugins:
- type: precise-prefix-cache-producer
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: queue-scorer
- type: kv-cache-utilization-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""
)

_LOAD_ONLY = (
    _HEAD
    + """\
plugins:
- type: active-request-scorer
"""
)

_INFLIGHT = (
    _HEAD
    + """\
plugins:
- type: prefix-cache-scorer
- type: active-request-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: active-request-scorer, weight: 4}
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One way to choose: a configuration for the picker (None: its default), or without any."""

    name: str
    about: str
    config: str | None = None
    without_picker: Literal["round robin", "random", "least loaded"] | None = None


POLICIES: dict[str, Policy] = {
    each.name: each
    for each in (
        Policy(name="default", about="`weft epp` as it is: queue 2, KV 2, prefix 3; polls as requests come"),
        Policy(
            name="llm-d default", config=LLM_D_DEFAULT,
            about="the reference's default, in its own file; polls every 50 ms",
        ),
        Policy(
            name="precise", config=_PRECISE,
            about="the default's weights; prefixes as workers' events tell them",
        ),
        Policy(
            name="prefix + in flight", config=_INFLIGHT,
            about="prefix 3, `active-request-scorer` 4; follows responses",
        ),
        Policy(name="prefix only", config=_PREFIX_ONLY, about="`prefix-cache-scorer` alone"),
        Policy(
            name="precise only", config=_PRECISE_ONLY,
            about="the same, as workers' events tell them",
        ),
        Policy(
            name="in flight only", config=_LOAD_ONLY,
            about="`active-request-scorer` alone; follows responses",
        ),
        Policy(name="round robin", without_picker="round robin", about="no picker"),
        Policy(
            name="least loaded", without_picker="least loaded",
            about="no picker; fewest requests in flight of this gateway's own",
        ),
        Policy(name="random", without_picker="random", about="no picker"),
    )
}  # fmt: skip
