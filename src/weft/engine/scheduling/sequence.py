"""`Sequence`: one answer being made, which only the scheduler changes; `Stopwatch`, which stamps it; and `StepSizes`,
how many rows of prompts a step has beside those of streams.
"""

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from operator import attrgetter
from typing import Any

from weft.compute.pooler import Collected
from weft.compute.sampler import Choice
from weft.core.config import SchedulerConfig
from weft.core.defaults import DEFAULTS
from weft.core.params import PARAMETERS
from weft.core.request_states import MAX_FINISHED
from weft.core.stats import SequenceTimes
from weft.core.types import FinishReason, PoolingKind, Request, SamplingParams, SequenceOutput
from weft.engine.constraints.grammar import GrammarState
from weft.engine.constraints.reasoning_tracker import ReasoningTracker
from weft.engine.scheduling.drafts import DraftKv, NgramLookup
from weft.engine.scheduling.repetition import RepetitionDetector

_SEED_MASK = (1 << 64) - 1
# Rows that prompts have in a step at least where streams run; and its seconds where none does.
_LEAST_BESIDE = 32
_ALONE_S = 1.0
# Steps with prompts, of which the next has none: it shows what streams take by themselves.
_MIXED_STEPS = 64
_LEAST_S = 1e-9  # of a row
_CONTEXT_SHIFT = 10  # contexts of less than 1,024 tokens cost a row about the same
_HEAVIEST_ROWS = 256  # of a step; more say no more of what a row takes
_SHARE = 0.8  # of what was measured before, after each step


# What of a choice changes a row, but for the temperature.
_CHANGING = tuple(
    field.name
    for field in fields(Choice)
    if field.name in PARAMETERS
    if field.name != "temperature"
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
    that step is committed. `order` sorts sequences by (priority, arrival): the smallest runs first,
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


class Stopwatch:
    """Owned by the scheduler. `clock` is monotonic, in seconds; it is read once a `tick`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now = clock()
        self.num_prompt_tokens = 0  # of sequences that have their first token
        self.num_generated_tokens = 0
        self._intervals: dict[float, int] = {}
        self._ended: list[SequenceTimes] = []
        # The last that ended: number, when, times.
        self.finished: deque[tuple[int, float, SequenceTimes]] = deque(maxlen=MAX_FINISHED)

    @property
    def has_samples(self) -> bool:
        """Whether `take` would give anything."""
        return bool(self._intervals or self._ended)

    def now(self) -> float:
        """The time, stamped or not."""
        return self._clock()

    def tick(self) -> float:
        """What is stamped from here on happens now."""
        self._now = self._clock()
        return self._now

    def queue(self, sequence: Sequence) -> None:
        """The sequence has arrived."""
        sequence.queued_at = self._now

    def schedule(self, sequence: Sequence) -> None:
        """The sequence runs. Only the first time counts: waiting after a preemption is no queueing."""
        if sequence.scheduled_at is None:
            sequence.scheduled_at = self._now

    def count_token(self, sequence: Sequence) -> None:
        """The sequence has one more token."""
        self.num_generated_tokens += 1
        if sequence.last_token_at is None:
            self.num_prompt_tokens += sequence.num_prompt_tokens
            sequence.first_token_at = self._now
        else:
            # Sequences that run step by step have the same interval: a step has one number for all.
            interval = self._now - sequence.last_token_at
            self._intervals[interval] = self._intervals.get(interval, 0) + 1
        sequence.last_token_at = self._now

    def finish_prompt(self, sequence: Sequence) -> None:
        """The sequence's prompt is computed, and no token follows."""
        self.num_prompt_tokens += sequence.num_prompt_tokens
        sequence.first_token_at = sequence.last_token_at = self._now

    def end(self, sequence: Sequence) -> None:
        """The sequence has ended, in whatever way."""
        request = sequence.request
        times = SequenceTimes(
            queue_s=_between(sequence.queued_at, sequence.scheduled_at),
            prefill_s=_between(sequence.scheduled_at, sequence.first_token_at),
            decode_s=_between(sequence.first_token_at, sequence.last_token_at),
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            num_output_tokens=sequence.num_output_tokens,
            engine_id=None if request.trace_headers is None else request.engine_id,
            index=sequence.index,
        )
        self._ended.append(times)
        self.finished.append((sequence.number, self._now, times))

    def take(self) -> tuple[list[tuple[float, int]], list[SequenceTimes]]:
        """Intervals between tokens, with how many there were of each; and who has ended. Once each."""
        intervals, self._intervals = self._intervals, {}
        ended, self._ended = self._ended, []
        return list(intervals.items()), ended


class StepSizes:
    """How many rows of prompts a step has, by what those before it took; owned by the scheduler.

    While streams run a step is to take `target_itl_ms`, or three times what they take by themselves if that is more:
    each step costs something whatever is in it, and small ones add up. While none runs it is to take a second.
    Without a target rows alone count. Answers do not depend on it.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        # Rows of a stream in a step: its last token, and what came true of drafts.
        self._stream_rows = 1
        if config.speculation is not None and config.speculation.recomputes:
            self._stream_rows += config.speculation.num_speculative_tokens
        self._target_s = config.target_itl_ms / 1e3
        self._streams_s: dict[int, float] = {}  # of a step, by the bits of how many there are
        # Rows of prompts and what they took, the latest counting most, by the bits of their context.
        self._prompts: dict[int, tuple[float, float]] = {}
        self._num_mixed = 0
        # The step that is planned, or was last.
        self._began_at = 0.0
        self._ended_at: float | None = None
        self._num_left = 0
        self._streams: set[Sequence] = set()
        self._num_reserved = 0  # rows, for streams that have not had theirs
        self._least = 0
        self._seconds = 0.0  # left for prompts
        self._expected_s = 0.0  # of its prompts
        self._chunks: list[tuple[int, int]] = []  # bits of the context, and rows

    def begin(self, running: Iterable[Sequence], now: float) -> None:
        """A step is being planned; the one before is over."""
        self._num_left = self._config.max_num_batched_tokens
        if not self._target_s:
            return
        if self._ended_at is not None:
            self._learn(self._ended_at - self._began_at)
        self._began_at, self._ended_at = now, None
        self._chunks.clear()
        self._expected_s = 0.0
        self._streams = {sequence for sequence in running if self._is_stream(sequence)}
        self._num_reserved = len(self._streams) * self._stream_rows
        alone_s = self._streams_s.get(len(self._streams).bit_length())
        if not self._streams:
            self._least, self._seconds = DEFAULTS["max_num_batched_tokens"], _ALONE_S
        elif alone_s is None or self._num_mixed >= _MIXED_STEPS:
            self._least, self._seconds = 0, 0.0
        else:
            self._least = _LEAST_BESIDE
            self._seconds = max(self._target_s - alone_s, 2 * alone_s)

    def end(self, now: float) -> None:
        """Something has come of the step, and perhaps more will."""
        self._ended_at = now

    def left_for(self, sequence: Sequence, start: int) -> int:
        """Rows that the sequence may have, from its token `start` on."""
        return self._num_left if sequence in self._streams else self._left_at(start)

    @property
    def is_full(self) -> bool:
        """Whether no prompt may have a row."""
        return self._left_at(0) <= 0

    @property
    def left_for_drafts(self) -> int:
        """Rows that guesses may have."""
        return self._left_at(0) if self._streams and self._chunks else self._num_left

    def take(self, sequence: Sequence, num_rows: int) -> None:
        """The sequence has so many more."""
        self._num_left -= num_rows
        if not self._target_s:
            return
        if sequence in self._streams:
            self._num_reserved -= self._stream_rows
            return
        start = sequence.num_planned_tokens
        expected_s = num_rows * (self._row_s_at(start) or 0.0)
        self._seconds -= expected_s
        self._expected_s += expected_s
        self._least -= num_rows
        self._chunks.append((_context_bits(start + num_rows // 2), num_rows))

    def _is_stream(self, sequence: Sequence) -> bool:
        """Whether its next token is all that there is to compute, and not the first."""
        num_tokens = len(sequence.token_ids)
        num_rows = num_tokens - sequence.num_planned_tokens
        return num_rows <= self._stream_rows and num_tokens > sequence.num_prompt_tokens

    def _left_at(self, start: int) -> int:
        """Rows of a prompt from there on."""
        if not self._target_s:
            return self._num_left
        row_s = self._row_s_at(start)
        num_rows = 0 if row_s is None else int(self._seconds / max(row_s, _LEAST_S))
        return max(0, min(self._num_left - self._num_reserved, max(num_rows, self._least)))

    def _row_s_at(self, start: int) -> float | None:
        """What a row takes there, or in the nearest context of which anything is known."""
        bits = _context_bits(start)
        nearest = min(self._prompts, key=lambda known: abs(known - bits), default=None)
        if nearest is None:
            return None
        rows, seconds = self._prompts[nearest]
        return seconds / rows

    def _learn(self, seconds: float) -> None:
        """What the step has taken."""
        size = len(self._streams).bit_length()
        if self._chunks:
            # What one stream takes, a step without any takes too, beside its rows.
            beside_s = seconds - self._streams_s.get(size or 1, 0.0)
            least_s = self._expected_s / 2 or seconds / 4
            if self._streams:
                # Where prompts seem to take next to nothing, streams may take less by themselves than they did.
                is_doubtful = beside_s < least_s and self._num_mixed
                self._num_mixed += _MIXED_STEPS if is_doubtful else 1
            self._learn_rows(max(beside_s, least_s) / sum(rows for _, rows in self._chunks))
        elif self._streams:
            self._num_mixed = 0
            # What takes longer for once has mostly been held up.
            before_s = self._streams_s.get(size, seconds)
            self._streams_s[size] = min(seconds, (before_s + seconds) / 2)

    def _learn_rows(self, row_s: float) -> None:
        for bits, num_rows in self._chunks:
            rows, seconds = self._prompts.get(bits, (0.0, 0.0))
            added = min(num_rows, _HEAVIEST_ROWS)
            self._prompts[bits] = _SHARE * rows + added, _SHARE * seconds + added * row_s


def _context_bits(num_tokens: int) -> int:
    return (num_tokens >> _CONTEXT_SHIFT).bit_length()


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _is_plain(params: SamplingParams) -> bool:
    """Whether rows are drawn from as they are, by temperature alone, and nothing else is known of them."""
    return (
        params.logprobs is None
        and params.allowed_token_ids is None
        and not params.logit_bias
        and bool(_changes(params) == _NO_CHANGES)
    )
