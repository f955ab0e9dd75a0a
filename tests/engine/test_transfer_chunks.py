"""Prompts that are lent while they are computed: what of them is there goes ahead of the rest."""

import threading
from functools import partial

import pytest

from tests.busy import PATIENCE_S
from tests.doubles.engine_thread import EngineThread, GatedRunner
from tests.doubles.fake_runner import FakeRunner
from tests.doubles.stepping import make_request
from tests.engine.test_kv_transfer import run_engine, tokens_of, wait_for_held
from tests.engine.test_offloading import greedy
from weft.core.values.kv_transfer import KEY, KvConnector, KvRole
from weft.core.values.types import FinishReason, SamplingParams
from weft.engine.ipc.messages import Abort, Add, ResetPrefixCache

PROMPT = [*range(5, 23)]  # 4 blocks, and 2 tokens
LEND = {"do_remote_decode": True, "do_chunked_transfer": True}


@pytest.fixture(params=list(KvConnector))
def engine(request):
    """Runs one of a role, with each connector, as a context."""
    return partial(run_engine, connector=request.param)


def send(
    running: EngineThread, request_id: str, prompt: list[int], num_tokens: int, args: dict
) -> None:
    params = SamplingParams(
        temperature=0.0, ignore_eos=True, max_tokens=num_tokens, extra_args={KEY: args}
    )
    running.send(Add(make_request(request_id, prompt, params)))


def outputs_until(running: EngineThread, is_last):
    """What the engine says of its requests, up to an output that is the last."""
    events = running.until(lambda e: any(map(is_last, getattr(e, "outputs", ()))))
    return [output for event in events for output in getattr(event, "outputs", ())]


def end_of(running: EngineThread):
    return outputs_until(running, lambda output: output.finish_reason is not None)


def begin(producer: EngineThread, runner: GatedRunner) -> dict:
    """The first 8 tokens of the prompt are computed, and no more; what fetches all of it."""
    send(producer, "p", PROMPT, 1, LEND)
    runner.allow(1)
    return outputs_until(producer, lambda output: output.kv_transfer_params)[-1].kv_transfer_params


def wait_until_there(runner: FakeRunner, token_id: int) -> None:
    """Until a block that ends with this token is in the pool."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        ends = [runner.read_block(block_id).view("int64")[3] for block_id in range(16)]
        if token_id in ends:
            return
        pause.wait(0.01)
    raise AssertionError(f"no block ends with {token_id}")


def test_blocks_come_while_the_rest_of_their_prompt_is_computed(engine):
    """Two of four are there before the second step; and nobody holds any in the end."""
    gated, target = GatedRunner(), FakeRunner()
    with (
        engine(KvRole.PRODUCER, runner=gated, budget=8) as producer,
        engine(KvRole.CONSUMER, runner=target) as consumer,
    ):
        send(consumer, "d", PROMPT, 5, begin(producer, gated))
        wait_until_there(target, PROMPT[7])
        gated.allow(2)
        outputs = end_of(consumer)
        assert tokens_of(outputs) == greedy(PROMPT, 5)
        assert outputs[-1].num_cached_tokens == 16
        end_of(producer)
        for each in (producer, consumer):
            wait_for_held(each, 0)


@pytest.mark.parametrize("command", [Abort(["p"]), ResetPrefixCache(3, True)])
def test_who_stops_computing_lends_nothing_more(engine, command):
    """Aborted, or begun anew: who fetches computes the rest of the prompt itself."""
    gated, target = GatedRunner(), FakeRunner()
    with (
        engine(KvRole.PRODUCER, runner=gated, budget=8) as producer,
        engine(KvRole.CONSUMER, runner=target) as consumer,
    ):
        send(consumer, "d", PROMPT, 5, begin(producer, gated))
        wait_until_there(target, PROMPT[7])
        producer.send(command)
        gated.allow(1)  # the step that had begun
        outputs = end_of(consumer)
        assert tokens_of(outputs) == greedy(PROMPT, 5)
        assert outputs[-1].num_cached_tokens == 8
        producer.send(Abort(["p"]))
        gated.allow(8)
        for each in (producer, consumer):
            wait_for_held(each, 0)


def test_who_fetches_is_aborted_while_the_prompt_is_computed(engine):
    """Neither side holds anything then. The other engine ends what it computes, unless that is over before."""
    gated, target = GatedRunner(), FakeRunner()
    with (
        engine(KvRole.PRODUCER, runner=gated, budget=4) as producer,
        engine(KvRole.CONSUMER, runner=target) as consumer,
    ):
        send(consumer, "d", PROMPT, 5, begin(producer, gated))
        wait_until_there(target, PROMPT[3])
        consumer.send(Abort(["d"]))
        wait_for_held(consumer, 0)
        gated.allow(8)
        assert end_of(producer)[-1].finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
        wait_for_held(producer, 0)


def test_a_prompt_of_one_step_is_lent_when_it_is_there(engine):
    """With its first token, as without the field."""
    with engine(KvRole.PRODUCER) as producer, engine(KvRole.CONSUMER) as consumer:
        send(producer, "p", PROMPT, 1, LEND)
        [lent] = end_of(producer)
        send(consumer, "d", PROMPT, 4, lent.kv_transfer_params)
        assert tokens_of(end_of(consumer)) == greedy(PROMPT, 4)
        wait_for_held(producer, 0)
