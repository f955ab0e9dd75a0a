"""`by-label`: keeps endpoints whose label has an allowed value."""

from collections.abc import Sequence

from weft.epp.config.parameters import Kind, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


class LabelParameters(Parameters, frozen=True, kw_only=True):
    """A label and its allowed values."""

    label: str
    valid_values: list[str] = []
    allows_no_label: bool = False


@plugin("by-label", Kind.FILTER, LabelParameters, replacement="label-selector-filter")
class LabelFilter(Plugin[LabelParameters]):
    """Keeps the endpoints whose label has one of the given values."""

    def keep(self, _: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints whose label has an allowed value and, if configured, the endpoints without the
        label.
        """
        label = self._parameters.label
        return [each for each in candidates if self._accepts(each.labels.get(label))]

    def _accepts(self, value: str | None) -> bool:
        if value is None:
            return self._parameters.allows_no_label
        return value in self._parameters.valid_values
