"""The scheduler's rules, one test each, on a runner whose tokens depend on the whole prefix."""

import pytest

from tests.doubles.fake_runner import FakeRunner, greedy_after
from tests.doubles.stepping import EOS, make_engine
from weft.compute.native import NativeSampler
from weft.core.values.types import FinishReason
from weft.engine.scheduling.queues import Admission
from weft.engine.step.step_sampler import StepSampler

PROMPT = list(range(10, 21))  # 11 tokens: two full blocks of 4 and a part
OTHER = list(range(30, 41))


@pytest.fixture
def engine():
    """With room for all."""
    return make_engine()


def test_one_request_gives_the_tokens_of_its_prefix(engine):
    """The engine adds nothing to and takes nothing from what the model says."""
    answer = engine.finish("a", PROMPT, max_tokens=9)
    assert answer.token_ids == greedy_after(PROMPT, 9)
    assert answer.finish_reason is FinishReason.LENGTH


def test_a_long_prompt_is_computed_in_chunks_of_the_budget():
    """No step computes more rows than the budget, and only the last chunk samples."""
    engine = make_engine(max_num_batched_tokens=4)
    answer = engine.finish("a", PROMPT, max_tokens=1)
    assert engine.runner.num_rows == [4, 4, 3]
    assert answer.token_ids == greedy_after(PROMPT, 1)


def test_decoding_goes_on_while_a_long_prompt_is_computed():
    """One budget for all: a running answer gets its token in every step of another's prefill."""
    engine = make_engine(max_num_batched_tokens=4)
    engine.submit("a", PROMPT[:3], max_tokens=6)
    engine.step()
    engine.submit("b", OTHER, max_tokens=1)
    for _ in range(3):
        engine.step()
    assert len(engine.answers["a"][0].token_ids) == 4
    assert engine.answers["b"][0].token_ids == []


def test_newest_sequence_is_preempted_when_blocks_run_out():
    """Preemption picks the last to arrive; nothing is dropped and no block leaks."""
    engine = make_engine(num_blocks=4, max_model_len=12)
    engine.submit("old", PROMPT[:7], max_tokens=4)
    answer = engine.finish("new", OTHER[:7], max_tokens=4)
    assert engine.scheduler.planner.num_preemptions == 1
    assert engine.answers["old"][0].token_ids == greedy_after(PROMPT[:7], 4)
    assert answer.token_ids == greedy_after(OTHER[:7], 4)
    assert engine.pool.num_held == 0


def test_smaller_priority_runs_first_and_larger_is_preempted():
    """Under the priority policy both admission and preemption follow (priority, arrival)."""
    engine = make_engine(policy="priority", num_blocks=4, max_model_len=12)
    engine.submit("late", PROMPT[:7], max_tokens=4, priority=5)
    engine.submit("soon", OTHER[:7], max_tokens=4, priority=-1)
    plan = engine.step()
    engine.run()
    assert [entry.sequence.request.request_id for entry in plan.entries] == ["soon", "late"]
    assert engine.scheduler.planner.num_preemptions == 1
    assert engine.answers["soon"][0].token_ids == greedy_after(OTHER[:7], 4)


def test_priority_is_ignored_under_fcfs():
    """First come, first served, whatever number the caller gave."""
    engine = make_engine(policy="fcfs", max_num_seqs=1)
    engine.submit("first", PROMPT, max_tokens=1, priority=5)
    engine.submit("second", OTHER, max_tokens=1, priority=-5)
    plan = engine.step()
    assert [entry.sequence.request.request_id for entry in plan.entries] == ["first"]


def test_nobody_overtakes_a_head_of_line_that_does_not_fit():
    """A long prompt is not starved by short ones that would fit beside it."""
    engine = make_engine(num_blocks=6, max_model_len=24)
    engine.submit("a", PROMPT, max_tokens=4)
    engine.step()
    engine.submit("long", list(range(40, 60)), max_tokens=1)
    engine.submit("short", OTHER[:2], max_tokens=1)
    plan = engine.step()
    assert [entry.sequence.request.request_id for entry in plan.entries] == ["a"]


def test_a_second_request_reuses_the_full_blocks_of_the_first(engine):
    """Cached tokens are counted and not computed again, and the answer is the same."""
    engine.finish("a", PROMPT, max_tokens=3)
    rows_before = sum(engine.runner.num_rows)
    engine.finish("b", PROMPT, max_tokens=3)
    assert engine.answers["b"][0].num_cached_tokens == 8
    assert sum(engine.runner.num_rows) - rows_before == len(PROMPT) - 8 + 2
    assert engine.answers["b"][0].token_ids == engine.answers["a"][0].token_ids


def test_a_fully_cached_prompt_still_computes_its_last_block(engine):
    """At least one token is left to compute, for its logits (trap 1)."""
    engine.finish("a", PROMPT[:8], max_tokens=1)
    engine.finish("b", PROMPT[:8], max_tokens=1)
    assert engine.answers["b"][0].num_cached_tokens == 4
    assert engine.answers["b"][0].token_ids == greedy_after(PROMPT[:8], 1)


def test_equal_prompts_of_one_step_share_their_blocks(engine):
    """Blocks are findable from the moment they are planned."""
    engine.submit("a", PROMPT, max_tokens=2)
    engine.submit("b", PROMPT, max_tokens=2)
    plan = engine.step()
    assert plan.num_tokens == len(PROMPT) + len(PROMPT) - 8
    assert plan.entries[0].sequence.block_ids[:2] == plan.entries[1].sequence.block_ids[:2]
    engine.run()
    assert engine.answers["b"][0].token_ids == greedy_after(PROMPT, 2)


def test_blocks_of_decoded_tokens_are_reused_in_the_next_turn(engine):
    """A conversation's next turn finds the blocks its last answer filled."""
    engine.finish("a", PROMPT, max_tokens=6)
    turn = PROMPT + engine.answers["a"][0].token_ids + [50, 51]
    engine.finish("b", turn, max_tokens=1)
    assert engine.answers["b"][0].num_cached_tokens == 16


def test_another_salt_never_finds_the_same_blocks(engine):
    """Callers with different salts cannot see each other's cache, not even by timing (trap 7)."""
    engine.finish("a", PROMPT, max_tokens=1, salt="one")
    engine.submit("b", PROMPT, max_tokens=1, salt="two")
    engine.submit("c", PROMPT, max_tokens=1)
    engine.finish("d", PROMPT, max_tokens=1, salt="one")
    cached = [engine.answers[r][0].num_cached_tokens for r in "bcd"]
    assert cached == [0, 0, 8]


def test_without_prefix_caching_nothing_is_found():
    """The switch turns reading and writing off."""
    engine = make_engine(enable_prefix_caching=False)
    engine.finish("a", PROMPT, max_tokens=1)
    engine.finish("b", PROMPT, max_tokens=1)
    assert engine.answers["b"][0].num_cached_tokens == 0
    assert engine.scheduler.cache.num_cached == 0


@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
def test_abort_frees_blocks_in_every_phase(phase):
    """One final output of reason "abort", no token after it, no block held."""
    engine = make_engine(max_num_batched_tokens=4)
    engine.submit("a", PROMPT, max_tokens=20)
    for _ in range({"waiting": 0, "prefill": 1, "decode": 6}[phase]):
        engine.step()
    engine.abort("a")
    engine.run()
    assert engine.answers["a"][0].finish_reason is FinishReason.ABORT
    assert engine.answers["a"][0].num_endings == 1
    assert engine.pool.num_held == 0
    engine.scheduler.check()


def test_abort_between_plan_and_commit_drops_the_late_token(engine):
    """A token of a step that was already running is ignored, and blocks are freed once (trap 2)."""
    engine.submit("a", PROMPT, max_tokens=5)
    plan, sampled = _begin(engine)
    engine.abort("a")
    assert engine.scheduler.commit(plan, sampled) == []
    engine.scheduler.check()
    assert engine.pool.num_held == 0


def test_preemption_between_plan_and_commit_drops_the_token_and_makes_it_again(engine):
    """The sampled token is delivered once: dropped now, computed again on resume (trap 3)."""
    engine.submit("a", PROMPT, max_tokens=3)
    plan, sampled = _begin(engine)
    assert engine.scheduler.reset_cache(preempt_running=True)
    assert engine.scheduler.commit(plan, sampled) == []
    engine.run()
    assert engine.answers["a"][0].token_ids == greedy_after(PROMPT, 3)


def test_blocks_of_a_step_that_did_not_run_are_not_found(engine):
    """A block planned and then given back uncomputed holds nothing; nobody may share it."""
    engine.submit("a", PROMPT, max_tokens=3)
    engine.scheduler.plan()
    engine.abort("a")
    answer = engine.finish("b", PROMPT, max_tokens=3)
    assert answer.num_cached_tokens == 0
    assert answer.token_ids == greedy_after(PROMPT, 3)


def test_aborting_one_answer_leaves_the_others(engine):
    """n answers share a request, not a fate (trap 11)."""
    engine.submit("a", PROMPT, n=3, temperature=1.0, max_tokens=6)
    engine.step()
    engine.abort("a", 1)
    engine.run()
    reasons = [answer.finish_reason for answer in engine.answers["a"]]
    assert reasons == [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.LENGTH]


def test_answers_of_one_request_differ_by_their_seed_alone(engine):
    """Answer i of seed s is what a single request of seed s + i gives."""
    engine.submit("n", PROMPT, n=3, temperature=1.0, seed=40, max_tokens=8)
    answer = engine.finish("single", PROMPT, temperature=1.0, seed=42, max_tokens=8)
    assert engine.answers["n"][2].token_ids == answer.token_ids
    assert engine.answers["n"][0].token_ids != engine.answers["n"][1].token_ids


def test_the_last_token_may_fill_the_context_exactly():
    """The context's last token is delivered, with reason "length", and no slot lies past it (trap 10)."""
    answer = make_engine(max_model_len=16).finish("a", PROMPT, max_tokens=None)
    assert len(answer.token_ids) == 5
    assert answer.finish_reason is FinishReason.LENGTH


def test_a_stop_token_ends_the_answer_and_is_its_reason():
    """A caller's stop token is part of the ids, and named as the reason."""
    expected = greedy_after(PROMPT, 4)
    answer = make_engine().finish("a", PROMPT, max_tokens=9, stop_token_ids=[expected[3]])
    assert answer.token_ids == expected[: expected.index(expected[3]) + 1]
    assert answer.stop_reason == expected[3]


def test_end_of_sequence_has_no_stop_reason_and_other_end_tokens_do(engine):
    """The primary end token stops plainly; the generation config's others are named."""
    for request_id, token_id in (("primary", EOS), ("other", 2)):
        engine.submit(
            request_id, PROMPT, ignore_eos=False, max_tokens=9, allowed_token_ids=[token_id]
        )
    engine.run()
    assert engine.answers["primary"][0].stop_reason is None
    assert engine.answers["other"][0].stop_reason == 2
    assert engine.answers["other"][0].finish_reason is FinishReason.STOP


def test_min_tokens_holds_through_preemption(engine):
    """Output counts survive a preemption: no stop token before the minimum (trap 4)."""
    engine.submit(
        "a", PROMPT, ignore_eos=False, min_tokens=6, max_tokens=12, logit_bias={EOS: 50.0}
    )
    for _ in range(3):
        engine.step()
    engine.scheduler.reset_cache(preempt_running=True)
    engine.run()
    assert EOS not in engine.answers["a"][0].token_ids[:6]
    assert engine.answers["a"][0].token_ids[6] == EOS


def test_penalties_see_the_same_output_after_preemption():
    """A preempted answer is penalised for the tokens it gave before (trap 4)."""
    params = {"max_tokens": 12, "frequency_penalty": 2.0, "repetition_penalty": 1.7}
    plain = make_engine()
    plain.submit("a", PROMPT, **params)
    plain.run()
    engine = make_engine()
    engine.submit("a", PROMPT, **params)
    for _ in range(5):
        engine.step()
        engine.scheduler.reset_cache(preempt_running=True)
    engine.run()
    assert engine.answers["a"][0].token_ids == plain.answers["a"][0].token_ids


def test_a_step_scores_no_more_rows_than_it_may_keep():
    """A long prompt that is scored takes more steps; its scores are the same, and nobody starves."""
    plain = make_engine()
    limited = make_engine()
    limited.scheduler.planner.max_scored_rows = 3
    for engine in (plain, limited):
        for name in ("a", "b"):
            engine.submit(name, [*PROMPT, ord(name) % 64], prompt_logprobs=2, max_tokens=2)
        engine.submit("c", PROMPT, max_tokens=2)
    plain.run()
    while limited.scheduler.has_work:
        plan = limited.step()
        assert sum(entry.num_leading for entry in plan.entries) <= 3
    for name in "abc":
        got, expected = limited.answers[name][0], plain.answers[name][0]
        assert got.error is None
        assert got.prompt_logprobs == expected.prompt_logprobs
        assert got.token_ids == expected.token_ids


def test_prompt_logprobs_are_whole_when_chunked_cached_and_preempted():
    """They come once, cover every position but the first, and never come from the cache (trap 6)."""
    plain = make_engine()
    plain.submit("a", PROMPT, prompt_logprobs=2, max_tokens=1)
    plain.run()
    engine = make_engine(max_num_batched_tokens=3)
    engine.finish("warm", PROMPT, max_tokens=1)
    engine.submit("a", PROMPT, prompt_logprobs=2, max_tokens=1)
    engine.step()
    engine.step()
    engine.scheduler.reset_cache(preempt_running=True)
    engine.run()
    got = engine.answers["a"][0]
    assert len(got.prompt_logprobs) == len(PROMPT) - 1
    assert got.prompt_logprobs == plain.answers["a"][0].prompt_logprobs
    assert got.num_cached_tokens == 0


def test_nan_logits_end_one_sequence_and_distrust_its_blocks():
    """One row's failure is its own: the others go on, and nothing it touched stays in the cache."""
    engine = make_engine(FakeRunner(nan_after=PROMPT[-1]))
    engine.submit("bad", PROMPT, max_tokens=3)
    engine.finish("good", OTHER, max_tokens=3)
    assert engine.answers["bad"][0].finish_reason is FinishReason.ERROR
    assert "not numbers" in engine.answers["bad"][0].error
    assert engine.answers["good"][0].token_ids == greedy_after(OTHER, 3)
    engine.finish("again", PROMPT[:-1], max_tokens=1)
    assert engine.answers["again"][0].num_cached_tokens == 0


def test_the_cache_cannot_be_reset_under_running_requests_unless_requested(engine):
    """Held blocks refuse the reset; with the flag their owners are preempted and lose no token (trap 8)."""
    engine.submit("a", PROMPT, max_tokens=6)
    engine.step()
    assert engine.scheduler.reset_cache(preempt_running=False) is False
    assert engine.scheduler.reset_cache(preempt_running=True) is True
    engine.run()
    assert engine.answers["a"][0].token_ids == greedy_after(PROMPT, 6)


def test_admission_of_started_sequences_lets_only_those_finish(engine):
    """While draining, what runs runs on and what waits keeps waiting."""
    engine.submit("a", PROMPT, max_tokens=3)
    engine.step()
    engine.submit("b", OTHER, max_tokens=3)
    engine.scheduler.admission = Admission.STARTED
    engine.run()
    assert engine.answers["a"][0].finish_reason is FinishReason.LENGTH
    assert engine.answers["b"][0].finish_reason is None
    engine.scheduler.admission = Admission.OPEN
    engine.run()
    assert engine.answers["b"][0].finish_reason is FinishReason.LENGTH


def test_an_answer_longer_than_the_pool_ends_with_length():
    """A sequence can never wait for blocks that do not exist."""
    answer = make_engine(num_blocks=4, max_model_len=128).finish("a", PROMPT, max_tokens=None)
    assert len(answer.token_ids) == 5
    assert answer.finish_reason is FinishReason.LENGTH


def _begin(engine):
    """Plan and compute a step without committing it."""
    plan = engine.scheduler.plan()
    logits = engine.runner.forward(plan.to_batch(engine.config.cache_config.block_size))
    return plan, StepSampler(NativeSampler()).sample(logits, plan)
