"""Limits of a step: the number of rows, the memory of these rows, and the time."""

from weft.core.config.defaults import DEFAULT_TARGET_ITL_MS, DEFAULTS, MOST_ROWS
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.engine.settings.given import bounded, check_ms
from weft.model.card import ModelCard
from weft.model.files.checkpoint import Checkpoint
from weft.model.spec import ModelSpec

# Share of the free memory that a step's rows may take if the user does not set their number.
_SHARE = 1 / 32
FLOAT_BYTES = 4
MAX_ROWS = 1 << 20  # limit of the native core


def step_sizes(
    options: EngineOptions,
    card: ModelCard,
    compute: ComputeConfig,
    max_model_len: int,
    free_bytes: int,
    row_bytes: int,
) -> tuple[int, float]:
    """Returns `max_num_batched_tokens` and `target_itl_ms`."""
    is_auto = options.max_num_batched_tokens == "auto"
    most = DEFAULTS["max_num_batched_tokens"]
    if not card.is_causal:
        # With bidirectional attention a prompt cannot be split into chunks.
        most = max(most, max_model_len)
    elif is_auto:
        most = _most_rows(options, compute, free_bytes, row_bytes)
    rows = most if is_auto else bounded(options, "max_num_batched_tokens", MAX_ROWS, default=most)
    if not card.is_causal and rows < max_model_len:
        raise ConfigError(
            f"--max-num-batched-tokens {rows} is less than --max-model-len "
            f"{max_model_len}, and {card.name} takes every prompt in one step"
        )
    target_ms = options.target_itl_ms
    if target_ms is None:
        return rows, DEFAULT_TARGET_ITL_MS if is_auto and card.is_causal else 0.0
    check_ms("target_itl_ms", target_ms)
    if target_ms and card.pooling is not None:
        raise ConfigError(f"--target-itl-ms does nothing: {card.name} generates no text")
    return rows, target_ms


def _most_rows(
    options: EngineOptions, compute: ComputeConfig, free_bytes: int, row_bytes: int
) -> int:
    """Returns the largest useful number of rows: more rows share each read of the weights."""
    least = DEFAULTS["max_num_batched_tokens"]
    if compute.compute == "reference":
        return least  # this backend stores the attention scores of a whole prompt
    if options.kv_transfer_config is not None:
        return least  # a prompt can be fetched while it is computed: smaller steps hand over blocks earlier
    most = MOST_ROWS
    while most > least and most * row_bytes > free_bytes * _SHARE:
        most //= 2
    return most


def row_bytes(checkpoint: Checkpoint) -> int:
    """Returns the peak bytes per row of a step; 0 for a model without computation."""
    spec = checkpoint.spec
    if not isinstance(spec, ModelSpec):
        return 0
    latent = spec.latent
    query = max(spec.num_heads * spec.heads_of(layer)[1] for layer in spec.layers)
    experts = [layer.experts for layer in spec.layers if layer.experts is not None]
    inner = max(spec.mlp_size(layer) for layer in spec.layers)
    element = element_bytes(checkpoint.card.dtype)
    first = query + 2 * max(spec.kv_size_of(layer) for layer in spec.layers)
    if latent is not None:
        first = spec.num_heads * latent.query_size + spec.kv_size
    if spec.has_output_gate:
        first += query
    recurrences = {layer.recurrence for layer in spec.layers if layer.recurrence}
    made = (sum(one.products.values()) for one in recurrences)
    wide = max(first, spec.hidden_size * (3 if spec.state_size else 1), *made)
    mixed = max([query, *(one.inner_size for one in recurrences)])
    convolved = max((one.conv_size for one in recurrences), default=0)
    row = FLOAT_BYTES * (spec.hidden_size + wide + convolved)
    row += element * (spec.hidden_size + 2 * mixed + inner)
    if spec.per_layer_size:
        row += FLOAT_BYTES * len(spec.layers) * spec.per_layer_size + element * spec.per_layer_size
    if latent is not None:  # queries or values of all heads, and the compressed queries
        of_heads = spec.num_heads * max(latent.key_size, latent.value_size)
        row += element * (of_heads + (latent.query_rank or 0))
    if experts:  # for each expert, a row has an input, an inner vector and an output
        of_expert = (element + FLOAT_BYTES) * spec.hidden_size + element * experts[0].inner_size
        row += experts[0].per_token * of_expert
    return row


def element_bytes(dtype: str) -> int:
    """Returns the bytes per element of embeddings and most activations, independent of the quantization."""
    return 2 if dtype == "bfloat16" else FLOAT_BYTES
