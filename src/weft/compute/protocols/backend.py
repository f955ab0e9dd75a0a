"""`Backend`: one way to compute models, as the rest of the program sees it; `backends` lists them."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from weft.compute.protocols.runner import Runner
from weft.compute.protocols.sampler import Sampler
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.model.card import ModelCard
from weft.model.files.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file for packed weights, which several processes map; `is_published` once they are there.

    With `is_copied` they are read from it into memory of this process.
    """

    descriptor: int
    is_published: bool
    is_copied: bool = False


@runtime_checkable
class PackedParts(Protocol):
    """A runner that gives what such a file holds once it is published."""

    def packed_parts(self) -> list[memoryview]:
        """One behind the other; they stay as they are, and hold its memory."""


class Backend(Protocol):
    """What it supports, the memory it has and takes, its runners, and its sampler of their logits."""

    # Whether it computes in the host's memory, on its CPUs.
    is_on_host: bool
    # Of free memory, what weights and KV pool take together where nothing is said; None: the default, with a pool of
    # at most 4 GiB.
    usual_memory_share: float | None

    @property
    def sampler(self) -> Sampler:
        """Of the logits that its runners give."""

    def suits(self, card: ModelCard) -> bool:
        """Whether it is to be taken for such a model, here, when nobody names a backend."""

    def configure(self, options: EngineOptions, card: ModelCard) -> ComputeConfig:
        """Decide how it computes; a `ConfigError` names the flag that it cannot follow."""

    def shared_threads(self, card: ModelCard) -> int | None:
        """Threads to take in a process that does other work too; None: what it takes anyway."""

    def sized(self, checkpoint: Checkpoint, compute: ComputeConfig) -> Checkpoint:
        """The checkpoint with the memory on its card that weights, KV and adapters take here."""

    def free_bytes(self) -> int:
        """Memory for weights and KV that is free now."""

    def load(self, checkpoint: Checkpoint, compute: ComputeConfig, *, max_model_len: int) -> Runner:
        """Read the weights and build the runner.

        `max_model_len` is the longest sequence that will be served; models with a second set of rotary
        frequencies for long contexts choose by it.
        """

    def describe(self, card: ModelCard, compute: ComputeConfig) -> str:
        """What computes, and on what, as the start banner has it."""


@runtime_checkable
class SharingBackend(Backend, Protocol):
    """One whose weights several processes can have in one place."""

    def packing(self) -> str:
        """All that decides how they are packed, but for checkpoint and configuration: code, and instructions."""

    def load_shared(
        self,
        checkpoint: Checkpoint,
        compute: ComputeConfig,
        *,
        max_model_len: int,
        file: PackedFile,
    ) -> Runner:
        """`load`, with the weights packed into `file` or, once they are published there, mapped."""
