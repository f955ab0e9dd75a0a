"""`vtc-fairness-policy`: shares tokens, not requests, equally among flows, so that a flow with long prompts dispatches
fewer requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from weft.epp.config.parameters import Kind, Parameters, Positive
from weft.epp.decision.cycle import Cycle, Schedule
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.flow.item import ItemHeap

_OUTPUT_TOKENS: Final = 128  # assumed output tokens of a request, the reference's value
_BYTES_A_TOKEN: Final = 4
_MAX_COUNTERS: Final = 10_000  # limits the counters, since clients choose flow names


class VirtualTokensParameters(Parameters, frozen=True, kw_only=True):
    """Cost of a prompt token and of a generated token; a request is assumed to generate 128 tokens."""

    input_token_weight: Positive = 1.0
    output_token_weight: Positive = 3.0


@dataclass(slots=True)
class _Band:
    """Token counters of the flows of one priority that exceed `floor`. All other flows count as `floor`."""

    floor: float = 0.0
    counters: dict[str, float] = field(default_factory=dict)


@plugin("vtc-fairness-policy", Kind.FAIRNESS, VirtualTokensParameters)
class VirtualTokens:
    """Dispatches from the flow with the lowest token counter; each dispatched request adds its estimated cost to the
    counter.

    Virtual Token Counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024), with estimated costs,
    as in the reference: responses are not followed. A new or returning flow counts at least
    the counter that the flow chosen last had, so that an idle flow does not save up turns.
    """

    def __init__(self, parameters: VirtualTokensParameters, _: Surroundings) -> None:
        self._parameters = parameters
        self._bands: dict[int, _Band] = {}

    def queue_of(self, fairness_id: str) -> str:
        return fairness_id

    def choose(self, queues: Mapping[str, ItemHeap], _: float) -> str:
        head = next(iter(queues.values())).head()
        assert head is not None
        band = self._bands.setdefault(head.priority, _Band())
        floor, of = band.floor, band.counters.get
        chosen = min(queues, key=lambda name: max(floor, of(name, floor)))
        band.floor = max(floor, of(chosen, floor))
        return chosen

    def picked(self, cycle: Cycle, _: Schedule) -> None:
        """Adds the estimated cost of a dispatched request to its flow's counter."""
        band = self._bands.get(cycle.priority)
        if band is None:
            return  # the request was queued under another policy
        num_input = cycle.num_prompt_tokens or cycle.request.num_body_bytes / _BYTES_A_TOKEN
        weights = self._parameters
        cost = weights.input_token_weight * num_input + weights.output_token_weight * _OUTPUT_TOKENS
        name = cycle.fairness_id
        band.counters[name] = max(band.floor, band.counters.get(name, band.floor)) + cost
        if len(band.counters) > _MAX_COUNTERS:
            self._forget(band)

    def _forget(self, band: _Band) -> None:
        """Drops the counters that do not exceed `floor`. If too many remain, raises `floor` to their median first."""
        ahead = {name: each for name, each in band.counters.items() if each > band.floor}
        if len(ahead) > _MAX_COUNTERS // 2:
            band.floor = sorted(ahead.values())[len(ahead) // 2]
            ahead = {name: each for name, each in ahead.items() if each > band.floor}
        band.counters = ahead
