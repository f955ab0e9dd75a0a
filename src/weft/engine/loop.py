"""`EngineLoop`: one thread that owns the scheduler and the runner, and turns commands into events.

Nothing else touches their state. Commands come through a mailbox and are taken between steps; what
happens comes out as events, whose receiver must not block.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, assert_never

from weft.compute.backends import backend_of
from weft.compute.runner import Rows
from weft.core.config import EngineConfig
from weft.core.errors import ConfigError, NotFound
from weft.core.stats import StepStats
from weft.core.types import (
    EngineLoad,
    KvEventBatch,
    PauseMode,
    Request,
    SequenceOutput,
    SleepTag,
)
from weft.engine.constraints.grammar import GrammarCompiler, GrammarState, GrammarVocabulary
from weft.engine.engine_model import EngineModel
from weft.engine.lora_loader import LoraLoader
from weft.engine.messages import (
    Abort,
    Add,
    AddLora,
    Command,
    Event,
    Pause,
    Ping,
    Ready,
    RemoveLora,
    Reply,
    ResetPrefixCache,
    Resume,
    StepOutput,
    Stop,
    Wake,
)
from weft.engine.scheduling.plan import Part, Plan
from weft.engine.scheduling.scheduler import Admission, Scheduler
from weft.engine.step_pooler import StepPooler
from weft.engine.step_sampler import StepSampler

# Logits of prompt rows that one step may keep: a prompt that is scored is computed in more steps, if
# it must. 8,192 rows of 152,000 tokens would be 5 GB.
MAX_SCORED_BYTES = 256 << 20
_THROUGHPUT_WINDOW_S = 5.0

log = logging.getLogger("weft.engine")


class Mailbox(Protocol):
    """Where commands come from."""

    def receive(self, timeout_s: float | None) -> list[Command]:
        """All commands that are there, in order; waits up to `timeout_s` (None: for ever) for one."""
        ...

    def wake(self) -> None:
        """Make `receive` wait no longer, this time or the next; called from another thread."""
        ...


class Finisher(Protocol):
    """What ends a step, chosen at the start: a model that generates samples, one that pools pools."""

    def finish(self, rows: Rows, plan: Plan) -> Iterator[Part]:
        """The results of a step, each part to be committed before the next is taken."""
        ...


class EngineLoop:
    """Runs until `Stop`. An exception from a step is fatal: it leaves `run`."""

    def __init__(
        self,
        config: EngineConfig,
        model: EngineModel,
        mailbox: Mailbox,
        emit: Callable[[Event], None],
        read_tokenizer: Callable[[], str],
    ) -> None:
        self._config = config
        self._block_size = config.cache_config.block_size
        self._model = model
        self._finisher = self._make_finisher()
        self._mailbox = mailbox
        self._emit = emit
        self._scheduler = Scheduler(
            config.scheduler_config,
            config.cache_config,
            config.model_config.max_model_len,
            max(1, MAX_SCORED_BYTES // (4 * config.model_config.vocab_size)),
        )
        self._loras = LoraLoader(model, config)
        self._meter = LoadMeter(config, lambda: len(self._loras.loaded))
        vocab_size = config.model_config.vocab_size
        self._grammars = GrammarCompiler(
            lambda eos_token_ids: GrammarVocabulary.read(
                read_tokenizer(), vocab_size, eos_token_ids
            ),
            mailbox.wake,
        )
        self._pending_pauses: list[Pause] = []
        self._pending_loras: list[AddLora] = []  # that came while weights were absent
        self._stop_at: float | None = None
        self._num_kv_batches = 0

    def _make_finisher(self) -> Finisher:
        if self._model.pooler is not None:
            return StepPooler(self._model.pooler)
        mode = self._config.model_config.logprobs_mode
        return StepSampler(backend_of(self._config).sampler, mode)

    def run(self) -> None:
        """Take commands and run steps until `Stop` came and requests are drained."""
        try:
            self._run()
        finally:
            self._grammars.close()

    def _run(self) -> None:
        self._emit(Ready(self._meter.read(self._scheduler)))
        while not self._is_over():
            for command in self._mailbox.receive(self._receive_timeout_s()):
                self._report(self._handle(command))
            if self._grammars.num_pending:
                for engine_id, made in self._grammars.take_ready():
                    self._report(self._scheduler.attach_grammar(engine_id, made))
            outputs = self._step()
            # A prompt's chunk has no outputs, nor has an abort: the counts are reported all the same.
            self._report(
                outputs, has_changed=not outputs and self._meter.has_changed(self._scheduler)
            )
            # Behind the step: it may be the one that a pause waits for, and there may be no other turn.
            self._complete_pauses()
        self._report(self._scheduler.abort_all())

    def _receive_timeout_s(self) -> float | None:
        """How long to wait for a command: not at all while there is work."""
        if self._scheduler.has_work:
            return 0.0
        return None if self._stop_at is None else max(0.0, self._stop_at - time.monotonic())

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        return not self._scheduler.num_open_requests or time.monotonic() >= self._stop_at

    def _step(self) -> list[SequenceOutput]:
        plan = self._scheduler.plan()
        if plan is None:
            return []
        self._compute_masks(plan)
        rows = self._forward(plan)
        outputs = [
            output
            for part, results in self._finisher.finish(rows, plan)
            for output in self._scheduler.commit(part, results)
        ]
        num_tokens = sum(len(output.token_ids) for output in outputs)
        self._meter.count_step(num_tokens, num_computed_tokens=plan.num_tokens)
        return outputs

    def _compute_masks(self, plan: Plan) -> None:
        """What grammars allow, worked out beside the forward pass."""
        sampled_now = (entry.sequence for entry in plan.entries if entry.samples)
        grammars = [g for s in sampled_now if (g := s.ruling_grammar) is not None]
        if grammars:
            GrammarState.compute_ahead(grammars, self._grammars.mask_pool)

    def _forward(self, plan: Plan) -> Rows:
        try:
            runner = self._model.runner
            assert runner is not None, "nobody is scheduled while weights are absent"
            return runner.forward(plan.to_batch(self._block_size))
        except Exception:
            self._report(self._scheduler.fail(plan))  # the others get that the engine died
            raise

    def _report(self, outputs: list[SequenceOutput], *, has_changed: bool = False) -> None:
        kv_events = self._take_kv_events()
        if outputs or kv_events or has_changed:
            load = self._meter.read(self._scheduler)
            stats = self._meter.take_stats(self._scheduler)
            self._emit(StepOutput(outputs=outputs, load=load, stats=stats, kv_events=kv_events))

    def _take_kv_events(self) -> KvEventBatch | None:
        events = self._scheduler.cache.take_events()
        if not events:
            return None
        self._num_kv_batches += 1
        return KvEventBatch(
            sequence_number=self._num_kv_batches - 1, timestamp=time.time(), events=events
        )

    # -- commands -----------------------------------------------------------------------------

    def _handle(self, command: Command) -> list[SequenceOutput]:
        match command:
            case Add():
                self._add(command.request)
            case Abort():
                return self._abort(command)
            case Pause():
                return self._pause(command)
            case AddLora():
                self._pending_loras.append(command)
                self._load_loras()
            case RemoveLora():
                self._loras.remove(command.lora_id)
            case Stop():
                self._resume()  # a paused engine drains too; one that sleeps cannot
                timeout_s = command.timeout_s if self._model.is_resident else 0.0
                self._stop_at = time.monotonic() + timeout_s
            case Resume() | Wake() | ResetPrefixCache() | Ping():
                self._emit(self._reply(command))
            case _:
                assert_never(command)
        return []

    def _reply(self, command: Resume | Wake | ResetPrefixCache | Ping) -> Reply:
        match command:
            case Resume():
                return self._answer_resume(command)
            case Wake():
                return self._wake(command)
            case ResetPrefixCache():
                is_done = self._scheduler.reset_cache(
                    preempt_running=command.reset_running_requests
                )
                return Reply(command.call_id, is_done)
            case Ping():
                return Reply(command.call_id, load=self._meter.read(self._scheduler))

    def _add(self, request: Request) -> None:
        self._scheduler.add(request)
        if request.grammar is not None or request.reasoning is not None:
            self._grammars.order(request.engine_id, request.grammar, request.eos_token_ids)

    def _abort(self, command: Abort) -> list[SequenceOutput]:
        outputs = [
            output
            for engine_id in command.engine_ids
            for output in self._scheduler.abort(engine_id, command.index)
        ]
        return [] if command.is_silent else outputs

    # -- pauses and sleep ---------------------------------------------------------------------

    def _pause(self, command: Pause) -> list[SequenceOutput]:
        refusal = self._pause_refusal(command)
        if refusal is not None:
            self._emit(Reply(command.call_id, is_done=False, refusal=refusal))
            return []
        self._pending_pauses.append(command)
        match PauseMode(command.mode):
            case PauseMode.ABORT:
                self._admit(Admission.STARTED)
                return self._scheduler.abort_all()
            case PauseMode.WAIT:
                self._admit(Admission.STARTED)
            case PauseMode.KEEP:
                self._admit(Admission.CLOSED)
        return []

    def _pause_refusal(self, command: Pause) -> str | None:
        if command.sleep_level and not self._model.can_sleep:
            return (
                "sleep needs a model that can be loaded again: this one was handed over in memory"
            )
        is_frozen = not self._model.is_resident and self._scheduler.has_started_work
        if command.mode == PauseMode.WAIT and is_frozen:
            return "requests that were frozen by mode keep cannot end while the engine sleeps"
        return None

    def _admit(self, admission: Admission) -> None:
        """Nobody is scheduled while weights or KV pool are absent."""
        self._scheduler.admission = admission if self._model.is_resident else Admission.CLOSED

    def _complete_pauses(self) -> None:
        """Reply to pauses once the condition of the last one holds."""
        if not self._pending_pauses:
            return
        if self._scheduler.admission is Admission.STARTED and self._scheduler.has_started_work:
            return
        level = max(pause.sleep_level for pause in self._pending_pauses)
        if level or any(pause.clear_cache for pause in self._pending_pauses):
            self._scheduler.reset_cache(preempt_running=True)
            self._report([])
        if level:
            self._model.release(level)
            self._admit(Admission.CLOSED)
        self._answer_pauses()

    def _answer_resume(self, command: Resume) -> Reply:
        if self._model.is_resident:
            self._resume()
            return Reply(command.call_id)
        return Reply(command.call_id, is_done=False, refusal="the engine sleeps; wake_up first")

    def _resume(self) -> None:
        self._admit(Admission.OPEN)
        self._answer_pauses(is_done=False)

    def _answer_pauses(self, *, is_done: bool = True) -> None:
        for pause in self._pending_pauses:
            self._emit(Reply(pause.call_id, is_done))
        self._pending_pauses.clear()

    def _wake(self, command: Wake) -> Reply:
        was_resident = self._model.is_resident
        try:
            self._restore(command.tags)
        except (ConfigError, NotFound, OSError) as error:
            return Reply(command.call_id, is_done=False, refusal=str(error))
        except MemoryError:
            return Reply(command.call_id, is_done=False, refusal="the memory does not suffice")
        if self._model.is_resident and (SleepTag.SCHEDULING in command.tags or not was_resident):
            self._resume()
        return Reply(command.call_id, is_done=self._scheduler.admission is Admission.OPEN)

    def _restore(self, tags: list[str]) -> None:
        if SleepTag.KV_CACHE in tags:
            self._model.is_kv_wanted = True
        if SleepTag.WEIGHTS in tags and not self._model.has_weights:
            level = self._model.sleep_level
            if self._model.restore_weights():
                self._scheduler.start_weights_epoch()
                self._report([])
            try:
                self._loras.restore()
            except BaseException:
                self._model.release(level)
                raise
            self._finisher = self._make_finisher()
            self._load_loras()
        self._model.restore_kv()

    def _load_loras(self) -> None:
        """Those that wait, unless weights are absent: then they wait on."""
        while self._pending_loras and self._model.has_weights:
            self._emit(self._loras.load(self._pending_loras.pop(0)))


class LoadMeter:
    """Turns the scheduler's counts into the load that routers and metrics read. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        config: EngineConfig,
        num_loras: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._max_total_tokens = config.cache_config.max_total_tokens
        self._num_loras = num_loras
        self._clock = clock
        self._recent: deque[tuple[float, int]] = deque()  # (when, tokens)
        self._num_recent_tokens = 0
        self._num_steps = 0
        self._num_computed_tokens = 0  # of a step that `take_stats` has not reported yet
        self._reported: tuple[int, ...] = ()

    def count_step(self, num_tokens: int, *, num_computed_tokens: int) -> None:
        """A step computed so many tokens, and gave `num_tokens` new ones."""
        self._num_steps += 1
        self._num_computed_tokens = num_computed_tokens
        self._recent.append((self._clock(), num_tokens))
        self._num_recent_tokens += num_tokens

    def read(self, scheduler: Scheduler) -> EngineLoad:
        """The load now."""
        self._forget_old()
        queried = scheduler.num_queried_tokens
        pool = scheduler.cache.pool
        loras = self._config.lora_config
        return EngineLoad(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_used_tokens=scheduler.num_used_tokens,
            max_total_tokens=self._max_total_tokens,
            max_running=self._config.scheduler_config.max_num_seqs,
            num_waiting_uncached_tokens=scheduler.num_waiting_tokens,
            gen_throughput=self._num_recent_tokens / _THROUGHPUT_WINDOW_S,
            cache_hit_rate=scheduler.num_hit_tokens / queried if queried else 0.0,
            num_held_blocks=pool.num_held,
            num_blocks=pool.num_blocks,
            num_steps=self._num_steps,
            num_preemptions=scheduler.num_preemptions,
            num_draft_tokens=scheduler.drafts.num_tokens,
            num_accepted_tokens=scheduler.drafts.num_accepted,
            num_loras=self._num_loras(),
            max_loras=0 if loras is None else loras.max_loras,
        )

    def has_changed(self, scheduler: Scheduler) -> bool:
        """Whether a step or a command changed anything since the last `take_stats`."""
        return scheduler.stopwatch.has_samples or self._reported != self._key(scheduler)

    def take_stats(self, scheduler: Scheduler) -> StepStats:
        """What was measured since the last call, and the totals now."""
        self._reported = self._key(scheduler)
        num_computed_tokens, self._num_computed_tokens = self._num_computed_tokens, 0
        intervals, ended = scheduler.stopwatch.take()
        return StepStats(
            num_computed_tokens=num_computed_tokens,
            intervals=intervals,
            ended=ended,
            total_prompt_tokens=scheduler.stopwatch.num_prompt_tokens,
            total_generated_tokens=scheduler.stopwatch.num_generated_tokens,
            total_lookups=scheduler.num_lookups,
            total_queried_tokens=scheduler.num_queried_tokens,
            total_hit_tokens=scheduler.num_hit_tokens,
            total_preemptions=scheduler.num_preemptions,
            total_corrupted=scheduler.num_corrupted,
            total_drafts=scheduler.drafts.num_drafts,
            total_draft_tokens=scheduler.drafts.num_tokens,
            total_accepted_at=scheduler.drafts.num_accepted_at,
        )

    def _key(self, scheduler: Scheduler) -> tuple[int, ...]:
        held = scheduler.cache.pool.num_held
        return (self._num_steps, scheduler.num_running, scheduler.num_waiting, held)

    def _forget_old(self) -> None:
        horizon = self._clock() - _THROUGHPUT_WINDOW_S
        while self._recent and self._recent[0][0] < horizon:
            self._num_recent_tokens -= self._recent.popleft()[1]
