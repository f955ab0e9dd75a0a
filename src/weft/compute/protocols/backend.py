"""`Backend`: the interface of one way to compute models; `backends` lists the implementations."""

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
    """A file for packed weights, which several processes map; `is_published` once the weights are written.

    With `is_copied` this process copies the weights from the file into its own memory.
    """

    descriptor: int
    is_published: bool
    is_copied: bool = False


@runtime_checkable
class PackedParts(Protocol):
    """A runner that gives access to the contents of a published file of packed weights."""

    def packed_parts(self) -> list[memoryview]:
        """Returns the contents in order; they do not change, and keep the file's memory alive."""


class Backend(Protocol):
    """A compute backend: the models it supports, its memory, its runners, and the sampler of their logits."""

    # True if the backend computes in the host's memory, on its CPUs.
    is_on_host: bool
    # Default share of free memory for weights and KV pool together; None: the general default, with a pool of at most 4
    # GiB.
    usual_memory_share: float | None

    @property
    def sampler(self) -> Sampler:
        """Sampler of the logits that the backend's runners return."""

    def suits(self, card: ModelCard) -> bool:
        """True if "auto" should choose this backend for such a model on this machine."""

    def configure(self, options: EngineOptions, card: ModelCard) -> ComputeConfig:
        """Resolves the compute configuration; raises a `ConfigError` that names an unsupported flag."""

    def shared_threads(self, card: ModelCard) -> int | None:
        """Returns the number of threads in a process that does other work too; None: the configured number."""

    def sized(self, checkpoint: Checkpoint, compute: ComputeConfig) -> Checkpoint:
        """Returns the checkpoint with the memory of weights, KV and adapters in this backend on its card."""

    def free_bytes(self) -> int:
        """Returns the free memory for weights and KV, in bytes."""

    def load(self, checkpoint: Checkpoint, compute: ComputeConfig, *, max_model_len: int) -> Runner:
        """Reads the weights and builds the runner.

        `max_model_len` is the longest sequence that will be served; models with a second set of rotary frequencies
        for long contexts choose by it.
        """

    def describe(self, card: ModelCard, compute: ComputeConfig) -> str:
        """Returns the device and the way of computing, for the start banner."""


@runtime_checkable
class SharingBackend(Backend, Protocol):
    """A backend whose weights several processes can share."""

    def packing(self) -> str:
        """Returns all that decides how weights are packed besides checkpoint and configuration: code and
        instruction set.
        """

    def load_shared(
        self,
        checkpoint: Checkpoint,
        compute: ComputeConfig,
        *,
        max_model_len: int,
        file: PackedFile,
    ) -> Runner:
        """Loads like `load`, with the weights packed into `file` or, once published there, mapped from it."""
