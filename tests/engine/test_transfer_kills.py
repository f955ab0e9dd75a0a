"""One of two engines is killed while blocks go between them: the other answers right, and holds nothing.

The one that is killed is a process, whose runner kills it with SIGKILL at a certain call.
"""

import multiprocessing
import os
import random
import signal
from contextlib import contextmanager, suppress

import pytest

from tests.busy import PATIENCE_S
from tests.doubles.fake_runner import FakeRunner
from tests.doubles.state_runner import StateRunner, StateSlots, answer_of
from tests.engine import test_states_elsewhere
from tests.engine.test_kv_transfer import LEND, ask, run_engine, tokens_of, wait_for_held
from tests.engine.test_offloading import greedy
from tests.engine.test_transfer_chunks import LEND as LEND_CHUNKS
from tests.engine.test_transfer_chunks import outputs_until, send
from tests.engine.test_transfer_segments import num_segments, wait_for_segments
from weft.core.values.kv_transfer import KvConnector, KvRole
from weft.core.values.types import FinishReason
from weft.engine.ipc.messages import ResetPrefixCache

PROMPT = [*range(3, 37)]  # 8 blocks, and 2 tokens
POINTS = range(10)  # seeds of each side


class DyingRunner(FakeRunner):
    """Kills its process at the n-th call of a step or of a copy, either way; calls count from 0."""

    def __init__(self, dies_at: int) -> None:
        super().__init__()
        self._num_left = dies_at

    def forward(self, batch):
        self.count()
        return super().forward(batch)

    def copy_block(self, block_id, place):
        """See `BlockCopies`. A half of it is there when the process dies."""
        place[: len(place) // 2] = 255
        self.count()
        super().copy_block(block_id, place)

    def write_block(self, block_id, data):
        self.count()
        super().write_block(block_id, data)

    def block_rows(self, block_id):
        self.count()
        return super().block_rows(block_id)

    def count(self) -> None:
        """One more call."""
        if not self._num_left:
            os.kill(os.getpid(), signal.SIGKILL)
        self._num_left -= 1


class DyingStates(DyingRunner, StateRunner):
    """Copies of states count too."""

    @property
    def state_slots(self):
        return CountedSlots(self._states, self.count)


class CountedSlots(StateSlots):
    """Slots that `count` who copies them."""

    def __init__(self, states, count) -> None:
        super().__init__(states)
        self._count = count

    def copy_block(self, block_id, place):
        """See `Copies`. A half of it is there when the process dies."""
        place[: len(place) // 2] = 255
        self._count()
        super().copy_block(block_id, place)

    def block_rows(self, block_id):
        self._count()
        return super().block_rows(block_id)


RUNNERS = {False: (DyingRunner, run_engine), True: (DyingStates, test_states_elsewhere.run_engine)}


def serve(pipe, role: KvRole, connector: KvConnector, dies_at: int, changes: dict) -> None:
    """In a process of its own: an answer to everything that is asked through the pipe.

    Of a prompt that is to be lent in chunks, what fetches it is the answer, and it is computed on.
    """
    dying, run = RUNNERS[changes.pop("has_states", False)]
    with run(role, runner=dying(dies_at), connector=connector, **changes) as running:
        while True:
            request = pipe.recv()
            if request[-1] == LEND_CHUNKS:
                send(running, *request)
                outputs = outputs_until(running, lambda output: output.kv_transfer_params)
            else:
                outputs = ask(running, *request)
            pipe.send((tokens_of(outputs), outputs[-1].kv_transfer_params))


class Mortal:
    """An engine in another process; `EOFError` is its death."""

    def __init__(self, process, pipe) -> None:
        self._process = process
        self._pipe = pipe

    def ask(self, request_id: str, prompt, num_tokens: int, args=None):
        self._pipe.send((request_id, prompt, num_tokens, args))
        assert self._pipe.poll(PATIENCE_S)
        return self._pipe.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join(PATIENCE_S)


@contextmanager
def mortal(role: KvRole, connector: KvConnector, dies_at: int, **changes):
    # Processes of their own would import all of it anew.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    near, far = context.Pipe()
    process = context.Process(
        target=serve, args=(far, role, connector, dies_at, changes), daemon=True
    )
    process.start()
    far.close()
    engine = Mortal(process, near)
    try:
        yield engine
    finally:
        engine.kill()
        near.close()


@pytest.fixture(params=list(KvConnector))
def connector(request) -> KvConnector:
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("seed", POINTS)
def test_who_fetches_from_one_that_is_killed_answers_right_or_with_one_error(connector, seed):
    """In the middle of a block, or before the first is wanted."""
    draw, before = random.Random(seed), num_segments()
    dies_at, fails = draw.choice([*range(1, 9), 100]), draw.choice([False, True])
    with (
        run_engine(KvRole.CONSUMER, connector=connector, fails_requests=fails) as consumer,
        mortal(KvRole.PRODUCER, connector, dies_at) as producer,
    ):
        _, lent = producer.ask("p", PROMPT, 1, LEND)
        if dies_at == 100:
            producer.kill()
        outputs = ask(consumer, "d", PROMPT, 4, lent)
        if fails:
            assert [o.finish_reason for o in outputs] == [FinishReason.ERROR]
            assert "the prompt's KV could not be fetched" in outputs[0].error
        else:
            assert tokens_of(outputs) == greedy(PROMPT, 4)
        other = [9, *PROMPT[1:]]
        assert tokens_of(ask(consumer, "e", other, 4)) == greedy(other, 4)
        wait_for_held(consumer, 0)
        wait_for_segments(before)


@pytest.mark.slow
@pytest.mark.parametrize("seed", POINTS)
def test_who_lends_to_one_that_is_killed_lends_to_the_next(connector, seed):
    """Before a block is in its pool, or in a step after that. What was lent stays so until its lease ends."""
    before, dies_at = num_segments(), random.Random(seed).randrange(10)
    with run_engine(KvRole.PRODUCER, connector=connector) as producer:
        with mortal(KvRole.CONSUMER, connector, dies_at) as consumer:
            [lent] = ask(producer, "p", PROMPT, 1, LEND)
            with pytest.raises(EOFError):
                consumer.ask("d", PROMPT, 4, lent.kv_transfer_params)
        producer.send(ResetPrefixCache(3, True))
        wait_for_held(producer, 0)
        wait_for_segments(before)
        with run_engine(KvRole.CONSUMER, connector=connector) as consumer:
            [lent] = ask(producer, "q", PROMPT, 1, LEND)
            outputs = ask(consumer, "d", PROMPT, 4, lent.kv_transfer_params)
            assert tokens_of(outputs) == greedy(PROMPT, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", POINTS)
def test_who_fetches_from_one_that_is_killed_while_it_computes_answers_right(connector, seed):
    """What came is used, and the rest is computed; or all of it, where there was nobody to fetch from."""
    before, dies_at = num_segments(), random.Random(seed).randrange(1, 14)
    with (
        run_engine(KvRole.CONSUMER, connector=connector) as consumer,
        mortal(KvRole.PRODUCER, connector, dies_at, budget=8) as producer,
    ):
        lent = None
        with suppress(EOFError):
            _, lent = producer.ask("p", PROMPT, 1, LEND_CHUNKS)
        assert tokens_of(ask(consumer, "d", PROMPT, 4, lent)) == greedy(PROMPT, 4)
        wait_for_held(consumer, 0)
        wait_for_segments(before)


@pytest.mark.slow
@pytest.mark.parametrize("seed", POINTS)
def test_who_fetches_states_from_one_that_is_killed_answers_right(connector, seed):
    """In the middle of a block, of the state behind them, or of the prompt."""
    draw, before = random.Random(seed), num_segments()
    dies_at, args = draw.randrange(2, 14), draw.choice([LEND, LEND_CHUNKS])
    run = test_states_elsewhere.run_engine
    with (
        run(KvRole.CONSUMER, connector=connector) as consumer,
        mortal(KvRole.PRODUCER, connector, dies_at, budget=16, has_states=True) as producer,
    ):
        lent = None
        with suppress(EOFError):
            _, lent = producer.ask("p", PROMPT, 1, args)
        assert tokens_of(ask(consumer, "d", PROMPT, 4, lent)) == answer_of(PROMPT, 4)
        wait_for_held(consumer, 0)
        wait_for_segments(before)


@pytest.mark.slow
@pytest.mark.parametrize("seed", POINTS)
def test_who_lends_states_to_one_that_is_killed_lends_to_the_next(connector, seed):
    """What was lent, the state too, stays so until its lease ends."""
    run, dies_at = test_states_elsewhere.run_engine, random.Random(seed).randrange(1, 11)
    with run(KvRole.PRODUCER, connector=connector) as producer:
        with mortal(KvRole.CONSUMER, connector, dies_at, has_states=True) as consumer:
            [lent] = ask(producer, "p", PROMPT, 1, LEND)
            with pytest.raises(EOFError):
                consumer.ask("d", PROMPT, 4, lent.kv_transfer_params)
        producer.send(ResetPrefixCache(3, True))
        wait_for_held(producer, 0)
        with run(KvRole.CONSUMER, connector=connector) as consumer:
            [lent] = ask(producer, "q", PROMPT, 1, LEND)
            outputs = ask(consumer, "d", PROMPT, 4, lent.kv_transfer_params)
            assert tokens_of(outputs) == answer_of(PROMPT, 4)
            assert outputs[-1].num_cached_tokens == 32
        wait_for_held(producer, 0)  # what was fetched is released when the consumer says so
