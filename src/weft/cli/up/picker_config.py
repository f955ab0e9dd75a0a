"""The picker's configurations of `weft up`."""

from typing import Final

# Clients use HTTP or the engine's gRPC protocol; workers report load and cache over the latter.
PICKER_CONFIG: Final = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: openai-parser
- type: anthropic-parser
- type: vllmhttp-parser
- type: vllmgrpc-parser
- type: passthrough-parser
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
requestHandler:
  parsers:
  - pluginRef: openai-parser
  - pluginRef: anthropic-parser
  - pluginRef: vllmhttp-parser
  - pluginRef: vllmgrpc-parser
  - pluginRef: passthrough-parser
"""
# For prefill and decode workers: prefill workers compute prompts of which decode workers have cached too little.
_PREFILL_PLUGINS: Final = """\
- type: prefill-filter
- type: decode-filter
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: 256}
- type: disagg-profile-handler
  parameters:
    profiles: {decode: decode, prefill: prefill}
    deciders: {prefill: prefix-based-pd-decider}
schedulingProfiles:
- name: prefill
  plugins:
  - pluginRef: prefill-filter
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
- name: decode
  plugins:
  - pluginRef: decode-filter
"""
PREFILL_CONFIG: Final = PICKER_CONFIG.replace(
    "schedulingProfiles:\n- name: default\n  plugins:\n", _PREFILL_PLUGINS
)
