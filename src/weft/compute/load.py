"""`load_runner`: the runner that serves a checkpoint; and what is known of it before it is loaded."""

from dataclasses import replace
from typing import Literal, assert_never, get_args

from weft.compute.echo import EchoRunner
from weft.compute.encoder import EncoderRunner
from weft.compute.native import (
    MAX_THREADS,
    Machine,
    NativeEncoder,
    NativeRunner,
    Rounding,
    available_cpus,
    encoder_bytes,
    resident_bytes,
    usable_paths,
)
from weft.compute.pooler import Pooler
from weft.compute.reference import ReferenceRunner
from weft.compute.runner import Runner
from weft.core.config import ComputeConfig, EngineConfig, EngineOptions, PoolerConfig
from weft.core.errors import ConfigError
from weft.model.card import ModelCard
from weft.model.checkpoint import Checkpoint
from weft.model.encoders.spec import EncoderSpec
from weft.model.spec import EchoSpec
from weft.model.weights import Weights

ComputeName = Literal["auto", "reference", "native"]
Quantization = Literal["int8"]
CacheType = Literal["auto", "int8"]


def choose(options: EngineOptions, card: ModelCard) -> ComputeConfig:
    """Decide what computes; a `ConfigError` names the flag that cannot be followed."""
    if options.compute not in get_args(ComputeName):
        raise ConfigError(_unknown("compute", options.compute, get_args(ComputeName)))
    if options.quantization is not None and options.quantization not in get_args(Quantization):
        raise ConfigError(_unknown("quantization", options.quantization, get_args(Quantization)))
    if options.kv_cache_dtype not in get_args(CacheType):
        raise ConfigError(_unknown("kv-cache-dtype", options.kv_cache_dtype, get_args(CacheType)))
    threads = options.num_threads
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"--num-threads must be between 1 and {MAX_THREADS}, not {threads}")
    if not card.num_parameters:
        _check_echo(options, card)
    compute = _chosen(options.compute)
    if options.enable_lora:
        _check_adapters(card)
    if not card.is_causal:
        _check_encoder(options, card)
    elif threads is not None and compute == "reference":
        raise ConfigError(
            "--num-threads is for the native runner; the reference leaves it to numpy"
        )
    return ComputeConfig(
        compute=compute,
        num_threads=threads or available_cpus(),
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
    )


def _unknown(flag: str, value: str, allowed: tuple[str, ...]) -> str:
    return f'--{flag} "{value}" is unknown; choose from {", ".join(allowed)}'


def _check_echo(options: EngineOptions, card: ModelCard) -> None:
    unset = EngineOptions()
    for name in ("compute", "num_threads", "quantization", "kv_cache_dtype"):
        if getattr(options, name) != getattr(unset, name):
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} has no effect on {card.name}, which computes nothing")


def _check_adapters(card: ModelCard) -> None:
    if not card.is_causal or card.pooling is not None or not card.num_parameters:
        raise ConfigError(f"--enable-lora: {card.name} is served without LoRA adapters")


def _check_encoder(options: EngineOptions, card: ModelCard) -> None:
    if options.quantization is not None:
        raise ConfigError(_not_quantized(options.quantization, card))
    if options.kv_cache_dtype != "auto":
        raise ConfigError(
            f"--kv-cache-dtype {options.kv_cache_dtype}: {card.name} is an encoder, which keeps no keys and values"
        )


def _not_quantized(quantization: str, card: ModelCard) -> str:
    reason = "has no weights" if card.is_causal else "is an encoder, computed as it is stored"
    return f"--quantization {quantization}: {card.name} {reason}"


def load_configured(checkpoint: Checkpoint, config: EngineConfig) -> Runner:
    """The runner that the configuration asks for, loaded."""
    compute = config.compute_config
    assert compute is not None
    return load_runner(
        checkpoint,
        max_model_len=config.model_config.max_model_len,
        compute=compute.compute,
        num_threads=compute.num_threads,
        quantization=compute.quantization,
        kv_cache_dtype=compute.kv_cache_dtype,
    )


def load_runner(
    checkpoint: Checkpoint,
    *,
    max_model_len: int | None = None,
    compute: ComputeName = "auto",
    num_threads: int | None = None,
    quantization: Quantization | None = None,
    kv_cache_dtype: CacheType = "auto",
) -> Runner:
    """Load the weights and build the runner.

    `max_model_len` is the longest sequence that will be served (None: all that the model allows);
    models with a second set of rotary frequencies for long contexts choose by it. "auto" is the
    native runner wherever the CPU has vector instructions for it, else the reference. `num_threads`
    is of native runners (None: the CPUs that this process may use) and of encoders in numpy (None:
    one, because numpy's own threads are not ours to count). `quantization` rounds linear layers to that
    type; encoders and models without weights refuse it. `kv_cache_dtype` matters to decoders only.
    """
    spec, card = checkpoint.spec, checkpoint.card
    if quantization is not None and isinstance(spec, EchoSpec | EncoderSpec):
        raise ConfigError(_not_quantized(quantization, card))
    if isinstance(spec, EchoSpec):
        return EchoRunner(spec)
    if isinstance(spec, EncoderSpec):
        return _load_encoder(checkpoint, spec, _chosen(compute), num_threads)
    length = max_model_len or card.max_position_embeddings
    match _chosen(compute):
        case "reference":
            return ReferenceRunner(
                spec,
                checkpoint.load(),
                max_model_len=length,
                quantization=quantization,
                kv_cache_dtype=kv_cache_dtype,
            )
        case "native":
            return NativeRunner(
                spec,
                checkpoint.map(),
                dtype=card.dtype,
                max_model_len=length,
                rounding=Rounding(quantization, kv_cache_dtype),
                machine=Machine(num_threads=num_threads),
            )
        case never:
            assert_never(never)


def _load_encoder(
    checkpoint: Checkpoint,
    spec: EncoderSpec,
    compute: Literal["reference", "native"],
    num_threads: int | None,
) -> Runner:
    match compute:
        case "reference":
            return EncoderRunner(spec, checkpoint.load(), num_threads=num_threads or 1)
        case "native":
            return NativeEncoder(
                spec,
                checkpoint.map(),
                dtype=checkpoint.card.dtype,
                machine=Machine(num_threads=num_threads),
            )
        case never:
            assert_never(never)


def load_pooler(checkpoint: Checkpoint, config: PoolerConfig | None) -> Pooler | None:
    """What follows the hidden states of a model that was opened for pooling; None for others."""
    pooling = checkpoint.card.pooling
    if pooling is None or config is None:
        return None
    weights = Weights({}) if pooling.head is None else checkpoint.load("head.")
    return Pooler(pooling, weights, normalize=config.normalize)


def describe_runner(checkpoint: Checkpoint, compute: ComputeConfig) -> str:
    """What `load_configured` would compute with, as the start banner says it."""
    if isinstance(checkpoint.spec, EchoSpec):
        return "nothing to compute"
    threads = "1 thread" if compute.num_threads == 1 else f"{compute.num_threads} threads"
    weights = f", {compute.quantization} weights" if compute.quantization else ""
    if compute.kv_cache_dtype != "auto":
        weights += f", {compute.kv_cache_dtype} KV cache"
    match compute.compute:
        case "reference":
            # Encoders in numpy share a step over threads; decoders leave that to numpy.
            shared = f" ({threads})" if isinstance(checkpoint.spec, EncoderSpec) else ""
            return f"computed with numpy{shared}{weights}"
        case "native":
            return f"computed in C++ ({usable_paths()[0]}, {threads}){weights}"
        case never:
            assert_never(never)


def with_resident_sizes(checkpoint: Checkpoint, compute: ComputeConfig) -> Checkpoint:
    """The checkpoint with the memory on its card that its weights and KV take in that runner."""
    spec, card = checkpoint.spec, checkpoint.card
    if isinstance(spec, EchoSpec) or compute.compute == "reference":
        return checkpoint  # cards are made out for the reference
    if isinstance(spec, EncoderSpec):
        return replace(checkpoint, card=replace(card, weight_bytes=encoder_bytes(spec, card.dtype)))
    sizes = resident_bytes(spec, card.dtype, compute.quantization, compute.kv_cache_dtype)
    return replace(
        checkpoint,
        card=replace(
            card,
            weight_bytes=sizes.weights,
            kv_bytes_per_token=sizes.kv_per_token,
            kv_dtype=sizes.kv_dtype,
            adapter=sizes.adapter,
        ),
    )


def _chosen(compute: ComputeName) -> Literal["reference", "native"]:
    if compute != "auto":
        return compute
    return "reference" if usable_paths()[0] == "portable" else "native"
