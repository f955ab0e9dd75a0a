"""Reads objectives and model rewrites from files with Kubernetes manifests."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.core.errors import ConfigError
from weft.epp.config.decode import decode, parse_documents
from weft.epp.pool.objects import ModelRewrite, ObjectiveSpec, Objects, PoolRef, RewriteSpec

_log = logging.getLogger(__name__)

_GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io", "inference.networking.k8s.io")
_SUFFIXES = {".yaml", ".yml", ".json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    kind: str
    name: str
    namespace: str | None
    created: str
    spec: Any


class ObjectFiles:
    """The files and directories that contain manifests."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        pool_name: str | None,
        namespace: str | None,
        pool_group: str | None = None,
    ) -> None:
        self._paths = tuple(paths)
        self._pool_name = pool_name  # None: objects of any pool are accepted
        # Group of that pool; None, here or in an object, matches any group.
        self._pool_group = pool_group
        self._namespace = namespace  # None: objects of any namespace are accepted

    def list_files(self) -> list[Path]:
        """Returns all files that exist now, in order."""
        files: list[Path] = []
        for path in self._paths:
            if path.is_dir():
                files += sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES)
            else:
                files.append(path)
        return files

    def read(self) -> Objects:
        """Reads all manifests. Raises `ConfigError` with the file and the key."""
        priorities: dict[str, int] = {}
        rewrites: list[ModelRewrite] = []
        for file in self.list_files():
            try:
                text = file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{file}: cannot be read: {error}") from error
            for i, document in enumerate(_unlisted(parse_documents(text, str(file)))):
                self._take(document, f"{file}: [{i}]", priorities, rewrites)
        return Objects(priorities, rewrites)

    def _take(
        self, document: Any, where: str, priorities: dict[str, int], rewrites: list[ModelRewrite]
    ) -> None:
        head = _head(document, where)
        if self._namespace is not None and head.namespace not in {None, self._namespace}:
            _log.info(
                "%s: %s is ignored, because it is in the namespace %s",
                where,
                head.name,
                head.namespace,
            )
            return
        if head.kind == "InferenceObjective":
            objective = decode(head.spec, ObjectiveSpec, f"{where}.spec")
            if self._is_ours(objective.pools, head.name, where):
                if head.name in priorities:
                    raise ConfigError(f"{where}.metadata.name: duplicate {head.name!r}")
                priorities[head.name] = objective.priority
        else:
            rewrite = decode(head.spec, RewriteSpec, f"{where}.spec")
            if self._is_ours(rewrite.pools, head.name, where):
                rewrites.append(ModelRewrite(head.name, head.created, rewrite.rules))

    def _is_ours(self, refs: Sequence[PoolRef], name: str, where: str) -> bool:
        if not refs or self._pool_name is None or any(map(self._is_our_pool, refs)):
            return True
        pools = ", ".join(ref.name for ref in refs)
        _log.info("%s: %s is ignored, because it is for the pool %s", where, name, pools)
        return False

    def _is_our_pool(self, ref: PoolRef) -> bool:
        is_group_ours = ref.group is None or self._pool_group in {None, ref.group}
        return ref.name == self._pool_name and is_group_ours


def _head(document: Any, where: str) -> _Head:
    """Reads the fields that manifests of every kind have."""
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: must be a manifest with apiVersion, kind and metadata")
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind not in {"InferenceObjective", "InferenceModelRewrite"}:
        raise ConfigError(
            f"{where}.kind: must be InferenceObjective or InferenceModelRewrite, got {kind!r}"
        )
    if not isinstance(version, str) or version.partition("/")[0] not in _GROUPS:
        raise ConfigError(f"{where}.apiVersion: must be 'llm-d.ai/v1alpha2', got {version!r}")
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.metadata.name: must be given")
    unknown = sorted(set(document) - {"kind", "apiVersion", "metadata", "spec", "status"})
    if unknown:
        raise ConfigError(f"{where}.{unknown[0]}: unknown key")
    namespace = metadata.get("namespace")
    return _Head(
        kind=kind,
        name=name,
        namespace=None if namespace is None else str(namespace),
        created=str(metadata.get("creationTimestamp") or ""),
        spec=document.get("spec") or {},
    )


def _unlisted(documents: Iterable[Any]) -> list[Any]:
    """Returns the manifests of the documents; a `kind: List` is replaced by its items."""
    flat: list[Any] = []
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == "List":
            flat += document.get("items") or []
        elif document is not None:
            flat.append(document)
    return flat
