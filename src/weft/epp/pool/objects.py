"""Objectives and model rewrites: what the manifests say, and the two questions they answer."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A model a request may be sent to, and its weight among the others (None: all alike)."""

    model: str
    weight: int | None


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """Rewrites requests for one of `models`; for every model if there are none."""

    models: tuple[str, ...]
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class ModelRewrite:
    """One InferenceModelRewrite. Objects are ordered oldest first, those without a date last."""

    name: str
    created: str  # RFC 3339; "" if the manifest has none
    rules: tuple[RewriteRule, ...]


class Objects:
    """What is in force. Replaced as a whole when a file changes."""

    def __init__(
        self,
        priorities: Mapping[str, int] | None = None,
        rewrites: Iterable[ModelRewrite] = (),
    ) -> None:
        self._priorities = dict(priorities or {})
        self._exact: dict[str, tuple[str, tuple[Target, ...]]] = {}
        self._generic: tuple[str, tuple[Target, ...]] | None = None
        for rewrite in sorted(rewrites, key=lambda each: (not each.created, each.created)):
            for rule in rewrite.rules:
                for model in rule.models:
                    self._exact.setdefault(model, (rewrite.name, rule.targets))
                if not rule.models and self._generic is None:
                    self._generic = (rewrite.name, rule.targets)

    @property
    def model_names(self) -> frozenset[str]:
        """Every model that is requested or led to by name."""
        rules = [*self._exact.values(), *([self._generic] if self._generic else [])]
        targets = {target.model for _, targets in rules for target in targets}
        return frozenset(targets.union(self._exact))

    def priority(self, objective: str) -> int:
        """The objective's priority; 0 if it is unknown."""
        return self._priorities.get(objective, 0)

    def rewrite(self, model: str) -> tuple[str, str] | None:
        """The rewrite that applies and the model it leads to; None if none applies."""
        found = self._exact.get(model) or self._generic
        if found is None:
            return None
        name, targets = found
        if targets[0].weight is None:
            return name, random.choice(targets).model
        weights = [target.weight or 0 for target in targets]
        return name, random.choices(targets, weights)[0].model
