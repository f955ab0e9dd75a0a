"""`NativeBackend`: models in C++, with the CPU's vector instructions."""

from dataclasses import replace

from weft.compute.arithmetic.grouped import describe_rounded_again
from weft.compute.cpu import CpuBackend, describe_rounding, describe_threads
from weft.compute.native import (
    Machine,
    NativeEncoder,
    NativeRunner,
    Rounding,
    cpu,
    resident_bytes,
    usable_paths,
)
from weft.compute.native.code import code_digest
from weft.compute.protocols.backend import PackedFile
from weft.compute.protocols.runner import Runner
from weft.core.config.engine import ComputeConfig
from weft.model.card import ModelCard
from weft.model.files.checkpoint import Checkpoint
from weft.model.spec import EchoSpec, ModelSpec


class NativeBackend(CpuBackend):
    """Backend for every model with weights, if the CPU has the needed vector instructions."""

    def suits(self, card: ModelCard, spec: ModelSpec | EchoSpec | None) -> bool:
        return card.num_parameters > 0 and usable_paths()[0] != "portable"

    def shared_threads(self, card: ModelCard) -> int | None:
        return None

    def sized(self, checkpoint: Checkpoint, compute: ComputeConfig) -> Checkpoint:
        spec, card = _spec(checkpoint), checkpoint.card
        sizes = resident_bytes(
            spec, card.dtype, compute.quantization, compute.kv_cache_dtype, checkpoint.groups
        )
        card = replace(card, weight_bytes=sizes.weights)
        if compute.quantization == "stored":
            texts = (card.notice, describe_rounded_again(spec, checkpoint.groups))
            card = replace(card, notice=" ".join(filter(None, texts)))
        if spec.is_causal:  # encoders have neither KV nor adapters
            card = replace(
                card,
                kv_bytes_per_token=sizes.kv_per_token,
                state_bytes_per_block=sizes.state_per_block,
                kv_dtype=sizes.kv_dtype,
                adapter=sizes.adapter,
            )
        return replace(checkpoint, card=card)

    def load(self, checkpoint: Checkpoint, compute: ComputeConfig, *, max_model_len: int) -> Runner:
        return self._load(checkpoint, compute, max_model_len, None)

    def packing(self) -> str:
        return f"{usable_paths()[0]} {code_digest()}"

    def load_shared(
        self,
        checkpoint: Checkpoint,
        compute: ComputeConfig,
        *,
        max_model_len: int,
        file: PackedFile,
    ) -> Runner:
        return self._load(checkpoint, compute, max_model_len, file)

    def _load(
        self,
        checkpoint: Checkpoint,
        compute: ComputeConfig,
        max_model_len: int,
        file: PackedFile | None,
    ) -> Runner:
        spec, dtype = _spec(checkpoint), checkpoint.card.dtype
        machine = Machine(num_threads=compute.num_threads, file=file)
        if not spec.is_causal:
            return NativeEncoder(spec, checkpoint.map(), dtype=dtype, machine=machine)
        return NativeRunner(
            spec,
            checkpoint.map(),
            dtype=dtype,
            max_model_len=max_model_len,
            rounding=Rounding(compute.quantization, compute.kv_cache_dtype),
            machine=machine,
        )

    def describe(self, card: ModelCard, compute: ComputeConfig) -> str:
        computed = f"computed in C++ ({usable_paths()[0]}, {describe_threads(compute)})"
        return f"{cpu().describe()}; {computed}{describe_rounding(compute)}"


def _spec(checkpoint: Checkpoint) -> ModelSpec:
    assert isinstance(checkpoint.spec, ModelSpec), "refused by `configure`"
    return checkpoint.spec
