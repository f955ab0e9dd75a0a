"""`Sequence`: one answer being made, which only the scheduler changes."""

import sys
from array import array
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Any

from weft.compute.pooler import Collected
from weft.compute.protocols.sampler import Choice
from weft.core.values.params import PARAMETERS
from weft.core.values.types import (
    FinishReason,
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

# What of a choice changes a row, but for the temperature.
_CHANGING = tuple(
    name for name in Choice.__struct_fields__ if name in PARAMETERS and name != "temperature"
)
_changes = attrgetter(*_CHANGING)
_NO_CHANGES = tuple(PARAMETERS[name].default for name in _CHANGING)


class SequenceStatus(Enum):
    """Where a sequence is."""

    COMPILING = "compiling"  # its grammar is being built
    FETCHING = "fetching"  # blocks of it come from the second tier
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One of the `n` answers of a request.

    Computed tokens chase `num_tokens`: a token is planned when a step takes it up and computed when
    that step is committed. While a step is in flight, the token that it samples counts as pending: it can be
    planned before it is known. `order` sorts sequences by (priority, arrival): the smallest runs first,
    the largest is preempted first. `grammar`, `repetition` and `reasoning` follow the output, token by
    token, and know it already when a preempted sequence runs again. `collected` holds hidden states
    for a pooling request.
    """

    request: Request
    index: int
    order: tuple[int, int]
    token_ids: list[int] = field(default_factory=list)
    # 32 bits, as a batch has them.
    block_ids: "array[int]" = field(default_factory=lambda: array("i"))
    block_hashes: list[bytes] = field(default_factory=list)
    num_registered_blocks: int = 0
    state_slot: int | None = None  # where the state after the planned tokens lies, or will
    state_source: int | None = None  # the snapshot from which the planned step goes on
    last_snapshot: bytes | None = None  # of its answer, by block hash: the next takes its place
    num_planned_tokens: int = 0
    num_computed_tokens: int = 0
    num_pending_tokens: int = 0  # sampled by a step in flight, and not known here yet: none or one
    num_cached_tokens: int | None = None
    has_fetched: bool = False  # since it last ran
    num_fetched_tokens: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    status: SequenceStatus = SequenceStatus.WAITING
    num_scored_tokens: int = 0  # of the prompt
    grammar: GrammarState | None = None
    repetition: RepetitionDetector | None = None
    reasoning: ReasoningTracker | None = None
    draft_state: NgramLookup | DraftKv | None = None  # its drafter's
    queued_at: float | None = None  # these four are stamped by the stopwatch, on its clock
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    collected: Collected | None = None
    # What follows from the request, and every step reads: its parameters, how many tokens the caller
    # gave and how many there may be with the answer's, the tokens that end it, and whether parameters
    # leave rows as they are but for the temperature.
    params: SamplingParams = field(init=False)
    num_prompt_tokens: int = field(init=False)
    max_num_tokens: int = field(init=False)
    temperature: float = field(init=False)
    end_token_ids: frozenset[int] = field(init=False)
    is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.params = params = request.params
        self.num_prompt_tokens = len(request.prompt_token_ids)
        most = sys.maxsize if params.max_tokens is None else params.max_tokens
        self.max_num_tokens = self.num_prompt_tokens + most
        self.temperature = 0.0 if params.is_greedy else params.temperature
        eos_token_ids = () if params.ignore_eos else request.eos_token_ids
        self.end_token_ids = frozenset((*eos_token_ids, *(params.stop_token_ids or ())))
        self.is_plain = _is_plain(params) and not request.bad_token_ids

    @classmethod
    def of(
        cls,
        request: Request,
        index: int,
        order: tuple[int, int],
    ) -> "Sequence":
        """The answer `index` of a request, of which nothing is computed yet."""
        repetition = request.params.repetition_detection
        is_watched = repetition is not None and repetition.max_pattern_size
        return cls(
            request=request,
            index=index,
            order=order,
            token_ids=list(request.prompt_token_ids),
            repetition=RepetitionDetector(repetition) if repetition and is_watched else None,
        )

    def output(self, **delta: Any) -> SequenceOutput:
        """What is new of it, with what goes with every output."""
        return SequenceOutput(
            engine_id=self.request.engine_id,
            index=self.index,
            num_cached_tokens=self.num_cached_tokens or 0,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            **delta,
        )

    def token_output(self, token_id: int) -> SequenceOutput:
        """`output` of one token and nothing else, as most are: without keywords handed on, in a third of the time."""
        return SequenceOutput(
            engine_id=self.request.engine_id,
            index=self.index,
            token_ids=[token_id],
            num_cached_tokens=self.num_cached_tokens or 0,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )

    @property
    def number(self) -> int:
        """Its place in the order of arrival."""
        return self.order[1]

    @property
    def seed(self) -> int:
        """The n answers of one request differ in their seed, and in nothing else."""
        return (self.request.seed + self.index) & _SEED_MASK

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """Tokens sampled so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def seen_token_ids(self) -> list[int]:
        """Prompt and output so far, without what only stands for embeddings."""
        seen, before = [], 0
        for embeds in self.request.prompt_embeds:
            seen += self.token_ids[before : embeds.start]
            before = embeds.start + embeds.num_tokens
        return seen + self.token_ids[before:] if before else self.token_ids

    @property
    def ruling_grammar(self) -> GrammarState | None:
        """What the next token must obey; nothing while reasoning is open that comes before it."""
        is_later = self.reasoning is not None and not self.params.grammar_from_first_token
        return None if is_later and self.is_reasoning else self.grammar

    @property
    def is_reasoning(self) -> bool:
        """Whether the reasoning that the answer began with is still open."""
        return self.reasoning is not None and not self.reasoning.is_over

    @property
    def forced_token_id(self) -> int | None:
        """The token that must come next, because reasoning has taken its budget; mostly None."""
        return None if self.reasoning is None else self.reasoning.forced_token_id

    @property
    def has_started(self) -> bool:
        """Whether it was ever scheduled; a preempted sequence has."""
        return self.num_cached_tokens is not None

    @property
    def skips_cache_read(self) -> bool:
        """Prompt log-probabilities need every prompt row computed, so none may come from the cache.

        Nor may the rows that a pooled result is made of; the last one is always computed.
        """
        pooling = self.request.pooling
        if pooling is not None:
            is_last = self.request.pooling_kind is PoolingKind.LAST
            return bool(pooling.skip_reading_prefix_cache) or not is_last
        params = self.params
        return params.skip_reading_prefix_cache or self.wants_prompt_logprobs

    @property
    def ends_its_scores(self) -> bool:
        """Whether its first token has just come, with which the last scores of its prompt are emitted."""
        return self.params.prompt_logprobs is not None and self.num_output_tokens == 1

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether some prompt position has still to be scored; they are never scored twice."""
        is_requested = self.params.prompt_logprobs is not None
        return is_requested and self.num_scored_tokens < self.num_prompt_tokens - 1

    def append(self, token_id: int, max_model_len: int) -> tuple[FinishReason | None, int | None]:
        """Take in the next token: why the answer ends with it and, for a stop token that is named, its id.

        Grammar, reasoning and repetition follow here. `GrammarFailed` if the grammar cannot.
        """
        self.token_ids.append(token_id)
        params = self.params
        if token_id in self.end_token_ids:
            is_first_eos = not params.ignore_eos and token_id in self.request.eos_token_ids[:1]
            return FinishReason.STOP, None if is_first_eos else token_id
        if self.grammar is not None or self.reasoning is not None:
            grammar = self.ruling_grammar
            if self.reasoning is not None and not self.reasoning.is_over:
                self.reasoning.push(token_id)
            if grammar is not None:
                grammar.advance(token_id)
                if grammar.is_over:
                    return FinishReason.STOP, None
        num_tokens = len(self.token_ids)
        if num_tokens >= self.max_num_tokens or num_tokens >= max_model_len:
            return FinishReason.LENGTH, None
        if self.repetition is not None:
            is_repeating = self.repetition.push(token_id)
            if is_repeating and self.num_output_tokens >= params.min_tokens:
                return FinishReason.REPETITION, None
        return None, None


def _is_plain(params: SamplingParams) -> bool:
    """Whether rows are drawn from as they are, by temperature alone, and nothing else is known of them."""
    return (
        params.logprobs is None
        and params.allowed_token_ids is None
        and not params.logit_bias
        and bool(_changes(params) == _NO_CHANGES)
    )
