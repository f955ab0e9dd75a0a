"""`WeightTransfer`: receives weights that another program sends while the engine serves, and checks them.

Tensors in shared memory are copied at once, so that the sender may reuse its segment. Files are read when the update is
finished, and must exist until then.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from weft.compute.memory import free_memory_bytes
from weft.core.errors import ConfigError, FailedPrecondition
from weft.core.operator_calls import TRANSFER_FLAG
from weft.core.values.weight_transfer import WeightTransferConfig
from weft.engine.ipc.messages import SentTensor, UpdateWeights
from weft.engine.settings.given import read_json
from weft.model.files.checkpoint import Checkpoint
from weft.model.files.safetensors_files import StoredTensor, find_tensors, read_header

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_MAX_NAMED = 5


def read_weight_transfer(given: str | dict[str, Any] | None) -> WeightTransferConfig | None:
    """Reads `--weight-transfer-config`: JSON text, or in Python a dict."""
    if given is None:
        return None
    config = read_json(TRANSFER_FLAG, given, WeightTransferConfig)
    if config.backend == "shared_memory":
        if config.directory is not None:
            raise ConfigError(f"{TRANSFER_FLAG}: directory is for the backend safetensors")
        if not (SHARED_MEMORY.is_dir() and hasattr(os, "memfd_create")):
            raise ConfigError(
                f"{TRANSFER_FLAG}: the backend shared_memory needs Linux and {SHARED_MEMORY}"
            )
        return config
    directory = Path(config.directory or "").expanduser()
    if not (config.directory and directory.is_dir()):
        raise ConfigError(
            f"{TRANSFER_FLAG}: directory must be an existing directory, got {config.directory}"
        )
    return msgspec.structs.replace(config, directory=str(directory.resolve()))


class WeightTransfer:
    """State of one weight update, owned by the engine's thread. After an error the update must end.

    An error changes nothing else.
    """

    def __init__(self, config: WeightTransferConfig | None, checkpoint: Checkpoint | None) -> None:
        self._config = config
        self._needed = {} if checkpoint is None else checkpoint.needed
        self._is_ready = False
        self._sent: dict[str, StoredTensor] | None = None  # tensors of the update in progress
        self._staging: int | None = None  # the in-memory file that has these tensors

    @property
    def is_lasting(self) -> bool:
        """True if weights are sent as files that stay on disk."""
        return self._config is not None and self._config.backend == "safetensors"

    def init(self) -> None:
        """Prepares for a new sender; an update of another sender is dropped."""
        if not self._needed:
            raise FailedPrecondition(
                "weights can be sent only for a model that was read from safetensors files"
            )
        self.close()
        self._is_ready = True

    def start(self) -> None:
        """Begins an update."""
        if not self._is_ready:
            raise FailedPrecondition("init_weight_transfer_engine has not been called")
        if self._sent is not None:
            raise FailedPrecondition(
                "a weight update is open already; finish_weight_update ends it"
            )
        self._sent = {}

    def update(self, command: UpdateWeights) -> None:
        """Adds tensors to the update; raises for a tensor that was sent before."""
        sent = self._open()
        if command.tensors:
            self._check(sent, [(t.name, t.dtype, t.shape) for t in command.tensors])
            sent |= self._stage(command)
            return
        stored = self._find(Path(command.source))
        self._check(sent, [(name, t.dtype, t.shape) for name, t in stored.items()])
        sent |= stored

    def complete(self) -> Mapping[str, StoredTensor]:
        """Returns all tensors of the update; raises `ConfigError` if a tensor is missing."""
        sent = self._open()
        missing = [name for name in self._needed if name not in sent]
        if missing:
            raise ConfigError(
                f"the update is incomplete: {_listed(missing)} of {len(self._needed)} tensors "
                "have not been sent"
            )
        return sent

    def close(self) -> None:
        """Drops the update in progress; idempotent."""
        self._sent = None
        if self._staging is not None:
            os.close(self._staging)
            self._staging = None

    def _open(self) -> dict[str, StoredTensor]:
        if self._sent is None:
            raise FailedPrecondition("no weight update is open; start_weight_update opens one")
        return self._sent

    def _check(
        self, sent: Mapping[str, StoredTensor], tensors: Iterable[tuple[str, str, tuple[int, ...]]]
    ) -> None:
        """Raises unless each tensor belongs to the checkpoint, has its dtype and shape, and was not sent before."""
        seen = set(sent)
        for name, dtype, shape in tensors:
            needed = self._needed.get(name)
            if needed is None:
                raise ConfigError(f"{name[:200]!a} is not a tensor of this model's checkpoint")
            if (dtype, shape) != (needed.dtype, needed.shape):
                raise ConfigError(
                    f"{name} was sent as {dtype[:40]} {list(shape)}; the checkpoint has "
                    f"{needed.dtype} {list(needed.shape)}"
                )
            if name in seen:
                raise ConfigError(f"{name} was sent twice in one update")
            seen.add(name)

    def _find(self, path: Path) -> dict[str, StoredTensor]:
        stored = find_tensors(path) if path.is_dir() else read_header(path)
        assert self._config is not None
        assert self._config.directory is not None
        for tensor in stored.values():  # a shard may be a link
            if not tensor.path.resolve().is_relative_to(self._config.directory):
                raise ConfigError(f"{tensor.path} leads out of {self._config.directory}")
        return stored

    def _stage(self, command: UpdateWeights) -> dict[str, StoredTensor]:
        """Copies tensors from the sender's shared memory segment into an in-memory file."""
        sizes = [_num_bytes(tensor) for tensor in command.tensors]
        free = free_memory_bytes()
        if sum(sizes) > free:
            raise ConfigError(
                f"the update takes {sum(sizes):,} bytes of memory, and {free:,} are free"
            )
        if self._staging is None:
            self._staging = os.memfd_create("weft-weights", os.MFD_CLOEXEC)
        staging = Path(f"/proc/self/fd/{self._staging}")
        segment = _open_segment(command.source)
        staged = {}
        try:
            size = os.fstat(segment).st_size
            for tensor, num_bytes in zip(command.tensors, sizes, strict=True):
                if tensor.offset + num_bytes > size:
                    raise ConfigError(
                        f"{tensor.name} ends at byte {tensor.offset + num_bytes} of {command.source}, which "
                        f"has {size}"
                    )
                end = os.lseek(self._staging, 0, os.SEEK_END)
                # Tensors start at multiples of 64 bytes.
                start = os.lseek(self._staging, -(-end // 64) * 64, os.SEEK_SET)
                _copy(segment, self._staging, tensor.offset, num_bytes)
                staged[tensor.name] = StoredTensor(staging, tensor.dtype, tensor.shape, start)
        finally:
            os.close(segment)
        return staged


def _open_segment(name: str) -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        segment = os.open(SHARED_MEMORY / name, flags)
    except OSError as error:
        raise ConfigError(f"segment {name} cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(segment).st_mode):
        os.close(segment)
        raise ConfigError(f"segment {name} is not shared memory")
    return segment


def _copy(source: int, target: int, offset: int, num_bytes: int) -> None:
    while num_bytes:
        copied = os.sendfile(target, source, offset, num_bytes)
        if not copied:
            raise ConfigError("the segment became shorter while it was read")
        offset += copied
        num_bytes -= copied


def _num_bytes(tensor: SentTensor) -> int:
    return StoredTensor(SHARED_MEMORY, tensor.dtype, tensor.shape, 0).num_bytes


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
