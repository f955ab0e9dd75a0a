"""`EngineLoop`: the thread that owns the scheduler and the runner, handles commands and emits events.

No other thread accesses the state of scheduler and runner. Commands arrive through a mailbox and are handled between
steps; results leave as events, whose receiver must not block.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, assert_never

from weft.compute.backends import backend_of
from weft.core.config.engine import EngineConfig
from weft.core.values.kv_cache import KvEventBatch
from weft.core.values.types import Request, SequenceOutput
from weft.engine.constraints.grammar import GrammarCompiler, GrammarState, GrammarVocabulary
from weft.engine.drafting.drafters import open_drafter
from weft.engine.engine_pauses import EnginePauses
from weft.engine.ipc.messages import (
    Abort,
    Add,
    AddLora,
    CallWorker,
    Command,
    Controlled,
    Event,
    ListRequests,
    Pause,
    Ping,
    Ready,
    ReleaseRemote,
    RemoveLora,
    Reply,
    ResetPrefixCache,
    ResetTowerOutputs,
    Resume,
    StartProfile,
    StepOutput,
    Stop,
    StopProfile,
    Transfer,
    UseShare,
    Wake,
)
from weft.engine.ipc.replies import attempt
from weft.engine.load_meter import LoadMeter
from weft.engine.offloading import Elsewhere, Offloading, open_elsewhere
from weft.engine.profiler import Profiler
from weft.engine.request_states import read_states
from weft.engine.scheduling.blocks.handing_over import hands_over_for_s
from weft.engine.scheduling.draft_payoff import DraftPayoff
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import SequenceStatus
from weft.engine.start.cpu_shares import keep_to
from weft.engine.step.step_pooler import StepPooler
from weft.engine.step.step_sampler import StepSampler
from weft.engine.step.steps import Finisher, StepParts, no_lap, open_steps
from weft.engine.weights.engine_model import EngineModel
from weft.engine.weights.lora_loader import LoraLoader
from weft.engine.weights.weight_updates import WeightUpdates
from weft.engine.worker_calls import WORKER_CALLS

# Maximum bytes of prompt-row logits in one step: a prompt with logprobs is computed in several steps if needed. 8,192
# rows of 152,000 tokens would take 5 GB.
MAX_SCORED_BYTES = 256 << 20

# Commands that may be handled while a step is in flight, because they change nothing that the step reads.
_BESIDE_STEPS = (Abort, Add, ListRequests, Ping, ReleaseRemote, StartProfile, Stop, StopProfile)

log = logging.getLogger("weft.engine")


class Mailbox(Protocol):
    """Source of commands for the engine loop."""

    def receive(self, timeout_s: float | None) -> list[Command]:
        """Returns all commands that have arrived, in order; waits up to `timeout_s` for the first one (None: without
        limit).
        """

    def wake(self) -> None:
        """Makes the current or the next `receive` return without a command; called from another thread."""


class EngineLoop:
    """The engine's loop: runs until the command `Stop`. An exception in a step is fatal: `run` raises it."""

    def __init__(
        self,
        config: EngineConfig,
        model: EngineModel,
        mailbox: Mailbox,
        emit: Callable[[Event], None],
        read_tokenizer: Callable[[], str],
    ) -> None:
        self._config = config
        self._model = model
        self._mailbox = mailbox
        self._emit = emit
        elsewhere = open_elsewhere(config, model, mailbox.wake)
        self._scheduler = _open_scheduler(config, elsewhere)
        drafter, forward = open_drafter(config, model)
        if drafter is not None:
            self._scheduler.draft_by(drafter, DraftPayoff())
        self._offloading = None if elsewhere is None else Offloading(elsewhere, self._scheduler)
        self._loras = LoraLoader(model, config)
        self._meter = LoadMeter(
            config,
            lambda: len(self._loras.loaded),
            None if elsewhere is None else elsewhere.tier,
            None if elsewhere is None else elsewhere.take_transfer_stats,
            model.expert_balance if model.counts_experts else None,
        )
        vocab_size = config.model_config.vocab_size
        self._grammars = GrammarCompiler(
            lambda eos_token_ids: GrammarVocabulary.read(
                read_tokenizer(), vocab_size, eos_token_ids
            ),
            mailbox.wake,
        )
        self._profiler = Profiler(config.profiler_config, self._scheduler, model.part_seconds)
        self._parts = StepParts(
            self._scheduler,
            self._make_finisher(),
            self._compute_masks,
            self._follow_plan,
            self._meter.count_step,
            self._report,
        )
        self._steps = open_steps(self._parts, model, forward)
        self._lap = no_lap
        self._weights = WeightUpdates(
            config, model, self._scheduler, self._loras, self._use_weights
        )
        self._pauses = EnginePauses(
            self._scheduler, model, self._steps, emit, self._report, self._restore_weights
        )
        self._pending_loras: list[
            AddLora
        ] = []  # adapters to load, received while weights were absent
        self._stop_at: float | None = None
        self._num_kv_batches = 0

    def _make_finisher(self) -> Finisher:
        if self._model.pooler is not None:
            return StepPooler(self._model.pooler)
        mode = self._config.model_config.logprobs_mode
        return StepSampler(backend_of(self._config).sampler, mode)

    def run(self) -> None:
        """Handles commands and runs steps until `Stop` was received and running requests have finished."""
        try:
            self._run()
        finally:
            if self._offloading is not None:
                self._offloading.close(self._model.runner if self._model.is_resident else None)
            self._profiler.close()
            self._weights.close()
            self._grammars.close()

    def _run(self) -> None:
        self._emit(Ready(self._meter.read(self._scheduler)))
        while not self._is_over():
            commands = self._mailbox.receive(self._receive_timeout_s())
            self._lap("receive")
            for command in commands:
                if self._steps.is_in_flight and not isinstance(command, _BESIDE_STEPS):
                    self._report(self._steps.drain())
                self._report(self._handle(command))
            if self._grammars.num_pending:
                for engine_id, made in self._grammars.take_ready():
                    self._report(self._scheduler.attach_grammar(engine_id, made))
            if self._offloading is not None:
                ended = self._offloading.end_leases()
                ended += self._offloading.take_arrived(self._model.runner)
                if ended:
                    self._report(ended)
            self._lap("commands")
            outputs = self._steps.turn()
            # A chunk of a prompt and a silent abort have no outputs: their counts are reported nevertheless.
            self._report(
                outputs, has_changed=not outputs and self._meter.has_changed(self._scheduler)
            )
            self._lap("send")
            # After the step: a pause may wait for this step, and the loop may not run again soon.
            self._pauses.complete()
        self._report(self._steps.drain())
        self._report(self._scheduler.abort_all())

    def _receive_timeout_s(self) -> float | None:
        """Returns the maximum time in seconds to wait for a command: 0 while there is work, None without limit."""
        if self._scheduler.has_work or self._steps.is_in_flight:
            return 0.0
        stops_in_s = None if self._stop_at is None else max(0.0, self._stop_at - time.monotonic())
        changes_in_s = None if self._offloading is None else self._offloading.timeout_s()
        if stops_in_s is not None and (lends_for_s := hands_over_for_s(self._scheduler.cache)):
            stops_in_s = min(stops_in_s, lends_for_s)
        timeouts_s = (changes_in_s, stops_in_s, self._profiler.timeout_s())
        return min((t for t in timeouts_s if t is not None), default=None)

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        is_idle = not self._scheduler.num_open_requests and not hands_over_for_s(
            self._scheduler.cache
        )
        return is_idle or time.monotonic() >= self._stop_at

    def _compute_masks(self, plan: Plan) -> None:
        """Starts to compute grammar masks on another thread, in parallel with the forward pass."""
        ruled = [e.sequence for e in plan.entries if e.samples and e.sequence.grammar is not None]
        if not ruled:
            return
        running = (s for s in ruled if s.status is SequenceStatus.RUNNING)
        grammars = [g for s in running if (g := s.ruling_grammar) is not None]
        if grammars:
            GrammarState.compute_ahead(grammars, self._grammars.mask_pool)

    def _follow_plan(self) -> None:
        """Stores blocks that the plan will overwrite in the second tier, if the tier wants them."""
        if self._offloading is not None:
            self._offloading.follow_plan(self._model.runner)

    def _report(self, outputs: list[SequenceOutput], *, has_changed: bool = False) -> None:
        kv_events = self._take_kv_events()
        if outputs or kv_events or has_changed:
            load = self._meter.read(self._scheduler)
            stats = self._meter.take_stats(self._scheduler)
            self._emit(StepOutput(outputs=outputs, load=load, stats=stats, kv_events=kv_events))

    def _take_kv_events(self) -> KvEventBatch | None:
        events = self._scheduler.cache.take_events()
        if self._offloading is not None:
            events += self._offloading.take_events()
        if not events:
            return None
        self._num_kv_batches += 1
        return KvEventBatch(
            sequence_number=self._num_kv_batches - 1,
            timestamp=time.time(),
            events=events,
            data_parallel_rank=self._config.data_parallel_rank or 0,
        )

    # -- commands -----------------------------------------------------------------------------

    def _handle(self, command: Command) -> list[SequenceOutput]:
        match command:
            case Add():
                self._add(command.request)
            case Abort():
                return self._abort(command)
            case Pause():
                return self._pauses.pause(command)
            case AddLora():
                self._pending_loras.append(command)
                self._load_loras()
            case ReleaseRemote():
                assert self._offloading is not None, "only an engine that fetches gets this command"
                self._offloading.release(command.source)
            case RemoveLora():
                self._loras.remove(command.lora_id)
            case Stop():
                self._pauses.resume()  # a paused engine finishes its requests too; a sleeping engine cannot
                timeout_s = command.timeout_s if self._model.is_resident else 0.0
                self._stop_at = time.monotonic() + timeout_s
            case _ if isinstance(command, Transfer):
                self._pauses.complete()  # completes an accepted sleep first: an update could make it impossible
                self._emit(self._weights.handle(command))
            case _ if isinstance(command, Controlled):
                self._emit(self._reply(command))
            case _:
                assert_never(command)
        return []

    def _reply(self, command: Controlled) -> Reply:
        match command:
            case Resume():
                return self._pauses.answer_resume(command)
            case Wake():
                return self._pauses.wake(command)
            case ResetPrefixCache():
                is_done = self._scheduler.reset_cache(
                    preempt_running=command.reset_running_requests
                )
                return Reply(command.call_id, is_done)
            case ResetTowerOutputs():
                self._scheduler.clear_outputs()
                return Reply(command.call_id)
            case StartProfile() | StopProfile():
                return attempt(command.call_id, partial(self._profile, command))
            case CallWorker():
                work = partial(WORKER_CALLS[command.method], self._model, self._config)
                return attempt(command.call_id, work)
            case UseShare():
                keep_to(command.cpus)
                self._model.use_threads(command.num_threads)
                return Reply(command.call_id)
            case Ping():
                return Reply(command.call_id, load=self._meter.read(self._scheduler))
            case ListRequests():
                rank = self._config.data_parallel_rank or 0
                return Reply(command.call_id, states=read_states(self._scheduler, rank))

    def _profile(self, command: StartProfile | StopProfile) -> None:
        if isinstance(command, StartProfile):
            self._profiler.start(command)
            self._lap = self._steps.lap = self._profiler.lap
        else:
            self._lap = self._steps.lap = no_lap
            self._profiler.stop()

    def _add(self, request: Request) -> None:
        self._scheduler.add(request)
        if request.grammar is not None or request.reasoning is not None:
            self._grammars.order(request.engine_id, request.grammar, request.eos_token_ids)

    def _abort(self, command: Abort) -> list[SequenceOutput]:
        if command.lends:
            given = map(self._scheduler.hand_over, command.engine_ids)
            return [output for outputs in given for output in outputs]
        outputs = [
            output
            for engine_id in command.engine_ids
            for output in self._scheduler.abort(engine_id, command.index)
        ]
        return [] if command.is_silent else outputs

    # -- weights ------------------------------------------------------------------------------

    def _restore_weights(self) -> None:
        level = self._model.sleep_level
        is_new = self._model.restore_weights()
        try:
            self._loras.restore(self._model.runner)
        except BaseException:
            self._model.release(level)
            raise
        self._use_weights(is_new=is_new)
        self._load_loras()

    def _use_weights(self, *, is_new: bool = True) -> None:
        """Prepares the loop for a new runner; with `is_new`, cached KV of the old weights is no longer found."""
        self._parts.finisher = self._make_finisher()
        if is_new:
            self._scheduler.start_weights_epoch()
            self._report([])

    def _load_loras(self) -> None:
        """Loads adapters that were waiting for the weights, if the weights are present."""
        while self._pending_loras and self._model.has_weights:
            self._emit(self._loras.load(self._pending_loras.pop(0)))


def _open_scheduler(config: EngineConfig, elsewhere: Elsewhere | None) -> Scheduler:
    scheduler = Scheduler(
        config.scheduler_config,
        config.cache_config,
        config.model_config.max_model_len,
        max(1, MAX_SCORED_BYTES // (4 * config.model_config.vocab_size)),
        tier=elsewhere,
    )
    if config.tower_config is not None:
        scheduler.take_tower(config.tower_config)
    return scheduler
