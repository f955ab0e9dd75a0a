"""`ReferenceBackend`: models in numpy, slow; the standard with which every other backend is compared."""

from weft.compute.cpu import CpuBackend, describe_rounding, describe_threads
from weft.compute.native import cpu
from weft.compute.protocols.runner import Runner
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.model.card import ModelCard
from weft.model.files.checkpoint import Checkpoint
from weft.model.spec import EchoSpec, ModelSpec


class ReferenceBackend(CpuBackend):
    """Backend in numpy. Encoders divide a step among threads; decoders leave the use of threads to numpy."""

    def suits(self, card: ModelCard, spec: ModelSpec | EchoSpec | None) -> bool:
        return card.num_parameters > 0

    def configure(self, options: EngineOptions, card: ModelCard) -> ComputeConfig:
        compute = super().configure(options, card)
        if options.num_threads is not None and card.is_causal:
            raise ConfigError(
                "--num-threads does not apply to --compute reference, which leaves threads to numpy"
            )
        return compute

    def shared_threads(self, card: ModelCard) -> int | None:
        """Returns 1 for encoders, because numpy may use uncounted threads of its own in each of their threads."""
        return None if card.is_causal else 1

    def sized(self, checkpoint: Checkpoint, compute: ComputeConfig) -> Checkpoint:
        """Returns the checkpoint unchanged: the sizes on its card are those of this backend."""
        return checkpoint

    def load(self, checkpoint: Checkpoint, compute: ComputeConfig, *, max_model_len: int) -> Runner:
        spec = checkpoint.spec
        assert isinstance(spec, ModelSpec), "refused by `configure`"
        # Imported late: other backends are chosen without the modules of this one.
        if not spec.is_causal:
            from weft.compute.reference.encoder import EncoderRunner  # noqa: PLC0415

            return EncoderRunner(spec, checkpoint.load(), num_threads=compute.num_threads)
        from weft.compute.reference.runner import ReferenceRunner  # noqa: PLC0415

        return ReferenceRunner(
            spec,
            checkpoint.load(),
            max_model_len=max_model_len,
            quantization=compute.quantization,
            kv_cache_dtype=compute.kv_cache_dtype,
        )

    def describe(self, card: ModelCard, compute: ComputeConfig) -> str:
        shared = "" if card.is_causal else f" ({describe_threads(compute)})"
        return f"{cpu().describe()}; computed with numpy{shared}{describe_rounding(compute)}"
