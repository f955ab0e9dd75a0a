"""Models by Hub id: from the local cache when complete, else downloaded, else one sentence why not."""

from pathlib import Path

import httpx2
import huggingface_hub
from huggingface_hub import errors

from weft.core.errors import ConfigError
from weft.model.fields import Fields, one_line, parse_object, read_bytes
from weft.model.pooling import LENGTHS, MODULES, PROMPTS
from weft.model.safetensors_files import INDEX, SINGLE
from weft.model.tokenizer import FILE_NAMES, TOKENIZER

_PATTERNS = [
    *FILE_NAMES,
    SINGLE,
    INDEX,
    "model-*.safetensors",
    *(MODULES, PROMPTS, *LENGTHS, "*_Pooling/config.json"),
]
_ANSWER_TIMEOUT_S = 5.0
_FAILURES = (OSError, httpx2.HTTPError, errors.HFValidationError)


def fetch(repo_id: str, revision: str | None, *, is_tokenizer: bool = False) -> Path:
    """The local snapshot of a model, downloaded (with progress) when it is not in the cache.

    With `is_tokenizer`, of its tokenizer's files alone.
    """
    patterns = list(FILE_NAMES) if is_tokenizer else _PATTERNS
    cached = _cached(repo_id, revision, patterns)
    if cached is not None and (is_tokenizer or _is_complete(cached)):
        return cached
    _query_hub(repo_id, revision)
    try:
        return Path(
            huggingface_hub.snapshot_download(repo_id, revision=revision, allow_patterns=patterns)
        )
    except _FAILURES as err:
        raise ConfigError(f"{repo_id}: the download failed ({one_line(err)}); try again") from err


def _cached(repo_id: str, revision: str | None, patterns: list[str]) -> Path | None:
    try:
        path = Path(
            huggingface_hub.snapshot_download(
                repo_id, revision=revision, allow_patterns=patterns, local_files_only=True
            )
        )
    except _FAILURES:
        return None
    return path if (path / TOKENIZER).exists() else None


def _is_complete(path: Path) -> bool:
    """An interrupted download leaves a snapshot with some of the files."""
    if not all((path / name).exists() for name in ("config.json", TOKENIZER)):
        return False
    if (path / SINGLE).exists():
        return True
    if not (path / INDEX).exists():
        return False
    weight_map = Fields(parse_object(read_bytes(path / INDEX), INDEX), INDEX).object("weight_map")
    shards = () if weight_map is None else weight_map.values.values()
    if not all(isinstance(shard, str) for shard in shards):
        return False
    return all((path / str(shard)).exists() for shard in set(shards))


def _query_hub(repo_id: str, revision: str | None) -> None:
    """One question with a short timeout, so that a machine without network learns it at once."""
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise ConfigError(
            f"{repo_id}: not in the local cache, and HF_HUB_OFFLINE is set; unset it to download, or "
            "give the directory of a local copy"
        )
    try:
        huggingface_hub.model_info(repo_id, revision=revision, timeout=_ANSWER_TIMEOUT_S)
    except errors.GatedRepoError:
        raise ConfigError(
            f"{repo_id}: the model is gated; accept its terms on the Hub and set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"{repo_id}: there is no revision {revision!r}") from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"{repo_id}: neither a directory nor a model on the Hub (if it is private, set HF_TOKEN)"
        ) from None
    except _FAILURES as err:
        raise ConfigError(
            f"{repo_id}: not in the local cache, and the Hub cannot be reached ({one_line(err)}); "
            "connect to the network, or give the directory of a local copy"
        ) from err
