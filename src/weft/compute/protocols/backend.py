"""`Backend`: the interface of a compute backend; `backends` lists the implementations."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from weft.compute.protocols.runner import Runner
from weft.compute.protocols.sampler import Sampler
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.model.card import ModelCard
from weft.model.files.checkpoint import Checkpoint
from weft.model.spec import EchoSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A file for packed weights that several processes map. `is_published` is True once the weights are written.

    With `is_copied` this process copies the weights from the file into its own memory.
    """

    descriptor: int
    is_published: bool
    is_copied: bool = False


@runtime_checkable
class PackedParts(Protocol):
    """A runner that gives access to the content of a published file of packed weights."""

    def packed_parts(self) -> list[memoryview]:
        """Returns the parts of the file in order; they do not change, and keep the file's memory alive."""


class Backend(Protocol):
    """A compute backend: the models that it supports, its memory, its runners, and the sampler of their logits."""

    # True if the backend computes on the host's CPUs, in the host's memory.
    is_on_host: bool
    # Default fraction of free memory for weights and KV pool together; None: the general default, with a pool of at
    # most 4 GiB.
    usual_memory_share: float | None

    @property
    def sampler(self) -> Sampler:
        """Sampler of the logits that the backend's runners return."""

    def suits(self, card: ModelCard, spec: ModelSpec | EchoSpec | None) -> bool:
        """True if "auto" should choose this backend for a model on this machine."""

    def configure(self, options: EngineOptions, card: ModelCard) -> ComputeConfig:
        """Returns the compute configuration; raises a `ConfigError` that names an unsupported flag."""

    def shared_threads(self, card: ModelCard) -> int | None:
        """Returns the number of threads for a process that also does other work; None means the configured number."""

    def sized(self, checkpoint: Checkpoint, compute: ComputeConfig) -> Checkpoint:
        """Returns the checkpoint whose card has the bytes that weights, KV and adapters take in this backend."""

    def free_bytes(self) -> int:
        """Returns the free memory for weights and KV, in bytes."""

    def load(self, checkpoint: Checkpoint, compute: ComputeConfig, *, max_model_len: int) -> Runner:
        """Reads the weights and returns the runner.

        `max_model_len` is the length of the longest sequence that will be served; models with a second set of rotary
        frequencies for long contexts choose the set by this length.
        """

    def describe(self, card: ModelCard, compute: ComputeConfig) -> str:
        """Returns a description of the device and of the number format, for the start banner."""


@runtime_checkable
class SharingBackend(Backend, Protocol):
    """A backend whose weights several processes can share."""

    def packing(self) -> str:
        """Returns what determines packed weights besides checkpoint and configuration: code and instruction set."""

    def load_shared(
        self,
        checkpoint: Checkpoint,
        compute: ComputeConfig,
        *,
        max_model_len: int,
        file: PackedFile,
    ) -> Runner:
        """Loads a model like `load`; packs the weights into `file`, or maps them from `file` if they are published
        there.
        """
