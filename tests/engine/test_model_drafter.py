"""Drafts by a model: the same answers, and its K/V right wherever blocks go."""

import numpy as np
import pytest

from tests.doubles.drafting import by_model, draft_with
from tests.doubles.fake_runner import FakeRunner, greedy_after
from tests.doubles.stepping import make_engine
from tests.engine.test_speculation import VOCAB, WISHES, answers

TIGHT = [
    {},
    {"max_num_batched_tokens": 7, "max_num_seqs": 4},
    {"num_blocks": 40},
    {"enable_prefix_caching": False, "num_blocks": 40, "max_num_batched_tokens": 16},
]
IDS = ["batched", "chunked", "preempted", "both"]


class Forgetful(FakeRunner):
    """A draft that is wrong after every third token, and no number after some."""

    def _row(self, batch, row):
        logits = super()._row(batch, row)
        token_id = int(batch.token_ids[row])
        if token_id % 29 == 0:
            return np.full_like(logits, np.nan)
        return np.roll(logits, 1) if token_id % 3 == 0 else logits


class Narrow(FakeRunner):
    """A draft whose logits are fewer than the model's: its table is padded less."""

    def _row(self, batch, row):
        assert batch.token_ids.max() < self.vocab_size
        return super()._row(batch, row)


def facts(found):
    """All that a caller sees."""
    return [
        (a.token_ids, a.logprobs, a.prompt_logprobs, a.finish_reason, a.stop_reason) for a in found
    ]


@pytest.mark.parametrize(("num", "options"), [*zip((4, 1, 9, 4), TIGHT, strict=True)], ids=IDS)
def test_every_answer_is_the_same_bit_for_bit(num, options):
    """Sampled, penalised, bound by grammars or thoughts, scored, preempted: a draft changes nothing."""
    _, plain = answers(FakeRunner(VOCAB), **options)
    engine, drafted = answers(
        FakeRunner(VOCAB), Forgetful(VOCAB), speculation=by_model(num, VOCAB), **options
    )
    assert facts(drafted) == facts(plain)
    assert 0 < engine.scheduler.drafts.num_accepted <= engine.scheduler.drafts.num_tokens


@pytest.mark.parametrize("vocab_size", [VOCAB - 40, VOCAB + 40])
def test_tables_may_be_padded_differently(vocab_size):
    """Logits are often wider than the tokenizer, and not of all models of a family alike."""
    _, plain = answers(FakeRunner(VOCAB))
    engine, drafted = answers(
        FakeRunner(VOCAB), Narrow(vocab_size), speculation=by_model(4, vocab_size)
    )
    assert facts(drafted) == facts(plain)
    assert engine.scheduler.drafts.num_tokens > 0


@pytest.mark.parametrize("options", TIGHT, ids=IDS)
def test_a_draft_that_is_the_model_is_always_right(options):
    """Whatever the blocks went through, the draft has seen each token before: greedy, sampled, under a grammar."""
    engine = make_engine(
        FakeRunner(VOCAB),
        **{"vocab_size": VOCAB, "num_blocks": 512, "max_model_len": 96, **options},
        speculation=by_model(4, VOCAB),
    )
    draft_with(engine, FakeRunner(VOCAB))
    for index in range(6):
        engine.submit(
            f"r{index}",
            [*range(10, 20), index],
            temperature=0.5 * (index % 3),
            seed=index,
            max_tokens=40,
            n=1 + index % 2,
            frequency_penalty=0.5 * (index == 5),
        )
        engine.step()
    engine.run()
    counts = engine.scheduler.drafts
    assert counts.num_accepted == counts.num_tokens > 100
    assert engine.pool.num_held == 0


def test_grammars_bind_the_draft_too():
    """It is asked for what the grammar lets come, and so it is right where the model is."""
    wish = next(wish for wish in WISHES if "grammar" in wish)
    engine, _ = answers(
        FakeRunner(VOCAB), FakeRunner(VOCAB), speculation=by_model(4, VOCAB), wishes=[wish]
    )
    assert engine.scheduler.drafts.num_accepted == engine.scheduler.drafts.num_tokens > 8


def make_drafted(draft=None, **options):
    """An engine with a draft that is the model itself; and the draft."""
    engine = make_engine(speculation=by_model(), **options)
    draft = FakeRunner() if draft is None else draft
    draft_with(engine, draft)
    return engine, draft


def test_the_first_token_does_not_wait_for_the_draft():
    """The prompt is computed by the draft when there is something to draft behind it."""
    engine, draft = make_drafted()
    engine.submit("a", list(range(3, 33)), max_tokens=20)
    engine.step()
    assert (len(engine.answers["a"][0].token_ids), draft.num_rows) == (1, [])
    engine.step()
    assert draft.num_rows == [31, 1, 1, 1]
    assert len(engine.answers["a"][0].token_ids) == 6
    engine.step()
    assert draft.num_rows[4:] == [2, 1, 1, 1]


def test_a_long_prompt_is_computed_by_the_draft_in_steps():
    """Each takes as many rows as a step may have; the others draft meanwhile."""
    engine, draft = make_drafted(max_num_batched_tokens=16, num_blocks=64)
    engine.submit("a", list(range(3, 53)), max_tokens=20)
    while not engine.answers["a"][0].token_ids:
        engine.step()
    for _ in range(4):
        engine.step()
    assert draft.num_rows[:4] == [16, 16, 16, 6]  # the answer has grown meanwhile
    assert engine.scheduler.drafts.num_accepted == 4
    engine.run()
    assert engine.answers["a"][0].token_ids == greedy_after(list(range(3, 53)), 20)


def test_the_draft_finds_what_it_computed_of_a_prefix():
    """A second prompt that begins alike is computed from where they part; so are the n answers of one."""
    engine, draft = make_drafted()
    prompt = list(range(3, 35))
    engine.submit("a", prompt, max_tokens=10)
    engine.run()
    draft.num_rows.clear()
    engine.submit("b", [*prompt, 7, 8], max_tokens=10, n=3, temperature=1.0)
    engine.run()
    assert draft.num_rows[0] == 3 + 3 + 3  # of 35 tokens each, 32 of which lie in full blocks
    assert engine.scheduler.drafts.num_accepted == engine.scheduler.drafts.num_tokens


def test_a_cleared_cache_is_cleared_for_the_draft():
    """Its pool may be another one then."""
    engine, draft = make_drafted()
    prompt = list(range(3, 35))
    engine.submit("a", prompt, max_tokens=10)
    engine.run()
    assert engine.scheduler.reset_cache(preempt_running=True)
    cache = engine.config.cache_config
    draft.allocate_kv(num_blocks=cache.num_blocks, block_size=cache.block_size)
    draft.epoch += 1
    draft.num_rows.clear()
    engine.submit("b", prompt, max_tokens=10)
    engine.run()
    assert draft.num_rows[0] == 33


def test_beyond_its_own_context_it_drafts_nothing():
    """A small model may see fewer tokens than the one it drafts for."""
    engine = make_engine(speculation=by_model(max_model_len=20))
    draft = FakeRunner()
    draft_with(engine, draft)
    engine.submit("a", list(range(3, 13)), max_tokens=40)
    engine.run()
    assert engine.answers["a"][0].token_ids == greedy_after(list(range(3, 13)), 40)
    assert 0 < engine.scheduler.drafts.num_accepted < 20 - 10


def test_a_request_that_cannot_be_sampled_ends_alone():
    """The draft meets what the step will meet; the engine goes on."""
    engine, _ = make_drafted()
    engine.submit("bad", [3, 4, 5], max_tokens=8, logit_bias={10**6: 1.0})
    engine.submit("good", [3, 4, 5], max_tokens=8)
    engine.run()
    assert engine.answers["bad"][0].error is not None
    assert engine.answers["good"][0].token_ids == greedy_after([3, 4, 5], 8)


def test_without_blocks_there_are_no_drafts():
    """A guess never takes a block that a token needs."""
    engine, _ = make_drafted(num_blocks=6, block_size=4)
    for name in "ab":
        engine.submit(name, [3, 4, 5], max_tokens=8)
    engine.run()
    assert engine.answers["a"][0].token_ids == greedy_after([3, 4, 5], 8)
    assert engine.scheduler.planner.num_preemptions == 0
