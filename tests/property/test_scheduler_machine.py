"""Random submit, step, abort, preempt and reset on scheduler and pool; invariants after each rule.

The pool is small, prompts come from a small alphabet so that their prefixes collide, and the runner's
tokens depend on every block a row reads: whatever goes wrong with blocks changes an answer.
"""

from collections import Counter
from functools import partial
from itertools import accumulate, cycle

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.doubles.drafting import by_model, draft_with
from tests.doubles.fake_runner import FakeRunner
from tests.doubles.stepping import make_engine
from weft.core.config.speculation import SpeculativeConfig
from weft.core.values.kv_cache import AllBlocksCleared, BlockRemoved, BlockStored
from weft.core.values.prompts import OpenReasoning
from weft.core.values.types import FinishReason, RepetitionDetectionParams
from weft.engine.constraints.grammar import GrammarVocabulary
from weft.engine.constraints.text import to_grammar_text
from weft.engine.scheduling.sequence import SequenceStatus
from weft.engine.scheduling.stopwatch import Stopwatch
from weft.model.embedded.byte_tokenizer import tokenizer_files

VOCAB = 260
VOCABULARY = GrammarVocabulary.read(
    tokenizer_files(VOCAB, "<|endoftext|>")["tokenizer.json"].decode(), VOCAB, (256, 258)
)
GRAMMARS = [None, None, *(to_grammar_text("regex", r, None) for r in ("[a-c]{2,9}", "(ab|c)+"))]
# What else is asked of an answer, each with a state or a mask of its own.
EXTRAS = [
    {},
    {},
    {"reasoning": OpenReasoning(end="ab", end_token_ids=[97, 98]), "thinking_token_budget": 2},
    {"min_tokens": 1, "repetition_penalty": 1.5},
    {"bad_token_ids": [[97], [98, 99]]},
    {"repetition_detection": RepetitionDetectionParams(max_pattern_size=2, min_count=2)},
]
DRAFTS = SpeculativeConfig(
    method="ngram", num_speculative_tokens=3, prompt_lookup_max=2, prompt_lookup_min=1
)
PROMPTS = st.lists(st.integers(3, 5), min_size=1, max_size=14)
SALTS = st.sampled_from([None, "a", "b"])


class SchedulerMachine(RuleBasedStateMachine):
    """Invariants I1 to I9 of a pool of twelve blocks of two tokens."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.start(None)
        self.submitted: dict[str, tuple[list[int], dict, int]] = {}
        self.aborted: set[str] = set()  # wholly or in part
        self.ended: set[str] = set()  # wholly
        self.cached: set[bytes] = set()
        self.owner_by_hash: dict[bytes, tuple[str | None, str | None]] = {}  # salt, adapter
        self.steps_without_token = 0

    @initialize(
        speculation=st.sampled_from([None, DRAFTS, by_model(3, VOCAB)]),
        target_ms=st.sampled_from([0.0, 100.0]),
    )
    def start(self, speculation, target_ms=0.0):
        """Most of the engines draft tokens: from what was said before, or by a model. Half size steps by time."""
        self.engine = self.make_engine(
            num_blocks=12,
            block_size=2,
            max_model_len=24,
            max_num_seqs=4,
            max_num_batched_tokens=6,
            vocab_size=VOCAB,
            policy="priority",
            speculation=speculation,
            target_itl_ms=target_ms,
        )
        ticks = accumulate(cycle((0.001, 0.3, 0.0, 0.02)))
        self.engine.scheduler.stopwatch = Stopwatch(partial(next, ticks))
        self.engine.vocabulary = VOCABULARY
        if speculation is not None and speculation.draft is not None:
            draft_with(self.engine, FakeRunner(VOCAB))

    def make_engine(self, **options):
        """The engine that is walked."""
        return make_engine(**options)

    @rule(
        target=requests,
        prompt=PROMPTS,
        salt=SALTS,
        lora=st.sampled_from([None, "a"]),
        n=st.integers(1, 4),
        max_tokens=st.integers(1, 10),
        priority=st.integers(-1, 1),
        seed=st.integers(0, 3),
        temperature=st.sampled_from([0.0, 1.0]),
        grammar=st.sampled_from(GRAMMARS),
        extras=st.sampled_from(EXTRAS),
    )
    def submit(self, prompt, salt, lora, n, max_tokens, priority, grammar, extras, **params):
        """A request arrives."""
        request_id = f"r{len(self.submitted)}"
        params |= {"n": n, "max_tokens": max_tokens, "grammar": grammar, **extras}
        self.engine.submit(request_id, prompt, salt=salt, lora=lora, priority=priority, **params)
        self.submitted[request_id] = (prompt, params, n)
        return request_id

    @rule(num_steps=st.integers(1, 4))
    def step(self, num_steps):
        """The engine runs."""
        for _ in range(num_steps):
            open_before = self.engine.scheduler.num_open_requests
            tokens_before = self._num_tokens()
            ran_before = list(self.engine.scheduler.queues.running)
            plan = self.engine.step()
            self._check_order(ran_before)
            self._check_no_work_on_ended(plan)
            is_progress = self._num_tokens() > tokens_before or not open_before
            self.steps_without_token = 0 if is_progress else self.steps_without_token + 1

    @rule(request_id=consumes(requests))
    def abort(self, request_id):
        """A caller leaves."""
        self.aborted.add(request_id)
        self.ended.add(request_id)
        self.engine.abort(request_id)

    @rule(request_id=requests, index=st.integers(0, 3))
    def abort_answer(self, request_id, index):
        """The front found a stop string in one answer."""
        self.aborted.add(request_id)
        self.engine.abort(request_id, index)

    @rule(preempt=st.booleans())
    def reset_cache(self, preempt):
        """The cache is dropped, or refuses."""
        is_held = self.engine.pool.num_held > 0
        assert self.engine.scheduler.reset_cache(preempt_running=preempt) is (
            preempt or not is_held
        )

    @rule()
    def change_weights(self):
        """New weights: the runner fails on any row that sees K/V of the old ones."""
        self.engine.scheduler.start_weights_epoch()
        self.engine.runner.epoch += 1

    @rule()
    def drain(self):
        """Everything that is open runs to its end."""
        self.engine.run()
        assert self.engine.pool.num_held == 0
        assert self.engine.scheduler.num_open_requests == 0

    @invariant()
    def pool_and_scheduler_agree(self):
        """I1: free + held = pool; counts equal owners; I2: idle means zero held blocks."""
        self.engine.scheduler.check()
        if not self.engine.scheduler.queues.running:
            assert self.engine.pool.num_held == 0

    @invariant()
    def every_sequence_ends_at_most_once(self):
        """I3, I4: one terminal message, of a known reason, and no token beyond the asked number."""
        for request_id, answers in self.engine.answers.items():
            for answer in answers:
                assert answer.num_endings <= 1
                assert len(answer.token_ids) <= self.submitted[request_id][1]["max_tokens"]
                assert answer.error is None

    @invariant()
    def waiting_work_makes_progress(self):
        """I7: some token comes within as many steps as all prompts need."""
        assert self.steps_without_token <= 24

    @invariant()
    def events_rebuild_the_cache(self):
        """I9: replaying the events gives exactly the hashes that can be found; I8: by one owner each."""
        for event in self.engine.scheduler.cache.take_events():
            match event:
                case BlockStored():
                    self.cached |= set(event.block_hashes)
                    owner = (event.cache_salt, event.lora_name)
                    for digest in event.block_hashes:
                        assert self.owner_by_hash.setdefault(digest, owner) == owner
                case BlockRemoved():
                    self.cached -= set(event.block_hashes)
                case AllBlocksCleared():
                    self.cached.clear()
        assert self.cached == set(self.engine.scheduler.cache._blocks_by_hash)

    def teardown(self):
        """I5: every answer equals that of an engine that ran the request alone, uncached."""
        self.engine.run()
        self.every_sequence_ends_at_most_once()
        assert self.engine.pool.num_held == 0
        for request_id, (prompt, params, _) in self.submitted.items():
            alone = make_engine(
                num_blocks=100,
                block_size=2,
                max_model_len=24,
                vocab_size=VOCAB,
                enable_prefix_caching=False,
            )
            alone.vocabulary = VOCABULARY
            alone.submit("alone", prompt, **params)
            alone.run()
            pairs = zip(self.engine.answers[request_id], alone.answers["alone"], strict=True)
            for got, expected in pairs:
                if got.finish_reason is FinishReason.ABORT:
                    assert request_id in self.aborted
                    assert got.token_ids == expected.token_ids[: len(got.token_ids)]
                else:
                    assert got.token_ids == expected.token_ids
                    assert got.finish_reason is expected.finish_reason

    def _num_tokens(self) -> int:
        return sum(len(a.token_ids) for answers in self.engine.answers.values() for a in answers)

    def _check_order(self, ran_before):
        """I10: by (priority, arrival), who gives way comes after all who stay, and who is taken up
        before all who wait on."""
        scheduler = self.engine.scheduler
        preempted = [s.order for s in ran_before if s.status is SequenceStatus.WAITING]
        stayed = [s.order for s in ran_before if s.status is not SequenceStatus.WAITING]
        assert not preempted or not stayed or max(stayed) < min(preempted)
        taken_up = [s.order for s in scheduler.queues.running if s not in ran_before]
        assert not (preempted and taken_up)
        waiting = [s.order for s in scheduler.queues.waiting]
        assert not taken_up or not waiting or max(taken_up) < min(waiting)
        assert all(s.order[0] == s.request.priority for s in scheduler.queues.running)

    def _check_no_work_on_ended(self, plan):
        """I6: no step contains an aborted sequence; I1: nobody is planned twice."""
        entries = plan.entries if plan else ()
        seen = Counter((e.sequence.request.request_id, e.sequence.index) for e in entries)
        assert all(count == 1 for count in seen.values())
        assert not {request_id for request_id, _ in seen} & self.ended
        assert sum(e.num_rows for e in entries) <= 6


WALKS = settings(
    max_examples=100,
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class TestSchedulerMachine(SchedulerMachine.TestCase):
    """A few walks in every run of the tests."""

    settings = settings(WALKS, max_examples=40)


@pytest.mark.slow
class TestSchedulerMachineLonger(SchedulerMachine.TestCase):
    """Many."""

    settings = WALKS
