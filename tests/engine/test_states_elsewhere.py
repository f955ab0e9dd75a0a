"""States of sequences in a second tier and at other engines: a state goes where its block goes."""

import random
from contextlib import contextmanager
from functools import partial

import msgspec
import pytest

from tests.busy import PATIENCE_S
from tests.doubles.engine_thread import EngineThread, GatedStates
from tests.doubles.state_runner import StateRunner, answer_of
from tests.doubles.stepping import make_config, make_engine, make_request
from tests.doubles.transfers import transfer
from tests.engine.test_kv_tier import wait
from tests.engine.test_kv_transfer import LEND, Cutting, ask, num_held, tokens_of, wait_for_held
from tests.engine.test_transfer_chunks import LEND as LEND_CHUNKS
from tests.engine.test_transfer_chunks import end_of, outputs_until, send
from weft.core.values.kv_cache import StateCacheConfig
from weft.core.values.kv_transfer import KEY, KvConnector, KvRole
from weft.core.values.types import FinishReason, SamplingParams
from weft.engine.ipc.messages import Abort, Add, ResetPrefixCache, StepOutput
from weft.engine.kv.kv_tier import KvTier
from weft.engine.kv.kv_tier_stores import DamagedBlock, DirectoryBlocks, MemoryBlocks

PROMPT = [*range(10, 31)]  # 21 tokens: five full blocks of 4, and the last token
OTHER = [*range(31, 60)]


def states_of(num_slots: int = 8, interval: int = 8) -> StateCacheConfig:
    return StateCacheConfig(num_slots=num_slots, slot_bytes=8, mamba_block_size=interval)


# -- the second tier ------------------------------------------------------------------------------


@contextmanager
def engine_with(store, *, num_slots: int = 8, interval: int = 8, **overrides):
    """An engine with a tier of states and blocks, eight blocks in its pool."""
    tier = KvTier(store, 1 << 20, lambda: None, has_states=True)
    tier.wait_until_found(PATIENCE_S)
    states = states_of(num_slots, interval)
    engine = make_engine(StateRunner(), tier=tier, states=states, **{"num_blocks": 8, **overrides})
    try:
        yield engine
    finally:
        tier.close(PATIENCE_S)


def answer(engine, name: str, prompt: list[int], num_tokens: int = 3) -> int:
    """Have it answered, and see that it is right; how many of its tokens were found."""
    engine.submit(name, prompt, max_tokens=num_tokens)

    def has_ended():
        engine.offloading.take_arrived(engine.runner)
        engine.scheduler.check()
        engine.step()
        engine.scheduler.check()
        return not engine.scheduler.num_open_requests

    wait(has_ended)
    wait(lambda: not engine.tier._writes)
    found = engine.answers[name][0]
    assert found.token_ids == answer_of(prompt, num_tokens)
    return found.num_cached_tokens


def lose(engine, num_times: int = 1) -> None:
    """Use the whole pool for something else."""
    for number in range(num_times):
        answer(engine, f"lose {number}", OTHER, 2)


@pytest.fixture(params=["memory", "directory"])
def store(request, tmp_path):
    return MemoryBlocks() if request.param == "memory" else DirectoryBlocks.open(str(tmp_path), "a")


@pytest.mark.parametrize(
    ("prompt", "num_cached"),
    [
        (PROMPT, 20),
        ([*PROMPT, 40, 41], 20),
        ([*PROMPT[:18], *range(40, 50)], 16),  # four blocks in common, and the state of the fourth
        ([*PROMPT[:14], *range(40, 50)], 8),  # three, but the last state is of the second
        ([*PROMPT[:6], *range(40, 50)], 0),  # a block, without a state
    ],
)
def test_a_hit_in_the_tier_ends_where_a_state_is(store, prompt, num_cached):
    """However many blocks are there; none is read behind it, and of states the last alone."""
    with engine_with(store) as engine:
        answer(engine, "a", PROMPT)
        lose(engine)
        before = engine.tier.stats()
        assert answer(engine, "b", prompt) == num_cached
        after = engine.tier.stats()
        num_blocks = after.num_loaded_blocks - before.num_loaded_blocks
        assert num_blocks <= num_cached // 4
        block_bytes = engine.runner.read_block(0).nbytes
        num_bytes = after.num_loaded_bytes - before.num_loaded_bytes
        assert num_bytes == num_blocks * block_bytes + (8 if num_cached else 0)


def test_a_state_that_left_its_slot_is_found_while_its_blocks_are_in_the_pool(store):
    """Slots run out before blocks do: the state alone is read."""
    with engine_with(store, num_slots=2, interval=64, num_blocks=64) as engine:
        answer(engine, "a", PROMPT)
        answer(engine, "b", OTHER)
        answer(engine, "c", OTHER[1:])
        assert answer(engine, "d", PROMPT) == 20
        assert engine.tier.stats().num_loaded_blocks == 0
        assert engine.tier.stats().num_loaded_bytes == 8


def test_a_restart_finds_states_with_their_blocks(tmp_path):
    """What the pool held at the end is written, states too."""
    with engine_with(DirectoryBlocks.open(str(tmp_path), "a")) as engine:
        answer(engine, "a", PROMPT, 1)
        engine.offloading.close(engine.runner)
        wait(lambda: not engine.tier._thread.is_alive())
    with engine_with(DirectoryBlocks.open(str(tmp_path), "a")) as engine:
        assert answer(engine, "b", PROMPT) == 20


class DamagedStates(MemoryBlocks):
    """No state can be read."""

    def read(self, name):
        if name.endswith("s"):
            raise DamagedBlock
        return super().read(name)


def test_a_damaged_state_is_a_miss():
    """It is counted and forgotten; the prompt is computed."""
    with engine_with(DamagedStates()) as engine:
        answer(engine, "a", PROMPT)
        lose(engine)
        assert answer(engine, "b", PROMPT) == 0
        assert engine.tier.stats().num_damaged == 1


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_answers_are_those_alone(seed):
    """Prompts with beginnings in common, aborts and resets, few blocks, few slots, and a tier that is too small."""
    draw = random.Random(seed)
    with engine_with(
        MemoryBlocks(),
        num_slots=draw.choice((2, 3, 5)),
        interval=draw.choice((4, 8, 16)),
        num_blocks=draw.choice((12, 20)),
        max_num_batched_tokens=draw.choice((5, 16, 64)),
    ) as engine:
        engine.tier._max_bytes = draw.choice((2000, 5000, 1 << 20))
        requests: dict[str, tuple[list[int], int]] = {}
        for number in range(60):
            prompt = PROMPT[: draw.randrange(1, 22)]
            prompt = prompt + [draw.randrange(10, 60)] * draw.randrange(1, 12)
            requests[str(number)] = prompt, draw.randrange(1, 12)
            engine.submit(str(number), prompt, max_tokens=requests[str(number)][1])
            for _ in range(draw.randrange(6)):
                engine.offloading.take_arrived(engine.runner)
                engine.scheduler.check()
                engine.step()
                engine.scheduler.check()
            if draw.random() < 0.2:
                ended = draw.choice(list(requests))
                engine.abort(ended)
                del requests[ended]
            if draw.random() < 0.05:
                engine.scheduler.reset_cache(preempt_running=draw.random() < 0.5)

        def has_ended():
            engine.offloading.take_arrived(engine.runner)
            engine.step()
            engine.scheduler.check()
            return not engine.scheduler.num_open_requests

        wait(has_ended)
        assert engine.scheduler.cache.states.pool.num_held == 0
        assert engine.pool.num_held == 0
        for name, (prompt, num_tokens) in requests.items():
            assert engine.answers[name][0].token_ids == answer_of(prompt, num_tokens)
        assert engine.tier.stats().num_bytes <= engine.tier._max_bytes


# -- other engines --------------------------------------------------------------------------------


@contextmanager
def run_engine(
    role: KvRole,
    num_blocks: int = 16,
    runner: StateRunner | None = None,
    budget: int = 64,
    num_slots: int = 6,
    **changes,
):
    """`budget`: tokens of a step. At its end no slot is held."""
    config = make_config(
        num_blocks=num_blocks,
        max_model_len=40,
        max_num_batched_tokens=budget,
        states=states_of(num_slots),
    )
    config = msgspec.structs.replace(config, kv_transfer_config=transfer(role, **changes))
    running = EngineThread(runner or StateRunner(), config)
    with running:
        yield running
    running.scheduler.check()
    assert running.scheduler.cache.states.pool.num_held == 0


@pytest.fixture(params=list(KvConnector))
def connector(request) -> KvConnector:
    return request.param


@pytest.fixture
def engine(connector):
    """Runs one of a role, with that connector, as a context."""
    return partial(run_engine, connector=connector)


def test_a_prompt_is_gone_on_from_where_its_state_is(engine):
    """At its last full block before its last token, which is as far as is lent."""
    with engine(KvRole.PRODUCER) as producer, engine(KvRole.CONSUMER) as consumer:
        for number, prompt in enumerate((PROMPT, PROMPT[:20], PROMPT[:5])):
            [lent] = ask(producer, f"p{number}", prompt, 1, LEND)
            outputs = ask(consumer, f"d{number}", [9, *prompt[1:]], 2)  # the pool has another one
            outputs = ask(consumer, f"e{number}", prompt, 6, lent.kv_transfer_params)
            assert tokens_of(outputs) == answer_of(prompt, 6)
            assert len(lent.kv_transfer_params["remote_block_ids"][0]) == (len(prompt) - 1) // 4
            consumer.send(ResetPrefixCache(number, True))
            wait_for_held(producer, 0)
            assert outputs[-1].num_cached_tokens == (len(prompt) - 1) // 4 * 4


def test_a_prompt_shorter_than_a_block_and_a_token_is_not_lent(engine):
    """There is no state to go on from."""
    with engine(KvRole.PRODUCER) as producer:
        [lent] = ask(producer, "p", PROMPT[:4], 1, LEND)
        assert lent.kv_transfer_params is None
        assert num_held(producer) == 0


def test_the_state_alone_is_fetched_where_the_blocks_are_there(engine):
    """Their own state had to give its slot to others."""
    with (
        engine(KvRole.PRODUCER) as producer,
        engine(KvRole.CONSUMER, num_slots=2, num_blocks=40) as consumer,
    ):
        ask(consumer, "a", PROMPT, 1)
        ask(consumer, "b", OTHER, 1)
        [lent] = ask(producer, "p", PROMPT, 1, LEND)
        outputs = ask(consumer, "d", PROMPT, 4, lent.kv_transfer_params)
        assert tokens_of(outputs) == answer_of(PROMPT, 4)
        assert outputs[-1].num_cached_tokens == 20
        wait_for_held(producer, 0)


def test_a_prompt_whose_state_is_there_already_is_not_fetched(engine):
    """The lease ends all the same."""
    with engine(KvRole.PRODUCER) as producer, engine(KvRole.CONSUMER) as consumer:
        ask(consumer, "a", PROMPT, 1)
        [lent] = ask(producer, "p", PROMPT, 1, LEND)
        outputs = ask(consumer, "d", PROMPT, 4, lent.kv_transfer_params)
        assert tokens_of(outputs) == answer_of(PROMPT, 4)
        wait_for_held(producer, 0)


def test_leases_end_early_for_requests_that_need_their_slots(engine):
    """The oldest first, as for want of blocks; what was lent is computed by who wanted it."""
    prompts = [[start, *range(5, 21)] for start in (3, 4, 5)]
    with (
        engine(KvRole.PRODUCER, num_blocks=40, num_slots=3) as producer,
        engine(KvRole.CONSUMER) as consumer,
    ):
        lent = [
            ask(producer, f"p{i}", p, 1, LEND)[0].kv_transfer_params for i, p in enumerate(prompts)
        ]
        outputs = [ask(consumer, f"d{i}", p, 3, lent[i]) for i, p in enumerate(prompts)]
        wait_for_held(producer, 0)
    assert [tokens_of(each) for each in outputs] == [answer_of(p, 3) for p in prompts]
    assert [each[-1].num_cached_tokens for each in outputs] == [0, 16, 16]


def has_second_block(runner: StateRunner) -> bool:
    """Whether it has come; nothing has before the engine's thread has made the pool."""
    return any(PROMPT[7] in runner.read_block(b).view("int64")[3:4] for b in range(16))


def test_blocks_come_while_a_prompt_is_computed_and_its_state_last(engine):
    """Neither side holds anything then."""
    gated, target = GatedStates(), StateRunner()
    with (
        engine(KvRole.PRODUCER, runner=gated, budget=8) as producer,
        engine(KvRole.CONSUMER, runner=target) as consumer,
    ):
        send(producer, "p", PROMPT, 1, LEND_CHUNKS)
        gated.allow(1)
        lent = outputs_until(producer, lambda o: o.kv_transfer_params)[-1].kv_transfer_params
        send(consumer, "d", PROMPT, 5, lent)
        wait(lambda: has_second_block(target))
        gated.allow(3)
        outputs = end_of(consumer)
        assert tokens_of(outputs) == answer_of(PROMPT, 5)
        assert outputs[-1].num_cached_tokens == 20
        end_of(producer)
        for each in (producer, consumer):
            wait_for_held(each, 0)


def test_who_is_aborted_before_its_state_is_there_lends_none(engine):
    """Who fetches has blocks without a state, and computes the prompt."""
    gated, target = GatedStates(), StateRunner()
    with (
        engine(KvRole.PRODUCER, runner=gated, budget=8) as producer,
        engine(KvRole.CONSUMER, runner=target) as consumer,
    ):
        send(producer, "p", PROMPT, 1, LEND_CHUNKS)
        gated.allow(1)
        lent = outputs_until(producer, lambda o: o.kv_transfer_params)[-1].kv_transfer_params
        send(consumer, "d", PROMPT, 5, lent)
        wait(lambda: has_second_block(target))
        producer.send(Abort(["p"]))
        gated.allow(1)
        outputs = end_of(consumer)
        assert tokens_of(outputs) == answer_of(PROMPT, 5)
        assert outputs[-1].num_cached_tokens == 0
        for each in (producer, consumer):
            wait_for_held(each, 0)


@pytest.mark.slow
@pytest.mark.parametrize("num_bytes", [300, 380, 420, 500, 560, 600])
def test_a_connection_cut_anywhere_costs_time_and_nothing_else(num_bytes):
    """In the handshake, between blocks, inside one, or before the state."""
    tcp = partial(run_engine, connector=KvConnector.TCP)
    with tcp(KvRole.PRODUCER) as producer, tcp(KvRole.CONSUMER) as consumer:
        [lent] = ask(producer, "p", PROMPT, 1, LEND)
        way = Cutting(lent.kv_transfer_params["remote_port"], num_bytes)
        args = {**lent.kv_transfer_params, "remote_port": way.port}
        assert tokens_of(ask(consumer, "d", PROMPT, 4, args)) == answer_of(PROMPT, 4)
        wait_for_held(consumer, 0)
        way.close()
        producer.send(ResetPrefixCache(3, True))
        wait_for_held(producer, 0)


@pytest.mark.parametrize("seed", range(3))
def test_requests_aborts_and_resets_at_random_end_once_right_and_without_a_leak(engine, seed):
    """On both sides, with too few blocks and slots for all of it, and prompts lent whole or in chunks."""
    draw = random.Random(seed)
    beginnings = [[draw.randrange(3, 60) for _ in range(16)] for _ in range(4)]
    with (
        engine(KvRole.BOTH, num_blocks=14, num_slots=3, budget=8) as producer,
        engine(KvRole.BOTH, num_blocks=12, num_slots=draw.choice((2, 3, 5))) as consumer,
    ):
        wanted, tokens, reasons, aborted = {}, {}, {}, set()
        for number in range(40):
            prompt = [*draw.choice(beginnings)[: draw.randrange(4, 17)], number + 3]
            lent = ask(producer, f"p{number}", prompt, 1, draw.choice((LEND, LEND_CHUNKS)))
            told = [each.kv_transfer_params for each in lent if each.kv_transfer_params]
            params = SamplingParams(
                temperature=0.0,
                ignore_eos=True,
                max_tokens=draw.randrange(1, 9),
                extra_args={KEY: told[0]} if told else None,
            )
            wanted[f"d{number}"] = answer_of(prompt, params.max_tokens)
            consumer.send(Add(make_request(f"d{number}", prompt, params)))
            if not draw.randrange(6):
                aborted.add(f"d{draw.randrange(number + 1)}")
                consumer.send(Abort([max(aborted)]))
            if not draw.randrange(12):
                draw.choice((producer, consumer)).send(ResetPrefixCache(number, True))

        def take(event):
            for output in event.outputs if isinstance(event, StepOutput) else ():
                tokens.setdefault(output.engine_id, []).extend(output.token_ids)
                if output.finish_reason is not None:
                    reasons.setdefault(output.engine_id, []).append(output.finish_reason)
            return len(reasons) == len(wanted)

        consumer.until(take)
        for running in (producer, consumer):
            wait_for_held(running, 0)
    assert all(len(each) == 1 for each in reasons.values())
    for request_id, expected in wanted.items():
        got = tokens.get(request_id, [])
        assert got == expected[: len(got)]
        assert len(got) == len(expected) or reasons[request_id] == [FinishReason.ABORT]
