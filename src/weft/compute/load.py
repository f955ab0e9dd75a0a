"""`load_runner`: the runner that serves a checkpoint; and what is known of it before it is loaded."""

from dataclasses import replace
from typing import Literal, assert_never

from weft.compute.echo import EchoRunner
from weft.compute.encoder import EncoderRunner
from weft.compute.native import NativeRunner, resident_bytes, usable_paths
from weft.compute.pooler import Pooler
from weft.compute.reference import ReferenceRunner
from weft.compute.runner import Runner
from weft.core.config import PoolerConfig
from weft.model.checkpoint import Checkpoint
from weft.model.encoders.spec import EncoderSpec
from weft.model.spec import EchoSpec
from weft.model.weights import Weights

RunnerName = Literal["auto", "reference", "native"]


def load_runner(
    checkpoint: Checkpoint,
    *,
    max_model_len: int | None = None,
    runner: RunnerName = "auto",
    num_threads: int | None = None,
) -> Runner:
    """Load the weights and build the runner.

    `max_model_len` is the longest sequence that will be served (None: all that the model allows);
    models with a second set of rotary frequencies for long contexts choose by it. "auto" is the
    native runner wherever the CPU has vector instructions for it, else the reference. `num_threads`
    is of the native runner (None: the CPUs that this process may use) and of encoders (None: one,
    because numpy's own threads are not ours to count).
    """
    spec, card = checkpoint.spec, checkpoint.card
    if isinstance(spec, EchoSpec):
        return EchoRunner(spec)
    if isinstance(spec, EncoderSpec):
        return EncoderRunner(spec, checkpoint.load(), num_threads=num_threads or 1)
    length = max_model_len or card.max_position_embeddings
    match _chosen(runner):
        case "reference":
            return ReferenceRunner(spec, checkpoint.load(), max_model_len=length)
        case "native":
            return NativeRunner(
                spec,
                checkpoint.load(),
                dtype=card.dtype,
                max_model_len=length,
                num_threads=num_threads,
            )
        case never:
            assert_never(never)


def load_pooler(checkpoint: Checkpoint, config: PoolerConfig | None) -> Pooler | None:
    """What follows the hidden states of a model that was opened for pooling; None for others."""
    pooling = checkpoint.card.pooling
    if pooling is None or config is None:
        return None
    # The weights are mapped, not read: only what a classifier needs is looked at.
    weights = Weights({}) if pooling.head is None else checkpoint.load()
    return Pooler(pooling, weights, normalize=config.normalize)


def describe_runner(checkpoint: Checkpoint, runner: RunnerName = "auto") -> str:
    """What `load_runner` would compute with, as the start banner says it."""
    if isinstance(checkpoint.spec, EchoSpec):
        return "nothing to compute"
    if isinstance(checkpoint.spec, EncoderSpec):
        return "computed with numpy"
    match _chosen(runner):
        case "reference":
            return "computed with numpy"
        case "native":
            return f"computed in C++ ({usable_paths()[0]})"
        case never:
            assert_never(never)


def with_resident_sizes(checkpoint: Checkpoint, runner: RunnerName = "auto") -> Checkpoint:
    """The checkpoint with the memory on its card that its weights and KV take in that runner."""
    spec, card = checkpoint.spec, checkpoint.card
    if isinstance(spec, EchoSpec | EncoderSpec) or _chosen(runner) == "reference":
        return checkpoint  # cards are made out for the reference
    sizes = resident_bytes(spec, card.dtype)
    return replace(
        checkpoint,
        card=replace(
            card,
            weight_bytes=sizes.weights,
            kv_bytes_per_token=sizes.kv_per_token,
            kv_dtype=sizes.kv_dtype,
        ),
    )


def _chosen(runner: RunnerName) -> Literal["reference", "native"]:
    match runner:
        case "auto":
            return "reference" if usable_paths()[0] == "portable" else "native"
        case "reference" | "native":
            return runner
        case never:
            assert_never(never)
