"""Gets models by their Hub id: from the local cache if it has all files, otherwise by download."""

import io
import re
from collections.abc import Callable, Collection
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import tqdm

from weft.core.errors import ConfigError
from weft.model.fields import Fields, one_line, parse_object, read_bytes
from weft.model.files.safetensors_files import INDEX, PICKLES, SINGLE, SUFFIX, weight_files
from weft.model.gguf.open import SUFFIX as GGUF
from weft.model.gguf.open import all_parts
from weft.model.gguf.projector_file import is_projector, preference
from weft.model.picture_settings import PREPROCESSOR, PROCESSOR
from weft.model.pooling import LENGTHS, MODULES, PROMPTS
from weft.model.quantized.config import QUANTIZATION_FILES
from weft.model.tokenizers.bpe_files import BPE_FILES
from weft.model.tokenizers.templates import TOOL_TEMPLATE_PATH
from weft.model.tokenizers.tokenizer import FILE_NAMES, TOKENIZER, UnreadFiles

_TOKENIZER_FILES = [*FILE_NAMES, TOOL_TEMPLATE_PATH, *BPE_FILES]
_PATTERNS = [
    *_TOKENIZER_FILES,
    *QUANTIZATION_FILES,
    SINGLE,
    INDEX,
    "model-*.safetensors",
    *(MODULES, PROMPTS, *LENGTHS, "*_Pooling/config.json"),
    *(PREPROCESSOR, PROCESSOR),
]
_ANSWER_TIMEOUT_S = 5.0
_MAX_DISCUSSIONS = 100
_MOST_NAMES = 10  # of models in an error
_CONVERTER, _CONVERTED = "SFconvertbot", "Adding `safetensors` variant"
_FAILURES = (OSError, httpx2.HTTPError, errors.HFValidationError)


def fetch(
    repo_id: str,
    revision: str | None,
    *,
    is_tokenizer: bool = False,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Path:
    """Returns the local snapshot of a model, downloaded if it is not in the cache.

    With `is_tokenizer` the snapshot has only the tokenizer's files. `on_bytes` gets the numbers of downloaded and total
    bytes, on threads of the Hub's client; without `on_bytes` the client draws progress bars.
    """
    patterns = _TOKENIZER_FILES if is_tokenizer else _PATTERNS
    cached = _cached(repo_id, revision, patterns)
    if cached is not None and (is_tokenizer or _is_complete(cached)):
        return cached
    info = _query_hub(repo_id, revision)
    if not is_tokenizer:
        names = [file.rfilename for file in info.siblings or ()]
        _refuse_pickles(repo_id, names)
        if not any(name.endswith(SUFFIX) for name in names) and _gguf_names(names):
            raise ConfigError(
                f"{repo_id}: holds GGUF files; name one of them, {repo_id}:FILE: {_gguf_names(names)}"
            )
        if SINGLE not in names and INDEX not in names:
            patterns = [*patterns, *weight_files([one for one in names if "/" not in one], repo_id)]
    return _download(repo_id, revision, patterns, on_bytes)


def fetch_gguf(
    repo_id: str,
    wanted: str,
    revision: str | None,
    *,
    has_projector: bool = False,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Path:
    """Returns the local copy of a GGUF file; all parts of a split file are downloaded, whichever part was named.

    `wanted` is the file's name, or an ending that only one file has, such as Q4_K_M. With `has_projector` a download
    includes a projector file of the same directory.
    """
    path = _local_copy(repo_id, revision, [])  # as many files as there are
    if path is not None:
        files = [file for file in path.rglob(f"*{GGUF}") if file.exists()]
        cached = [file.relative_to(path).as_posix() for file in files]
        parts = _gguf_parts(cached, wanted)
        if parts and all(part in cached for part in parts):
            return path / parts[0]
    names = [one.rfilename for one in _query_hub(repo_id, revision).siblings or ()]
    parts = _gguf_parts(names, wanted)
    missing = next((part for part in parts or [wanted] if part not in names), None)
    if missing is not None:
        raise ConfigError(
            f"{repo_id}: has no {missing}; its GGUF files: {_gguf_names(names) or 'none'}"
        )
    beside = _projector_beside(names, parts[0]) if has_projector else []
    return _download(repo_id, revision, [*parts, *beside], on_bytes) / parts[0]


def _projector_beside(names: list[str], model: str) -> list[str]:
    """Returns the preferred projector file in the model's directory; empty if there is none."""
    if is_projector(model):
        return []
    projectors = [name for name in names if name.endswith(GGUF) and is_projector(name)]
    beside = [name for name in projectors if Path(name).parent == Path(model).parent]
    return sorted(beside, key=preference)[:1]


def _gguf_parts(names: list[str], wanted: str) -> list[str]:
    """Returns the parts of the named file; empty if no file, or more than one, matches."""
    if not wanted.endswith(GGUF):
        form = rf"(?:.*[-._/])?{re.escape(wanted)}(?:-00001-of-\d{{5}})?\.gguf"
        ending = re.compile(form, re.IGNORECASE)
        found = [name for name in names if ending.fullmatch(name) and not is_projector(name)]
        if len(found) != 1:
            return []
        wanted = found[0]
    return [part.as_posix() for part in all_parts(Path(wanted))]


def _gguf_names(names: list[str]) -> str:
    return ", ".join(name for name in names if name.endswith(GGUF))


def _download(
    repo_id: str,
    revision: str | None,
    patterns: list[str],
    on_bytes: Callable[[int, int], None] | None,
) -> Path:
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo_id,
                revision=revision,
                allow_patterns=patterns,
                tqdm_class=None if on_bytes is None else _reporting_to(on_bytes),
            )
        )
    except _FAILURES as err:
        raise ConfigError(f"{repo_id}: the download failed ({one_line(err)}); try again") from err


def _reporting_to(on_bytes: Callable[[int, int], None]) -> type[tqdm]:
    """Returns a class of progress bars that draw nothing; the bar of downloaded bytes reports to `on_bytes`."""

    class Bar(tqdm):
        def __init__(self, *args: Any, **settings: Any) -> None:
            quiet = {"disable": False, "file": io.StringIO(), "mininterval": 0, "miniters": 1}
            super().__init__(*args, **settings | quiet)  # type: ignore[no-untyped-call]  # of the library

        def display(self, *_args: Any, **_settings: Any) -> None:
            if self.desc.startswith("Reconstruct") and self.total:
                on_bytes(self.n, self.total)

        def close(self) -> None:
            self.disable = True  # otherwise the bar is drawn once more when it is garbage-collected

    return Bar


def _cached(repo_id: str, revision: str | None, patterns: list[str]) -> Path | None:
    path = _local_copy(repo_id, revision, patterns)
    return path if path is not None and TOKENIZER in UnreadFiles(path) else None


def _local_copy(repo_id: str, revision: str | None, patterns: list[str]) -> Path | None:
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repo_id, revision=revision, allow_patterns=patterns, local_files_only=True
            )
        )
    except _FAILURES:
        return None


def _is_complete(path: Path) -> bool:
    """True if all weight files exist; an interrupted download leaves only some of them."""
    if not (path / "config.json").exists():
        return False
    if (path / SINGLE).exists():
        return True
    if not (path / INDEX).exists():
        return _are_there(path, weight_files([file.name for file in path.iterdir()], str(path)))
    weight_map = Fields(parse_object(read_bytes(path / INDEX), INDEX), INDEX).object("weight_map")
    shards = () if weight_map is None else weight_map.values.values()
    return _are_there(path, {str(shard) for shard in shards})


def _are_there(path: Path, names: Collection[str]) -> bool:
    return bool(names) and all((path / name).exists() for name in names)


def _refuse_pickles(repo_id: str, names: list[str]) -> None:
    """Raises `ConfigError`, before any download, for pickled weights.

    The error names the Hub bot's conversion if there is one.
    """
    pickles = [name for name in names if name.endswith(PICKLES)]
    if not pickles or any(name.endswith(SUFFIX) for name in names):
        return
    try:
        found = huggingface_hub.get_repo_discussions(
            repo_id, author=_CONVERTER, discussion_type="pull_request"
        )
        revision = next(
            (
                str(one.git_reference)
                for one in islice(found, _MAX_DISCUSSIONS)
                if one.author == _CONVERTER and one.title.startswith(_CONVERTED)
            ),
            None,
        )
    except _FAILURES:
        revision = None
    advice = (
        "convert a copy with transformers' save_pretrained, and give its directory"
        if revision is None
        else f"the Hub's converter offers them as safetensors: --revision {revision}"
    )
    raise ConfigError(
        f"{repo_id}: only {pickles[0]} holds weights, and pickled weights are never loaded; {advice}"
    )


def _query_hub(repo_id: str, revision: str | None) -> huggingface_hub.ModelInfo:
    """Returns the Hub's information about a model; the timeout is short, so that a machine without network fails
    soon.
    """
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise ConfigError(
            f"{repo_id}: not in the local cache, and HF_HUB_OFFLINE is set; unset it to download, or "
            f"give the directory of a local copy{_cached_names()}"
        )
    try:
        return huggingface_hub.model_info(repo_id, revision=revision, timeout=_ANSWER_TIMEOUT_S)
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
            f"connect to the network, or give the directory of a local copy{_cached_names()}"
        ) from err


def _cached_names() -> str:
    """Returns the end of an error: models in the cache, which need no network."""
    cache = Path(huggingface_hub.constants.HF_HUB_CACHE)
    names = [
        path.name.removeprefix("models--").replace("--", "/")
        for path in sorted(cache.glob("models--*"))
    ]
    shown = ", ".join([*names[:_MOST_NAMES], *(["..."] if len(names) > _MOST_NAMES else [])])
    return f"; the cache has {shown}" if names else ""
