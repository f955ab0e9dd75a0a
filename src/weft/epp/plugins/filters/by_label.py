"""`by-label`: one label and its allowed values."""

from collections.abc import Sequence

from weft.epp.config.parameters import Kind, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint


class LabelParameters(Parameters, frozen=True, kw_only=True):
    """One label and its allowed values."""

    label: str
    valid_values: list[str] = []
    allows_no_label: bool = False


@plugin("by-label", Kind.FILTER, LabelParameters, replacement="label-selector-filter")
class LabelFilter:
    """Keeps the endpoints whose label has one of the given values."""

    def __init__(self, parameters: LabelParameters, _: Surroundings) -> None:
        self._label = parameters.label
        self._values = frozenset(parameters.valid_values)
        self._allows_none = parameters.allows_no_label

    def keep(self, _: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Those labelled so, and the unlabelled if they are allowed."""
        return [each for each in candidates if self._accepts(each.labels.get(self._label))]

    def _accepts(self, value: str | None) -> bool:
        return self._allows_none if value is None else value in self._values
