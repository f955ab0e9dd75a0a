"""Objectives and model rewrites: their manifests, and the look-up of a request's priority and model."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from weft.epp.config.parameters import Part

_Weight = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Model = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class PoolRef(Part, frozen=True, kw_only=True):
    """Reference to the pool that an object applies to."""

    name: str
    group: str | None = None
    kind: str | None = None


class ObjectiveSpec(Part, frozen=True, kw_only=True):
    """Priority of the requests that name this objective."""

    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] = 0
    pool_ref: PoolRef | None = None
    pool_refs: list[PoolRef] = []  # in place of `pool_ref`, of version v1

    @property
    def pools(self) -> Sequence[PoolRef]:
        """The pools it is for; empty if it is for all."""
        return [*([self.pool_ref] if self.pool_ref else []), *self.pool_refs]


class ModelMatch(Part, frozen=True, kw_only=True):
    """A model name that a rule compares."""

    value: _Model
    type: Literal["Exact"] = "Exact"


class RuleMatch(Part, frozen=True, kw_only=True):
    """Condition of a rewrite rule on a request's model."""

    model: ModelMatch | None = None


class RuleTarget(Part, frozen=True, kw_only=True):
    """Model name that replaces the request's model name, with a weight."""

    model_rewrite: _Model
    weight: _Weight | None = None


class Rule(Part, frozen=True, kw_only=True):
    """A rewrite rule: conditions, and the target models."""

    matches: list[RuleMatch] = []
    targets: Annotated[list[RuleTarget], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        weights = [target.weight for target in self.targets]
        given = [weight for weight in weights if weight is not None]
        if given and len(given) != len(weights):
            raise ValueError("targets: give every target a weight, or none")
        if given and not sum(given):
            raise ValueError("targets: the weights add up to 0")

    @property
    def models(self) -> tuple[str, ...]:
        """The models whose requests match the rule; empty if all requests match."""
        named = tuple(match.model.value for match in self.matches if match.model is not None)
        # A match without conditions matches every request, so then the other matches do not restrict the object.
        return named if len(named) == len(self.matches) else ()


class RewriteSpec(Part, frozen=True, kw_only=True):
    """Rewrite rules in order."""

    rules: Annotated[list[Rule], msgspec.Meta(min_length=1)]
    pool_ref: PoolRef | None = None

    @property
    def pools(self) -> Sequence[PoolRef]:
        """The pools it is for; empty if it is for all."""
        return [self.pool_ref] if self.pool_ref else []


@dataclass(frozen=True, slots=True)
class ModelRewrite:
    """An InferenceModelRewrite. Objects are ordered oldest first; those without a date come last."""

    name: str
    created: str  # in RFC 3339 format; empty if the manifest has none
    rules: Sequence[Rule]


class Objects:
    """The objectives and rewrites that are in force. All of them are replaced together when a file changes."""

    def __init__(
        self,
        priorities: Mapping[str, int] | None = None,
        rewrites: Iterable[ModelRewrite] = (),
    ) -> None:
        self._priorities = dict(priorities or {})
        self._exact: dict[str, tuple[str, Sequence[RuleTarget]]] = {}
        self._generic: tuple[str, Sequence[RuleTarget]] | None = None
        for rewrite in sorted(rewrites, key=lambda each: (not each.created, each.created)):
            for rule in rewrite.rules:
                for model in rule.models:
                    self._exact.setdefault(model, (rewrite.name, rule.targets))
                if not rule.models and self._generic is None:
                    self._generic = (rewrite.name, rule.targets)

    @property
    def model_names(self) -> frozenset[str]:
        """Every model name that a rewrite rule matches or targets."""
        rules = [*self._exact.values(), *([self._generic] if self._generic else [])]
        targets = {target.model_rewrite for _, targets in rules for target in targets}
        return frozenset(targets.union(self._exact))

    def priority(self, objective: str) -> int:
        """Returns the priority of an objective; 0 if the objective is unknown."""
        return self._priorities.get(objective, 0)

    def rewrite(self, model: str) -> tuple[str, str] | None:
        """Returns the rewrite that applies to a model, and the new model name; None if no rewrite applies."""
        found = self._exact.get(model) or self._generic
        if found is None:
            return None
        name, targets = found
        if targets[0].weight is None:
            return name, random.choice(targets).model_rewrite
        weights = [target.weight or 0 for target in targets]
        return name, random.choices(targets, weights)[0].model_rewrite
