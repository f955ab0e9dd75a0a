"""`weft models`: lists, downloads and removes checkpoints on this disk."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import huggingface_hub
from huggingface_hub import CachedRepoInfo, CacheNotFound, HFCacheInfo

from weft.cli.shown import print_json, print_table
from weft.core.errors import ConfigError
from weft.core.observe.progress import Progress
from weft.core.observe.readable import format_bytes
from weft.core.observe.terminal import StatusLine, say
from weft.engine.weights.packed_files import all_packed, packed_directory
from weft.model.directory_scan import checkpoints_in, parts_of
from weft.model.hub.short_names import SHORT_NAMES, full_name, short_name, similar_names
from weft.model.hub.snapshots import fetch, fetch_gguf
from weft.model.open import find_model, is_hub_id


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskModel:
    """A model on this disk. `name` is the model's argument of `weft serve`. `refusal` is the reason why Weft cannot
    serve the model; None if it can.
    """

    name: str
    source: str  # "hub", "directory", "file" or "packed" (packed weights, for the next start)
    num_bytes: int
    model_type: str | None
    num_parameters: int | None
    refusal: str | None
    short_name: str | None = None
    last_used: str | None = None  # in UTC, as RFC 3339; None if the disk does not know


def show_names(*, json: bool) -> int:
    """Prints the short names of models, with what each stands for; returns the exit status."""
    if json:
        print_json(dict(SHORT_NAMES))
    else:
        print_table(("name", "model on the Hub"), list(SHORT_NAMES.items()))
    return 0


def show(directories: Sequence[Path], *, json: bool) -> int:
    """Prints the models in the Hub cache and in the given directories of checkpoints; returns the exit status."""
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(f"--dir {directory}: no such directory")
    found = [*_cached_models(), *(model for one in directories for model in _in_directory(one))]
    found += _packed_models()
    if json:
        print_json(found)
    elif not found:
        say(f"no models in {cache_directory()}; weft models pull qwen3:0.6b fetches one")
    else:
        rows = [_cells(model) for model in found]
        print_table(("model", "size", "last used", "type", "served"), rows)
    return 0


def pull(name: str, revision: str | None, *, json: bool) -> int:
    """Downloads the files of a Hub model that serving needs, and checks that Weft can serve the model; returns the exit
    status.
    """
    source = full_name(name)
    repo_id, _, file = source.partition(":")
    if not is_hub_id(repo_id):
        similar = ", ".join(similar_names(name))
        hint = f"; similar short names: {similar}" if similar else " (weft models names)"
        raise ConfigError(f"{name}: must be a Hub id, OWNER/NAME, or a short name{hint}")
    progress, status = Progress(), StatusLine(sys.stderr)
    progress.enter(f"fetching {name}", 0.0)

    def show_bytes(loaded_bytes: int, total_bytes: int) -> None:
        progress.load(loaded_bytes, total_bytes)
        status.show(f"  {progress.describe()}")

    status.show(f"  looking for {name}")
    try:
        if file:
            path = fetch_gguf(repo_id, file, revision, has_projector=True, on_bytes=show_bytes)
        else:
            path = fetch(source, revision, on_bytes=show_bytes)
    finally:
        status.clear()
    find_model(str(path))
    if json:
        print_json({"name": name, "path": str(path)})
    else:
        say(f"{name} is at {path}; weft serve {name}")
    return 0


def remove(name: str, *, yes: bool, json: bool) -> int:
    """Removes every revision of a model and its packed weights from the Hub cache, after a confirmation; returns the
    exit status.
    """
    cache, repo_id = _scan(), full_name(name).partition(":")[0]
    repo = next((one for one in _models(cache) if one.repo_id == repo_id), None)
    packed = [one for one in all_packed(packed_directory()) if one.model in (name, repo_id)]
    if repo is None and not packed:
        hint = (
            "; weft models rm removes only models of the Hub cache" if Path(name).exists() else ""
        )
        raise ConfigError(f"{name}: not in {cache_directory()}{hint}")
    places = [] if repo is None else [repo.repo_path]
    places += sorted({one.path.parent for one in packed})
    size_bytes = sum(one.num_bytes for one in packed)
    size_bytes += 0 if repo is None else repo.size_on_disk
    size = format_bytes(size_bytes)
    question = f"remove {name} ({size}) from {' and '.join(map(str, places))}? [y/N] "
    is_removed = yes or _confirm(question, sys.stderr if json else sys.stdout)
    if is_removed:
        if cache is not None and repo is not None:
            cache.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()
        for one in packed:
            one.path.unlink(missing_ok=True)
    if json:
        print_json({"name": name, "removed": is_removed, "size_bytes": size_bytes})
    else:
        say(f"removed {name}, {size}" if is_removed else "nothing was removed")
    return 0 if is_removed else 1


def cache_directory() -> Path:
    """Returns the directory of the Hub cache, which HF_HOME or HF_HUB_CACHE change."""
    return Path(huggingface_hub.constants.HF_HUB_CACHE)


def _confirm(question: str, file: TextIO) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("the removal cannot be confirmed without a terminal; give --yes")
    say(question, end="", file=file)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _scan() -> HFCacheInfo | None:
    try:
        return huggingface_hub.scan_cache_dir()
    except CacheNotFound:
        return None


def _models(cache: HFCacheInfo | None) -> list[CachedRepoInfo]:
    repos = [] if cache is None else [repo for repo in cache.repos if repo.repo_type == "model"]
    return sorted(repos, key=lambda repo: repo.repo_id)


def _cached_models() -> Iterator[DiskModel]:
    for repo in _models(_scan()):
        revisions = sorted(repo.revisions, key=lambda one: ("main" in one.refs, one.last_modified))
        if revisions:
            model = _describe(repo.repo_id, "hub", revisions[-1].snapshot_path, repo.size_on_disk)
            yield replace(
                model,
                short_name=short_name(repo.repo_id),
                last_used=_as_time(repo.last_accessed),
            )


def _in_directory(directory: Path) -> Iterator[DiskModel]:
    """Yields the checkpoints and GGUF files in the directory; the directory itself if it is a checkpoint."""
    for path in checkpoints_in(directory):
        is_directory = path.is_dir()
        source = "directory" if is_directory else "file"
        files = list(path.iterdir()) if is_directory else parts_of(path)
        size = sum(file.stat().st_size for file in files if file.is_file())
        yield _describe(str(path), source, path, size)


def _describe(name: str, source: str, path: Path, num_bytes: int) -> DiskModel:
    refusal, kind, num_parameters = None, None, None
    try:
        card = find_model(str(path)).card
        kind, num_parameters = card.model_type, card.num_parameters
    except ConfigError as error:
        refusal = str(error).removeprefix(f"{path}/").removeprefix(f"{path}: ")
    return DiskModel(
        name=name,
        source=source,
        num_bytes=num_bytes,
        model_type=kind,
        num_parameters=num_parameters,
        refusal=refusal,
    )


def _packed_models() -> Iterator[DiskModel]:
    for one in all_packed(packed_directory()):
        yield DiskModel(
            name=one.model,
            source="packed",
            num_bytes=one.num_bytes,
            model_type=None,
            num_parameters=None,
            refusal=None,
        )


def _as_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _cells(model: DiskModel) -> tuple[str, ...]:
    served = "yes" if model.refusal is None else f"no: {model.refusal}"
    if model.source == "packed":
        served = "packed weights, for the next start"
    name = model.name if model.short_name is None else f"{model.name} ({model.short_name})"
    day = "-" if model.last_used is None else model.last_used.partition("T")[0]
    return name, format_bytes(model.num_bytes), day, model.model_type or "-", served
