"""`GpuBackend`: models on one NVIDIA card. This module imports torch only when a model is loaded."""

from dataclasses import replace
from importlib.util import find_spec

from weft.compute.cpu import describe_rounding, no_effect, resolved_quantization
from weft.compute.gpu.card import Card, find_card, is_interpreted
from weft.compute.gpu.formats import describe_formats
from weft.compute.gpu.sizes import kv_bytes_per_token, resident_bytes
from weft.compute.gpu.supported import (
    LEAST_CAPABILITY,
    check_card,
    check_options,
    check_spec,
    model_refusal,
    spec_refusal,
)
from weft.compute.protocols.runner import Runner
from weft.compute.protocols.sampler import Sampler
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.model.card import ModelCard
from weft.model.files.checkpoint import Checkpoint
from weft.model.spec import EchoSpec, ModelSpec


class GpuBackend:
    """The backend for one NVIDIA card; usable if there are a card and the needed packages."""

    is_on_host = False
    usual_memory_share: float | None = 0.92  # assumes that only this server uses the card

    @property
    def sampler(self) -> Sampler:
        from weft.compute.gpu.choosing.sampler import GpuSampler  # noqa: PLC0415 - imports torch

        return GpuSampler()

    def suits(self, card: ModelCard, spec: ModelSpec | EchoSpec | None) -> bool:
        if not card.num_parameters or model_refusal(card) is not None or is_interpreted():
            return False
        if isinstance(spec, ModelSpec) and spec_refusal(spec) is not None:
            return False
        found = find_card()
        has_packages = find_spec("torch") is not None and find_spec("triton") is not None
        return found is not None and found.capability >= LEAST_CAPABILITY and has_packages

    def configure(self, options: EngineOptions, card: ModelCard) -> ComputeConfig:
        if not card.num_parameters:
            raise ConfigError(no_effect("compute", card))
        check_options(options, card)
        check_card(find_card())
        quantization = resolved_quantization(options.quantization, card)
        return ComputeConfig(compute="gpu", num_threads=1, quantization=quantization)

    def shared_threads(self, card: ModelCard) -> int | None:
        return None

    def sized(self, checkpoint: Checkpoint, compute: ComputeConfig) -> Checkpoint:
        spec, card = _spec(checkpoint), checkpoint.card
        check_spec(spec, card.name)
        quantization, groups = compute.quantization, checkpoint.groups
        notice = describe_formats(spec, groups, quantization) or card.notice
        sized = replace(
            card,
            notice=notice,
            weight_bytes=resident_bytes(spec, card, groups, quantization),
            kv_bytes_per_token=kv_bytes_per_token(spec),
            kv_dtype=card.dtype,
        )
        return replace(checkpoint, card=sized)

    def free_bytes(self) -> int:
        return _card().free_bytes

    def load(self, checkpoint: Checkpoint, compute: ComputeConfig, *, max_model_len: int) -> Runner:
        from weft.compute.gpu.loading import load_runner  # noqa: PLC0415 - imports torch

        dtype, quantization = checkpoint.card.dtype, compute.quantization
        return load_runner(_spec(checkpoint), checkpoint.map(), dtype, max_model_len, quantization)

    def describe(self, card: ModelCard, compute: ComputeConfig) -> str:
        found = _card()
        return f"{found.name} ({found.total_bytes / 2**30:.0f} GiB); computed in Triton{describe_rounding(compute)}"


def _card() -> Card:
    found = find_card()
    if found is None:
        raise ConfigError(
            "--compute gpu: the NVIDIA card of this machine has disappeared (see nvidia-smi)"
        )
    return found


def _spec(checkpoint: Checkpoint) -> ModelSpec:
    assert isinstance(checkpoint.spec, ModelSpec), "refused by `configure`"
    return checkpoint.spec
