"""`CpuBackend`: the common base of the two backends on the CPU, in C++ and in numpy."""

from weft.compute.memory import free_memory_bytes
from weft.compute.native import MAX_THREADS, NativeSampler, available_cpus
from weft.compute.protocols.sampler import Sampler
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.model.card import ModelCard

QUANTIZATIONS = ("int8", "int4", "none")
_CACHE_TYPES = ("auto", "int8")


class CpuBackend:
    """A backend on the CPU with a name; subclasses add the runners and the sizes of their memory."""

    sampler: Sampler = NativeSampler()
    is_on_host = True
    usual_memory_share: float | None = None

    def __init__(self, name: str) -> None:
        self._name = name

    def configure(self, options: EngineOptions, card: ModelCard) -> ComputeConfig:
        if options.quantization not in (None, *QUANTIZATIONS):
            raise ConfigError(unknown("quantization", options.quantization, QUANTIZATIONS))
        if options.kv_cache_dtype not in _CACHE_TYPES:
            raise ConfigError(unknown("kv-cache-dtype", options.kv_cache_dtype, _CACHE_TYPES))
        threads = options.num_threads
        if threads is not None and not 1 <= threads <= MAX_THREADS:
            raise ConfigError(f"--num-threads must be between 1 and {MAX_THREADS}, not {threads}")
        if not card.num_parameters:
            raise ConfigError(no_effect("compute", card))
        if options.enable_lora and (not card.is_causal or card.pooling is not None):
            raise ConfigError(f"--enable-lora: {card.name} is served without LoRA adapters")
        if not card.is_causal:
            _check_encoder(options, card)
        if card.keeps_latents and options.kv_cache_dtype != "auto":
            raise ConfigError(
                f"--kv-cache-dtype must be auto, not {options.kv_cache_dtype}: the KV cache of {card.name} has latent "
                "vectors, which cannot be quantized"
            )
        return ComputeConfig(
            compute=self._name,
            num_threads=threads or available_cpus(),
            quantization=resolved_quantization(options.quantization, card),
            kv_cache_dtype=options.kv_cache_dtype,
        )

    def free_bytes(self) -> int:
        return free_memory_bytes()


def resolved_quantization(wanted: str | None, card: ModelCard) -> str | None:
    """Returns the quantization format of linear layers; by default the format in which they are stored."""
    if wanted == "none" or (wanted is None and card.stored_bits is None):
        return None
    return "stored" if wanted is None or (wanted, card.stored_bits) == ("int4", 4) else wanted


def unknown(flag: str, value: str | None, allowed: tuple[str, ...]) -> str:
    """Returns the error message for an invalid value of a flag."""
    return f'--{flag} "{value}" is unknown; choose from {", ".join(allowed)}'


def no_effect(flag: str, card: ModelCard) -> str:
    """Returns the error message for a flag that has no effect on a model without weights."""
    return f"--{flag} has no effect on {card.name}, which computes nothing"


def describe_threads(compute: ComputeConfig) -> str:
    """Returns the number of threads as a phrase."""
    return "1 thread" if compute.num_threads == 1 else f"{compute.num_threads} threads"


def describe_rounding(compute: ComputeConfig) -> str:
    """Returns a phrase about quantization for the end of a sentence; empty without quantization."""
    names = {
        "stored": "weights in the bits they have",
        "int8": "int8 weights",
        "int4": "int4 weights",
    }
    weights = f", {names[compute.quantization]}" if compute.quantization else ""
    cache = f", {compute.kv_cache_dtype} KV cache" if compute.kv_cache_dtype != "auto" else ""
    return weights + cache


def _check_encoder(options: EngineOptions, card: ModelCard) -> None:
    if options.quantization is not None:
        raise ConfigError(
            f"--quantization {options.quantization}: {card.name} is an encoder, which cannot be quantized"
        )
    if options.kv_cache_dtype != "auto":
        raise ConfigError(
            f"--kv-cache-dtype {options.kv_cache_dtype}: {card.name} is an encoder, which has no KV cache"
        )
