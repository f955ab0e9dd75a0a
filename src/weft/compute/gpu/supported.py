"""Models and options that the GPU backend supports, and errors that name unsupported ones."""

from collections.abc import Iterator
from importlib.util import find_spec

from weft.compute.cpu import QUANTIZATIONS, unknown
from weft.compute.gpu.card import Card, is_interpreted
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.extras import how_to_install
from weft.model.card import ModelCard
from weft.model.spec import ModelSpec
from weft.model.switches import Activation

LEAST_CAPABILITY = (8, 0)
TYPES = ("bfloat16", "float16")
_MOST_HEAD_DIM = 256
_MOST_HEADS_OF_KEYS = 64  # maximum number of query heads that share one key head
_PACKAGES = ("torch", "triton")


def model_refusal(card: ModelCard) -> str | None:
    """Returns the reason why a model is not supported on a GPU; None if it is supported."""
    return next(_model_refusals(card), None)


def _model_refusals(card: ModelCard) -> Iterator[str]:
    if not card.is_causal:
        yield "encoders are not supported on a GPU yet"
    if card.keeps_latents:
        yield "latent attention is not supported on a GPU yet"
    if card.keeps_states:
        yield "layers with states (convolutions, Mamba, gated delta nets) are not supported on a GPU yet"
    if card.dtype not in TYPES and not is_interpreted():
        yield f"a GPU computes in {' or '.join(TYPES)}, not in {card.dtype}; give --dtype bfloat16"


def check_spec(spec: ModelSpec, name: str) -> None:
    """Raises `ConfigError` for a model that the kernels do not support."""
    refusal = spec_refusal(spec)
    if refusal is not None:
        raise ConfigError(f"--compute gpu: {name} has {refusal}; give --compute native")


def spec_refusal(spec: ModelSpec) -> str | None:
    """Returns the part of a model that the kernels do not support; None if they support all of the model."""
    # First: heads of other sizes belong to such layers.
    if not spec.has_like_layers:
        return "layers with heads, keys or inputs of their own, which are not supported yet"
    group = spec.num_heads // spec.num_kv_heads
    if spec.head_dim > _MOST_HEAD_DIM or group > _MOST_HEADS_OF_KEYS:
        return (
            f"heads of size {spec.head_dim}, with {group} query heads per key head; at most {_MOST_HEAD_DIM} and "
            f"{_MOST_HEADS_OF_KEYS} are supported"
        )
    refused = {
        "layers without an MLP": not all(layer.has_mlp for layer in spec.layers),
        "the activation xIELU": spec.activation is Activation.XIELU,
        "gates on its attention": spec.has_output_gate,
        "norms of values": spec.has_value_norm,
        "factors of its layers": spec.has_layer_scales,
        "cross-attention": spec.num_cross_keys > 0,
    }
    found = next((feature for feature, is_there in refused.items() if is_there), None)
    return None if found is None else f"{found}, which are not supported yet"


def check_card(card: Card | None) -> None:
    """Raises `ConfigError` for a machine without a suitable card, or without the needed packages."""
    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise ConfigError(f"--compute gpu needs {' and '.join(missing)}: {how_to_install('gpu')}")
    if card is None:
        raise ConfigError("--compute gpu: this machine shows no NVIDIA card (see nvidia-smi)")
    if card.capability < LEAST_CAPABILITY:
        has, least = (
            ".".join(map(str, version)) for version in (card.capability, LEAST_CAPABILITY)
        )
        raise ConfigError(
            f"--compute gpu needs a card of compute capability {least} or later; {card.name} has {has}"
        )


def check_options(options: EngineOptions, card: ModelCard) -> None:
    """Raises `ConfigError` for flags that an engine on a GPU does not support."""
    if options.quantization not in (None, *QUANTIZATIONS):
        raise ConfigError(unknown("quantization", options.quantization, QUANTIZATIONS))
    refused = {
        "--kv-cache-dtype": options.kv_cache_dtype != "auto",
        "--num-threads": options.num_threads is not None,
        "--enable-lora": options.enable_lora,
        "--kv-transfer-config": options.kv_transfer_config is not None,
        "--data-parallel-size": options.data_parallel_size > 1,
        "--enable-elastic-ep": options.enable_elastic_ep,
    }
    for flag, is_given in refused.items():
        if is_given:
            raise ConfigError(
                f"{flag} is not available with --compute gpu yet; leave it out, or give --compute native"
            )
    refusal = model_refusal(card)
    if refusal is not None:
        raise ConfigError(f"--compute gpu: {card.name}: {refusal}")
