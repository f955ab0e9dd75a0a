"""`context-length-aware`: prefers endpoints whose label has a range that contains the prompt's length; a scorer, and
optionally a filter.
"""

import re
from collections.abc import Sequence

from weft.epp.config.parameters import Kind, Name, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import TOKENS, Plugin, plugin
from weft.epp.pool.endpoint import Endpoint

_RANGE = re.compile(r"\s*(\d{1,12})\s*-\s*(\d{1,12})\s*", re.ASCII)
# In tokens: a range of this width gets half the score for specificity that a range of one length gets.
_SCALE = 10_000
_FLOOR = 0.3  # ranges that contain the length score above this value, other ranges below it


class ContextLengthParameters(Parameters, frozen=True, kw_only=True):
    """The label with ranges of prompt lengths, such as "0-2048" or "0-2048,8192-16384"."""

    needs = (TOKENS,)
    label: Name = "llm-d.ai/context-length-range"
    enable_filtering: bool = False


@plugin("context-length-aware", (Kind.SCORER, Kind.FILTER), ContextLengthParameters)
class ContextLengthAware(Plugin[ContextLengthParameters]):
    """Prefers the narrowest range that contains the prompt's length with a margin."""

    def keep(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints whose range contains the prompt's length, and those without the label. Returns all
        candidates unless filtering is on.
        """
        if not self._parameters.enable_filtering:
            return candidates
        return [each for each in candidates if self._takes(each, cycle.num_prompt_tokens)]

    def score(self, cycle: Cycle, candidates: Sequence[Endpoint]) -> list[float]:
        """Returns a score above 0.3 for endpoints whose range contains the prompt's length, a lower score for others;
        0.5 without the label, 0.0 for an invalid label.
        """
        length = cycle.num_prompt_tokens
        return [self._score(endpoint, length) for endpoint in candidates]

    def _takes(self, endpoint: Endpoint, length: int) -> bool:
        text = endpoint.labels.get(self._parameters.label)
        if text is None:
            return True
        return any(low <= length <= high for low, high in parse_ranges(text))

    def _score(self, endpoint: Endpoint, length: int) -> float:
        text = endpoint.labels.get(self._parameters.label)
        if text is None:
            return 0.5
        return max((_fit(length, low, high) for low, high in parse_ranges(text)), default=0.0)


def parse_ranges(text: str) -> list[tuple[int, int]]:
    """Returns the ranges of a label; empty if any part of the label is invalid."""
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[1]) > int(match[2]):
            return []
        ranges.append((int(match[1]), int(match[2])))
    return ranges


def _fit(length: int, low: int, high: int) -> float:
    if length < low or length > high:
        distance = low - length if length < low else length - high
        return _FLOOR / (1 + distance / _SCALE)
    width = high - low
    if not width:
        return 1.0
    tightness, room = 1 / (1 + width / _SCALE), (high - length) / width
    # Above 0.3, which would tie with the nearest range that does not contain the length.
    return max(_FLOOR + 1e-9, _FLOOR + (1 - _FLOOR) * (0.7 * tightness + 0.3 * room))
