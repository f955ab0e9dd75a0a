"""Filters by the endpoints' labels, as Kubernetes selects."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from weft.epp.decision.cycle import Cycle
from weft.epp.decision.plugin import NoParameters, Parameters, Surroundings
from weft.epp.pool.endpoint import Endpoint

ROLE_LABEL = "llm-d.ai/role"
DECODE_ROLES = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})
PREFILL_ROLES = frozenset(
    {"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}
)
ENCODE_ROLES = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})


class Expression(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One requirement on a label."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []

    def __post_init__(self) -> None:
        needs_values = self.operator in {"In", "NotIn"}
        if needs_values != bool(self.values):
            wanted = "needs values" if needs_values else "takes no values"
            raise ValueError(f"operator {self.operator} {wanted}")

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it."""
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
    """A label selector; all of it must hold."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Expression] = []

    def __post_init__(self) -> None:
        if not self.match_labels and not self.match_expressions:
            raise ValueError("needs matchLabels or matchExpressions")


class LabelSelectorFilter:
    """Keeps the endpoints that a selector selects."""

    def __init__(self, parameters: SelectorParameters, _: Surroundings) -> None:
        self._labels = tuple(parameters.match_labels.items())
        self._expressions = tuple(parameters.match_expressions)

    def keep(self, _: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Those whose labels meet every requirement."""
        return [endpoint for endpoint in candidates if self._accepts(endpoint.labels)]

    def _accepts(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self._labels) and all(
            expression.accepts(labels) for expression in self._expressions
        )


class LabelParameters(Parameters, frozen=True, kw_only=True):
    """One label and its allowed values."""

    label: str
    valid_values: list[str] = []
    allows_no_label: bool = False


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


class RoleFilter:
    """Keeps the endpoints of some roles; without a role an endpoint decodes."""

    def __init__(self, roles: frozenset[str], *, keeps_unlabelled: bool) -> None:
        self._roles = roles
        self._keeps_unlabelled = keeps_unlabelled

    def keep(self, _: Cycle, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Those that take this part of the work."""
        return [each for each in candidates if self._accepts(each.labels.get(ROLE_LABEL))]

    def _accepts(self, role: str | None) -> bool:
        return self._keeps_unlabelled if role is None else role in self._roles


def decode_filter(_: NoParameters, __: Surroundings) -> RoleFilter:
    """Endpoints that decode."""
    return RoleFilter(DECODE_ROLES, keeps_unlabelled=True)


def prefill_filter(_: NoParameters, __: Surroundings) -> RoleFilter:
    """Endpoints that prefill."""
    return RoleFilter(PREFILL_ROLES, keeps_unlabelled=False)


def encode_filter(_: NoParameters, __: Surroundings) -> RoleFilter:
    """Endpoints that encode media."""
    return RoleFilter(ENCODE_ROLES, keeps_unlabelled=False)
