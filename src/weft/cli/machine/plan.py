"""`weft plan`: prints a model's memory use, the context that fits, and the expected speed."""

from collections.abc import Iterator, Sequence

from weft import __version__
from weft.cli.machine.serve_line import read_serve_line
from weft.cli.serving.banner import describe_parameters
from weft.cli.serving.finding import find
from weft.cli.shown import print_block, print_json
from weft.compute.backends import backend_of
from weft.compute.native import Roofline, measure_roofline
from weft.core.errors import ConfigError
from weft.core.observe.readable import format_bytes
from weft.engine.start.capacity import Capacity, capacity_of
from weft.engine.start.fit import Fitted

_MEASURED_BYTES = (
    1 << 30
)  # the measurement reads 256 MiB; with less memory free than this, it would disturb other programs


def run(arguments: Sequence[str], *, measure: bool, json: bool) -> int:
    """Finds the model and chooses its settings like `weft serve` with the same arguments, without loading weights;
    prints the result and returns the exit status.
    """
    line = read_serve_line(arguments)
    if line.options.remote is not None:
        raise ConfigError("--remote runs no engine here; there is nothing to plan")
    if line.model is None or line.more:
        raise ConfigError("plan takes one model at a time: give MODEL, without the others")
    fitted = find(line.model, line.options)
    roofline = _measure(fitted) if measure else None
    capacity = capacity_of(fitted, roofline)
    model_config, card = fitted.config.model_config, fitted.checkpoint.card
    if json:
        model = {
            "model": model_config.model,
            "num_parameters": card.num_parameters,
            "num_active_parameters": card.num_active_parameters,
            "compute": _computed(fitted),
        }
        print_json({**model, "capacity": capacity, "measured": roofline})
        return 0
    title = f"Weft {__version__} would serve {model_config.model} ({describe_parameters(card)}, {card.dtype}) with"
    compute = ("compute", _computed(fitted))
    print_block(title, [*_memory_rows(capacity), compute, *_speed_rows(capacity, roofline)])
    return 0


def _measure(fitted: Fitted) -> Roofline | None:
    compute = fitted.config.compute_config
    if compute is None or compute.compute != "native" or fitted.free_bytes < _MEASURED_BYTES:
        return None
    return measure_roofline(fitted.checkpoint.card.dtype, compute.num_threads, compute.quantization)


def _computed(fitted: Fitted) -> str:
    compute = fitted.config.compute_config
    assert compute is not None, "it is fitted to this machine"
    return backend_of(fitted.config).describe(fitted.checkpoint.card, compute)


def _memory_rows(capacity: Capacity) -> Iterator[tuple[str, str]]:
    is_several = capacity.num_engines > 1
    if is_several:
        yield "engines", f"{capacity.num_engines}, each with the values below"
    whose = "all engine processes" if is_several else "the engine process"
    copies = ", shared by all" if is_several and capacity.num_copies == 1 else ""
    yield "weights", format_bytes(capacity.weight_bytes) + copies
    if capacity.draft_weight_bytes:
        yield (
            "draft",
            f"{format_bytes(capacity.draft_weight_bytes)} of weights{copies}; its KV is in the pool",
        )
    if capacity.adapter_bytes:
        yield "adapters", format_bytes(capacity.adapter_bytes)
    if capacity.kv_bytes_per_token:
        states = capacity.state_bytes_per_block
        beside = f" and {format_bytes(states)} of states a block" if states else ""
        yield (
            "KV pool",
            (
                f"{format_bytes(capacity.pool_bytes)} = {capacity.num_blocks:,} blocks of "
                f"{capacity.block_size} = {capacity.max_total_tokens:,} tokens, "
                f"{format_bytes(capacity.kv_bytes_per_token)} a token{beside}"
            ),
        )
    if capacity.num_state_slots:
        yield (
            "states",
            (
                f"{format_bytes(capacity.state_pool_bytes)} = {capacity.num_state_slots:,} slots, one for each "
                "sequence that runs, and others for the prefix cache"
            ),
        )
    yield (
        "activations",
        (
            f"about {format_bytes(capacity.step_bytes)} in a step of "
            f"{capacity.max_num_batched_tokens:,} tokens"
        ),
    )
    yield (
        "processes",
        f"about {format_bytes(capacity.process_bytes)}: the front process and {whose}",
    )
    left = capacity.free_bytes - capacity.total_bytes
    state = f"{format_bytes(left)} left" if left >= 0 else f"{format_bytes(-left)} too much"
    yield (
        "together",
        f"{format_bytes(capacity.total_bytes)} of {format_bytes(capacity.free_bytes)} free: {state}",
    )
    if capacity.kv_bytes_per_token:
        yield (
            "fits",
            (
                f"{capacity.num_full:,} sequences of {capacity.max_model_len:,} tokens, "
                f"{capacity.num_usual:,} of {capacity.usual_tokens:,}; at most {capacity.max_num_seqs:,} run at once"
            ),
        )


def _speed_rows(capacity: Capacity, roofline: Roofline | None) -> Iterator[tuple[str, str]]:
    speed = capacity.speed
    if roofline is None or speed is None:
        return
    yield (
        "measured",
        (
            f"{roofline.bytes_per_s / 1e9:,.1f} GB/s read, "
            f"{roofline.operations_per_s / 1e9:,.0f} G operations/s multiplied, on an idle machine"
        ),
    )
    if capacity.kv_bytes_per_token:
        yield (
            "at most",
            (
                f"{speed.one_answer:,.0f} tokens/s of one answer, {speed.together:,.0f} of "
                f"{speed.num_sequences:,} together, at {capacity.usual_tokens:,} tokens each"
            ),
        )
    yield ("", f"{speed.prompts:,.0f} tokens/s of prompts")
