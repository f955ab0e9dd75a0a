"""`Sequence`: an answer that is being generated; only the scheduler changes it."""

import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any

from weft.compute.pooler import Collected
from weft.compute.protocols.runner import FloatArray, IntArray, Memory
from weft.compute.protocols.sampler import Choice
from weft.core.values.kv_transfer import Resumption
from weft.core.values.media import SpeechRules
from weft.core.values.params import PARAMETERS, WIDE
from weft.core.values.pictures import PlacedItem
from weft.core.values.types import (
    FinishReason,
    LogprobRow,
    PoolingKind,
    Request,
    SamplingParams,
    SequenceOutput,
)
from weft.engine.constraints.grammar import GrammarState
from weft.engine.constraints.reasoning_tracker import ReasoningTracker
from weft.engine.scheduling.drafts import DraftKv, NgramLookup
from weft.engine.scheduling.repetition import RepetitionDetector

_SEED_MASK = (1 << 64) - 1
# Subtracted from the numbers of resumed sequences, which therefore come before all new ones.
BEFORE_NEW = 1 << 48

# Sampling parameters that change a row of logits, or need its logprobs: all except those of the random choice.
_changes = attrgetter(
    *(
        name
        for name in Choice.__struct_fields__
        if name in PARAMETERS and name != "temperature" and name not in WIDE
    ),
    *("allowed_token_ids", "logit_bias", "logprobs", "min_tokens"),
)
_NO_CHANGES = _changes(SamplingParams())
_narrowing = attrgetter(*WIDE)
_NO_NARROWING = _narrowing(SamplingParams())


@dataclass(slots=True, eq=False)
class ItemOutput:
    """Output of the tower for one picture or sound. The arrays are None until a step has computed them.

    `embeds` are [rows, hidden], and `deep_embeds` [levels, rows, hidden]; a sound has a `memory` instead. If the tower
    failed, the arrays are zeros and `error` is the message for every request that holds the output.
    """

    item: PlacedItem
    num_bytes: int
    num_holders: int = 0
    embeds: FloatArray | None = None
    deep_embeds: FloatArray | None = None
    memory: Memory | None = None
    error: str | None = None

    @property
    def is_computed(self) -> bool:
        """True once a step has computed the output, and the tower did not fail."""
        return (self.embeds is not None or self.memory is not None) and self.error is None


class SequenceStatus(Enum):
    """State of a sequence."""

    COMPILING = "compiling"  # its grammar is being built
    FETCHING = "fetching"  # its blocks are being fetched
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One of the `n` answers of a request.

    A token counts as planned when a step includes it, and as computed when that step is committed, until all
    `num_tokens` are computed. While a step is in flight, the token that it samples is pending: it can be planned
    before it is known. `order` sorts sequences by (priority, arrival): the smallest runs first, the largest is
    preempted first. `grammar`, `repetition` and `reasoning` follow the output token by token, and keep their state
    when a sequence is preempted. `collected` holds hidden states of a pooling request.
    """

    request: Request
    index: int
    order: tuple[int, int]
    token_ids: list[int] = field(default_factory=list)  # the prompt, then the sampled tokens
    block_ids: "array[int]" = field(init=False)  # 32-bit integers, as in a batch
    block_hashes: list[bytes] = field(default_factory=list)
    num_registered_blocks: int = 0
    state_slot: int | None = None  # slot of the state after the planned tokens
    state_source: int | None = None  # slot of the snapshot that the planned step reads
    # Block hash of the answer's latest snapshot, which the answer's next snapshot replaces
    last_snapshot: bytes | None = None
    num_planned_tokens: int = 0
    num_computed_tokens: int = 0
    num_pending_tokens: int = 0  # tokens that a step in flight samples: 0 or 1
    num_given_tokens: int = 0  # output tokens that another engine has sampled
    num_cached_tokens: int | None = None
    has_fetched: bool = False  # True if blocks were fetched since the sequence last ran
    num_fetched_tokens: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    status: SequenceStatus = SequenceStatus.WAITING
    num_scored_tokens: int = 0  # prompt tokens that have logprobs
    grammar: GrammarState | None = None
    repetition: RepetitionDetector | None = None
    reasoning: ReasoningTracker | None = None
    draft_state: NgramLookup | DraftKv | None = None  # owned by the drafter
    queued_at: float | None = None  # these four times are read by the stopwatch
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    collected: Collected | None = None
    # Tower outputs that the sequence holds, by the index of the picture in `request.items`
    outputs: dict[int, ItemOutput] = field(default_factory=dict)
    # For models with several RoPE positions a token: those of the prompt, [tokens, 3], and the offset of later tokens
    rope: tuple[IntArray, int] | None = None
    sees_items_whole: bool = False  # True if all rows of a picture attend to each other
    # Values of the request that every step reads: its params, the number of prompt tokens, the maximum number of prompt
    # and output tokens, the tokens that end the answer, whether tokens are drawn from unchanged rows, without logprobs
    # and from the first token on, whether fewer tokens than all may be drawn, whether the model's output for rows
    # before the last is read, and whether there is more than tokens to compute with.
    params: SamplingParams = field(init=False)
    num_prompt_tokens: int = field(init=False)
    max_num_tokens: int = field(init=False)
    temperature: float = field(init=False)
    end_token_ids: frozenset[int] = field(init=False)
    speech_rules: SpeechRules | None = field(init=False)  # of a transcript
    is_plain: bool = field(init=False)
    is_narrowed: bool = field(init=False)
    reads_prompt_rows: bool = field(init=False)
    has_extras: bool = field(init=False)  # embeddings, pictures, a pair of texts or an adapter

    @classmethod
    def of(cls, request: Request, order: tuple[int, int], queued_at: float) -> "list[Sequence]":
        """Makes the sequences of a request that another engine has not finished; the first gets `order`."""
        priority, number = order
        indexes: Iterable[int] = range(request.params.n)
        if request.resumption is not None:
            number -= BEFORE_NEW
            indexes = request.resumption.open_indexes
        return [cls(request, i, (priority, number + i), queued_at=queued_at) for i in indexes]

    def __post_init__(self) -> None:
        request = self.request
        self.token_ids = self.token_ids or list(request.prompt_token_ids)
        if request.resumption is not None:
            self._take_given_tokens(request.resumption)
        self.block_ids = array("i")
        self.params = params = request.params
        self.num_prompt_tokens = len(request.prompt_token_ids)
        most = sys.maxsize if params.max_tokens is None else params.max_tokens
        self.max_num_tokens = self.num_prompt_tokens + most
        self.temperature = 0.0 if params.is_greedy else params.temperature
        eos_token_ids = () if params.ignore_eos else request.eos_token_ids
        self.end_token_ids = frozenset((*eos_token_ids, *(params.stop_token_ids or ())))
        self.speech_rules = request.items[0].rules if request.items else None
        has_rules = bool(request.bad_token_ids) or self.speech_rules is not None
        self.is_plain = not has_rules and bool(_changes(params) == _NO_CHANGES)
        self.is_narrowed = bool(_narrowing(params) != _NO_NARROWING)
        self.reads_prompt_rows = request.pooling is not None or params.prompt_logprobs is not None
        extras = (request.prompt_embeds, request.items, request.token_type_ids, request.lora_id)
        self.has_extras = any(extras)
        repetition = params.repetition_detection
        if repetition is not None and repetition.max_pattern_size:
            self.repetition = RepetitionDetector(repetition)
            for token_id in self.output_token_ids:
                self.repetition.push(token_id)

    def _take_given_tokens(self, resumption: Resumption) -> None:
        """Takes the tokens that another engine has sampled for this answer."""
        given = resumption.answers[self.index]
        assert given is not None, "an answer that has ended is no sequence"
        self.token_ids += given.token_ids
        self.num_given_tokens = len(given.token_ids)
        self.num_draft_tokens = given.num_draft_tokens
        self.num_accepted_tokens = given.num_accepted_tokens
        if given.token_ids:  # the output with the first token carried the last prompt logprobs
            self.num_scored_tokens = max(0, len(self.request.prompt_token_ids) - 1)

    def output(self, **delta: Any) -> SequenceOutput:
        """Returns an output with `delta`, and the counts that every output has."""
        return SequenceOutput(
            engine_id=self.request.engine_id,
            index=self.index,
            num_cached_tokens=self.num_cached_tokens or 0,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            **delta,
        )

    @property
    def number(self) -> int:
        """Position in the order of arrival."""
        return self.order[1] % BEFORE_NEW

    @property
    def seed(self) -> int:
        """Random seed of this answer. The n answers of a request differ only in their seeds."""
        return (self.request.seed + self.index) & _SEED_MASK

    @property
    def num_tokens(self) -> int:
        """Number of prompt and output tokens so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """Tokens sampled so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def seen_token_ids(self) -> list[int]:
        """Prompt and output tokens so far, without the placeholder tokens of prompt embeddings."""
        seen, before = [], 0
        for embeds in self.request.prompt_embeds:
            seen += self.token_ids[before : embeds.start]
            before = embeds.start + embeds.num_tokens
        return seen + self.token_ids[before:] if before else self.token_ids

    @property
    def ruling_grammar(self) -> GrammarState | None:
        """Grammar that constrains the next token. None during the reasoning before a constrained answer."""
        is_later = self.reasoning is not None and not self.params.grammar_from_first_token
        return None if is_later and self.is_reasoning else self.grammar

    @property
    def is_reasoning(self) -> bool:
        """True if the answer is still in its reasoning part."""
        return self.reasoning is not None and not self.reasoning.is_over

    @property
    def forced_token_id(self) -> int | None:
        """Next token, if the reasoning budget is spent and forces it; else None."""
        return None if self.reasoning is None else self.reasoning.forced_token_id

    @property
    def has_started(self) -> bool:
        """True if the sequence has run, even if it was preempted since, or another engine ran it."""
        return self.num_cached_tokens is not None or self.request.resumption is not None

    @property
    def skips_cache_read(self) -> bool:
        """True if the sequence must compute all prompt rows and read none from the prefix cache, as prompt logprobs
        require.

        Pooling needs every row that it pools. Last-token pooling needs only the prompt's last row, which is never read
        from the cache.
        """
        pooling = self.request.pooling
        if pooling is not None:
            is_last = self.request.pooling_kind is PoolingKind.LAST
            return bool(pooling.skip_reading_prefix_cache) or not is_last
        return self.params.skip_reading_prefix_cache or self.wants_prompt_logprobs

    @property
    def ends_its_scores(self) -> bool:
        """True if the output with the answer's first token must carry the last prompt logprobs. Only the first answer
        of a request emits prompt logprobs.
        """
        is_scored = self.params.prompt_logprobs is not None and self.index == 0
        return is_scored and self.num_output_tokens == 1

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True if the request has prompt logprobs and some prompt position has none yet."""
        is_requested = self.params.prompt_logprobs is not None
        return is_requested and self.num_scored_tokens < self.num_prompt_tokens - 1

    def take_scores(self, first: int, rows: list[LogprobRow]) -> list[LogprobRow]:
        """Counts the prompt tokens that `rows` score, from position `first` on; returns the rows that the answer emits.

        After a preemption, prompt positions are scored again; scores that were emitted already are left out. Only the
        first answer of a request emits prompt logprobs.
        """
        scored = rows[self.num_scored_tokens - first :]
        self.num_scored_tokens += len(scored)
        return scored if self.index == 0 else []

    def attach(self, grammar: GrammarState | None, reasoning: ReasoningTracker | None) -> None:
        """Makes the answer follow a grammar and reasoning. Raises `GrammarFailed` if the grammar does not accept the
        tokens that the answer has already.
        """
        self.grammar, self.reasoning = grammar, reasoning
        for token_id in self.output_token_ids:
            self._follow(token_id)

    def _follow(self, token_id: int) -> GrammarState | None:
        """Advances grammar and reasoning by a token of the answer. Returns the grammar that constrained the token."""
        grammar = self.ruling_grammar
        if self.reasoning is not None and not self.reasoning.is_over:
            self.reasoning.push(token_id)
        if grammar is not None:
            grammar.advance(token_id)
        return grammar

    def append(self, token_id: int, max_model_len: int) -> tuple[FinishReason | None, int | None]:
        """Appends the next token. If the answer ends, returns the finish reason, and the id of the stop token unless
        this is the first EOS token.

        Advances grammar, reasoning and repetition detection. Raises `GrammarFailed` if the grammar does not accept the
        token.
        """
        self.token_ids.append(token_id)
        params = self.params
        if token_id in self.end_token_ids:
            is_first_eos = not params.ignore_eos and token_id in self.request.eos_token_ids[:1]
            return FinishReason.STOP, None if is_first_eos else token_id
        if self.grammar is not None or self.reasoning is not None:
            grammar = self._follow(token_id)
            if grammar is not None and grammar.is_over:
                return FinishReason.STOP, None
        num_tokens = len(self.token_ids)
        if num_tokens >= self.max_num_tokens or num_tokens >= max_model_len:
            return FinishReason.LENGTH, None
        if self.repetition is not None:
            is_repeating = self.repetition.push(token_id)
            if is_repeating and self.num_output_tokens >= params.min_tokens:
                return FinishReason.REPETITION, None
        return None, None
