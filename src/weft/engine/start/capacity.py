"""`capacity_of`: a model's use of memory, its number of sequences, and an upper bound of its speed on this machine.

The model is not loaded: the backends report sizes, and the machine's rates are measured.
"""

from dataclasses import dataclass

from weft.compute.native import Roofline
from weft.core.config.engine import EngineConfig
from weft.engine.start.fit import Fitted
from weft.engine.step.step_size import FLOAT_BYTES, element_bytes, row_bytes
from weft.engine.weights.weight_store import has_shared_weights
from weft.model.spec import ModelSpec

# Resident memory of a front process before the first request, without weights and pool (docs/memory.md).
FRONT_BYTES = 83 << 20
ENGINE_BYTES = 87 << 20
# Length of the sequences for which speeds and numbers of sequences are reported.
USUAL_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Upper bounds of throughput in tokens per second: of one answer, of `num_sequences` answers together, of
    prompts.
    """

    one_answer: float
    num_sequences: int
    together: float
    prompts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Memory in bytes, and numbers of tokens and sequences. `step_bytes` are the activations of the largest step.

    Values are per engine, of which there are `num_engines`. Two values differ: `num_copies` is the number of copies of
    the weights, and `process_bytes` is the memory of all engines' processes together. The pool holds `num_full`
    sequences of the whole context, or `num_usual` sequences of `usual_tokens` tokens; at most `max_num_seqs` sequences
    run at the same time in either case.
    """

    num_engines: int
    num_copies: int
    weight_bytes: int
    draft_weight_bytes: int  # of the draft model
    adapter_bytes: int
    kv_bytes_per_token: int
    state_bytes_per_block: int
    pool_bytes: int
    num_state_slots: int
    state_pool_bytes: int
    step_bytes: int
    process_bytes: int
    free_bytes: int
    num_blocks: int
    block_size: int
    max_total_tokens: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_full: int
    usual_tokens: int
    num_usual: int
    speed: Speed | None

    @property
    def total_bytes(self) -> int:
        """Memory of all engines together, in bytes."""
        engine = self.adapter_bytes + self.pool_bytes + self.state_pool_bytes + self.step_bytes
        weights = self.num_copies * (self.weight_bytes + self.draft_weight_bytes)
        return weights + self.num_engines * engine + self.process_bytes


def capacity_of(fitted: Fitted, roofline: Roofline | None = None) -> Capacity:
    """Returns the memory and capacity of a fitted model, with speeds if `roofline`, the machine's limits, is given."""
    config, card = fitted.config, fitted.checkpoint.card
    cache, scheduler, lora = config.cache_config, config.scheduler_config, config.lora_config
    draft = None if scheduler.speculation is None else scheduler.speculation.draft
    adapters = 0
    if lora is not None and card.adapter is not None:
        adapters = lora.max_loras * card.adapter.of(lora.max_lora_rank)
    usual = min(USUAL_TOKENS, config.model_config.max_model_len)
    num_usual = _num_sequences(config, usual)
    num_engines = config.data_parallel_size
    return Capacity(
        num_engines=num_engines,
        num_copies=1 if has_shared_weights(config) else num_engines,
        weight_bytes=card.weight_bytes,
        draft_weight_bytes=0 if draft is None else draft.weight_bytes,
        adapter_bytes=adapters,
        kv_bytes_per_token=(cache.block_bytes - card.state_bytes_per_block) // cache.block_size,
        state_bytes_per_block=card.state_bytes_per_block,
        pool_bytes=cache.num_blocks * cache.block_bytes,
        num_state_slots=cache.num_state_slots,
        state_pool_bytes=0 if cache.states is None else cache.states.num_bytes,
        step_bytes=_step_bytes(fitted),
        process_bytes=FRONT_BYTES + num_engines * ENGINE_BYTES,
        free_bytes=fitted.free_bytes,
        num_blocks=cache.num_blocks,
        block_size=cache.block_size,
        max_total_tokens=cache.max_total_tokens,
        max_model_len=config.model_config.max_model_len,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        num_full=_num_sequences(config, config.model_config.max_model_len),
        usual_tokens=usual,
        num_usual=num_usual,
        speed=None if roofline is None else _speed(fitted, roofline, num_usual, usual),
    )


def _num_sequences(config: EngineConfig, num_tokens: int) -> int:
    cache = config.cache_config
    return cache.num_blocks // -(-num_tokens // cache.block_size)


def _step_bytes(fitted: Fitted) -> int:
    """Returns the bytes of the rows that one layer of the largest step needs at the same time, and of the final
    logits.
    """
    spec, config = fitted.checkpoint.spec, fitted.config
    if not isinstance(spec, ModelSpec):
        return 0
    rows = config.scheduler_config.max_num_batched_tokens
    logits = spec.vocab_size * min(rows, config.scheduler_config.max_num_seqs) * FLOAT_BYTES
    return rows * row_bytes(fitted.checkpoint) + (logits if spec.has_head and spec.is_causal else 0)


def _speed(fitted: Fitted, roofline: Roofline, num_sequences: int, num_tokens: int) -> Speed | None:
    """Returns bounds from unavoidable work: a step reads every weight once, a token multiplies every weight once.

    Experts that a token does not use are not counted: the bound is for tokens that all use the same experts.
    """
    card, spec = fitted.checkpoint.card, fitted.checkpoint.spec
    if not isinstance(spec, ModelSpec):
        return None
    table = spec.vocab_size * spec.hidden_size
    has_head = spec.has_head and spec.is_causal
    # Only some rows of the embedding table are read, unless the head is the same table.
    num_read = card.num_parameters - (0 if spec.tied_head and has_head else table)
    num_inner = card.num_parameters - table * (2 if has_head and not spec.tied_head else 1)
    read_bytes = card.weight_bytes - (card.num_parameters - num_read) * element_bytes(card.dtype)
    idle = card.num_idle_parameters
    idle_bytes = read_bytes * idle / num_read

    def step_s(num_rows: int, kv_tokens: int) -> float:
        moved = read_bytes - idle_bytes + num_rows * kv_tokens * card.kv_bytes_per_token
        reading, computing = moved / roofline.bytes_per_s, 2 * (num_read - idle) * num_rows
        return max(reading, computing / roofline.operations_per_s)

    num_rows = max(1, min(num_sequences, fitted.config.scheduler_config.max_num_seqs))
    return Speed(
        one_answer=1 / step_s(1, num_tokens),
        num_sequences=num_rows,
        together=num_rows / step_s(num_rows, num_tokens),
        prompts=roofline.operations_per_s / (2 * (num_inner - idle)),
    )
