"""`label-selector-filter`: keeps endpoints that match a Kubernetes label selector."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from weft.epp.config.parameters import Kind, Parameters
from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import Plugin, plugin
from weft.epp.pool.endpoint import Endpoint


class Expression(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A requirement on a label, as in Kubernetes' `matchExpressions`."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []

    def __post_init__(self) -> None:
        needs_values = self.operator in {"In", "NotIn"}
        if needs_values != bool(self.values):
            wanted = "needs values" if needs_values else "takes no values"
            raise ValueError(f"operator {self.operator} {wanted}")

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """True if the labels meet the requirement."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


class SelectorParameters(Parameters, frozen=True, kw_only=True):
    """A label selector. An endpoint must meet all requirements."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Expression] = []

    def __post_init__(self) -> None:
        if not self.match_labels and not self.match_expressions:
            raise ValueError("needs matchLabels or matchExpressions")


@plugin("label-selector-filter", Kind.FILTER, SelectorParameters, aliases=("by-label-selector",))
class LabelSelectorFilter(Plugin[SelectorParameters]):
    """Keeps the endpoints that match the label selector."""

    def keep(self, _: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Returns the endpoints whose labels meet every requirement."""
        return [endpoint for endpoint in candidates if self._accepts(endpoint.labels)]

    def _accepts(self, labels: Mapping[str, str]) -> bool:
        wanted = self._parameters
        return wanted.match_labels.items() <= labels.items() and all(
            expression.accepts(labels) for expression in wanted.match_expressions
        )
