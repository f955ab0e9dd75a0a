"""InferenceObjectives and InferenceModelRewrites of a pool, read from all API groups that define these kinds."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from weft.epp.kubernetes.api import ApiServer
from weft.epp.kubernetes.reflector import Kind, Object, Pace, Reflector
from weft.epp.pool.objects import ModelRewrite, ObjectiveSpec, Objects, PoolRef, RewriteSpec

# API groups and versions of objects; if several have an object of the same name, the first one wins.
_GROUPS: Final = (
    "llm-d.ai/v1", "llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2",
)  # fmt: skip
# Default of a poolRef's group, which the API server fills in; no InferencePool has this group.
_UNSAID_GROUP: Final = "llm-d.ai"


class _PoolRef(PoolRef, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A reference that may have fields of later versions."""


class _ObjectiveSpec(ObjectiveSpec, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A specification that may have fields of later versions: its priority counts all the same."""

    pool_ref: _PoolRef | None = None
    pool_refs: list[_PoolRef] = []  # type: ignore[assignment]


class InferenceObjective(Object, frozen=True):
    """An InferenceObjective: the priority of requests."""

    spec: _ObjectiveSpec = _ObjectiveSpec()


class InferenceModelRewrite(Object, frozen=True):
    """An InferenceModelRewrite: replacement of the model names in requests."""

    spec: RewriteSpec


T = TypeVar("T", bound=Object)


class FollowedObjects:
    """Calls `changed` with all objects of one pool whenever one of them changes."""

    def __init__(
        self,
        api: ApiServer,
        pool: tuple[str, str],
        changed: Callable[[Objects], None],
        pace: Pace,
    ) -> None:
        self._api = api
        self._pool_name, self._pool_group = pool
        self._changed = changed
        self._pace = pace
        self._objectives = self._reflectors("inferenceobjectives", InferenceObjective)
        self._rewrites = self._reflectors("inferencemodelrewrites", InferenceModelRewrite)

    @property
    def reflectors(self) -> list[Reflector[InferenceObjective] | Reflector[InferenceModelRewrite]]:
        """Returns the reflectors to run."""
        return [*self._objectives, *self._rewrites]

    def _reflectors(self, plural: str, type_: type[T]) -> list[Reflector[T]]:
        return [
            Reflector(
                self._api,
                Kind(
                    path=f"apis/{group}/namespaces/{self._api.namespace}/{plural}",
                    type=type_,
                    is_optional=True,
                ),
                self._update,
                self._pace,
            )
            for group in _GROUPS
        ]

    def _update(self) -> None:
        priorities: dict[str, int] = {}
        rewrites: dict[str, ModelRewrite] = {}
        for objectives in self._objectives:
            for objective in objectives.objects.values():
                if self._is_ours(objective.spec.pools):
                    priorities.setdefault(objective.metadata.name, objective.spec.priority)
        for reflector in self._rewrites:
            for rewrite in reflector.objects.values():
                if self._is_ours(rewrite.spec.pools):
                    meta = rewrite.metadata
                    created = meta.creation_timestamp or ""
                    made = ModelRewrite(meta.name, created, rewrite.spec.rules)
                    rewrites.setdefault(meta.name, made)
        self._changed(Objects(priorities, rewrites.values()))

    def _is_ours(self, refs: Sequence[PoolRef]) -> bool:
        groups = {None, _UNSAID_GROUP, self._pool_group}
        return not refs or any(ref.name == self._pool_name and ref.group in groups for ref in refs)
