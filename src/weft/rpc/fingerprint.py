"""`Fingerprints`: tells which servers give equal answers, so that one can continue the requests of another."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from weft import __version__
from weft.core.client import EngineClient
from weft.core.errors import WeftError
from weft.core.values.pictures import PlacedItem
from weft.core.values.types import LoRARequest
from weft.model.files.stamps import content_digest
from weft.model.lora import CONFIG_FILE, WEIGHTS_FILE
from weft.rpc.metadata import FINGERPRINT_SEPARATOR

# Time that a caller waits for files to be read.
_WAIT_S = 1.0
# Settings that can change a token; `tests/rpc/test_fingerprint.py` lists the others.
SETTINGS = (
    "cache_config.block_size",
    "cache_config.kv_cache_dtype",
    "compute_config.compute",
    "compute_config.kv_cache_dtype",
    "compute_config.quantization",
    "model_config.default_sampling_params",
    "model_config.dtype",
    "model_config.eos_token_ids",
    "model_config.file_overrides",
    "model_config.load_dtype",
    "model_config.logprobs_mode",
    "model_config.max_logprobs",
    "model_config.max_model_len",
    "model_config.max_new_tokens",
    "model_config.vocab_size",
    "structured_outputs_in_reasoning",
)

Stamp = tuple[int, int]  # size and time of modification


class _Stopped(Exception):
    """The server stops while files are read."""


class Fingerprints:
    """The fingerprints of one server's model and adapters. Owned by one event loop.

    A fingerprint is a digest of the weights' content, of the instructions that compute with them, and of all settings
    that can change a token. The files are read on a thread of this process, so that the engine never waits.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer_files: Mapping[str, bytes],
        reasoning_parser: str | None,
    ) -> None:
        self._client = client
        self._tokenizer_files = tokenizer_files
        self._reasoning_parser = reasoning_parser
        self._parts: list[str] = []  # of the model whose files were read or are read now
        self._model = ""
        self._adapters: dict[tuple[str, str], tuple[list[Stamp], str]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._stopped = threading.Event()

    def of(self, lora: LoRARequest | None, items: Sequence[PlacedItem] = ()) -> str:
        """Returns the fingerprint for a request with this adapter and these media; empty if it is unknown.

        The media count because a picture may have changed when another server fetches it from its address.
        """
        if lora is None and not items:
            return self._model
        parts = [self._model]
        if lora is not None:
            parts.append(self.digest_of(lora))
        if items:
            hashes = "".join(item.hash for item in items)
            parts.append(xxhash.xxh3_128_hexdigest(hashes.encode()))
        return FINGERPRINT_SEPARATOR.join(parts) if all(parts) else ""

    def digest_of(self, lora: LoRARequest) -> str:
        """Returns the digest of an adapter's files; empty if it is unknown."""
        known = self._adapters.get(_key(lora))
        return "" if known is None else known[1]

    async def refresh(self) -> str:
        """Returns the fingerprint of the model; empty while its files are read, and for weights that are in no file."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="weft-fingerprint")
        await asyncio.wait({self._reading}, timeout=_WAIT_S)
        return self._model

    async def fingerprint(self, lora: LoRARequest | None) -> str:
        """Returns the present fingerprint for requests with this adapter; empty if it is unknown."""
        await self.refresh()
        return self.of(lora)

    async def keep(self) -> None:
        """Begins to read, and stops reading when it is cancelled."""
        try:
            await self.refresh()
            await asyncio.get_running_loop().create_future()
        finally:
            await self.close()

    async def close(self) -> None:
        """Stops reading."""
        self._stopped.set()
        if self._reading is not None:
            await asyncio.wait({self._reading})

    async def _read(self) -> None:
        parts = await self._find_parts()
        if parts != self._parts:
            self._model, self._parts = "", parts
        if parts and not self._model:
            model = await self._digest(self._settings(parts[0]), parts[1:])
            # Asked again: the engine says whether the files are still those that it has loaded.
            if model is not None and parts == await self._find_parts():
                self._model = model
        for lora in list(self._client.lora_requests.values()):
            await self._read_adapter(lora)

    async def _find_parts(self) -> list[str]:
        """Returns what every engine says of its model; empty if engines differ, or do not say."""
        if self._client.info.config.compute_config is None:
            return []  # an engine of another kind
        try:
            found = await self._client.collective_rpc("fingerprint_parts")
        except WeftError:
            return []
        return list(found[0]) if found and all(one == found[0] for one in found) else []

    async def _read_adapter(self, lora: LoRARequest) -> None:
        paths = [Path(lora.lora_path, name) for name in (CONFIG_FILE, WEIGHTS_FILE)]
        try:
            stamps = [(found.st_size, found.st_mtime_ns) for found in map(Path.stat, paths)]
        except OSError:
            self._adapters.pop(_key(lora), None)
            return
        known = self._adapters.get(_key(lora))
        if known is None or known[0] != stamps:
            digest = await self._digest("", [str(path) for path in paths])
            if digest is not None:
                self._adapters[_key(lora)] = (stamps, digest)

    async def _digest(self, start: str, paths: Sequence[str]) -> str | None:
        read = partial(content_digest, start, [Path(path) for path in paths], self._check)
        try:
            return await asyncio.to_thread(read)
        except (OSError, _Stopped):
            return None

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _Stopped

    def _settings(self, computation: str) -> str:
        """Returns a text for everything but the files of the weights."""
        settings = {name: _value_at(self._client.info.settings, name) for name in SETTINGS}
        tokenizer = xxhash.xxh3_128()
        for name, data in sorted(self._tokenizer_files.items()):
            tokenizer.update(f"{name} {len(data)} ".encode() + data)
        given = (__version__, computation, settings, tokenizer.hexdigest(), self._reasoning_parser)
        return msgspec.json.encode(given, order="sorted").decode()


def _key(lora: LoRARequest) -> tuple[str, str]:
    return lora.lora_name, lora.lora_path


def _value_at(settings: Mapping[str, Any], path: str) -> Any:
    value: Any = settings
    for name in path.split("."):
        value = value[name]
    return value
