"""The engine's loop behind a mailbox that really blocks: what is due happens without another command."""

import pytest

from tests.doubles.engine_thread import EngineThread, GatedRunner
from tests.doubles.stepping import make_request
from weft.core.values.kv_cache import AllBlocksCleared
from weft.core.values.types import SamplingParams
from weft.engine.ipc.messages import Abort, Add, Pause, Ping, Reply, Resume, StepOutput

PROMPT = list(range(10, 21))


def add(request_id, **params):
    """A command that submits a greedy request."""
    merged = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 4, **params}
    return Add(make_request(request_id, PROMPT, SamplingParams(**merged)))


def reply_to(call_id):
    """Whether an event answers that call."""
    return lambda event: isinstance(event, Reply) and event.call_id == call_id


def has_tokens(event):
    """Whether an event is a step's that brought tokens."""
    return isinstance(event, StepOutput) and bool(event.outputs)


def ended(events):
    """Ids of the requests that ended in these events, once an answer."""
    outputs = [o for event in events if isinstance(event, StepOutput) for o in event.outputs]
    return [output.engine_id for output in outputs if output.finish_reason]


def cleared(events):
    """How often the cache was dropped, as its subscribers are told."""
    batches = [e.kv_events for e in events if isinstance(e, StepOutput) and e.kv_events]
    return [type(event) for batch in batches for event in batch.events].count(AllBlocksCleared)


def test_the_step_that_ends_the_last_request_answers_a_waiting_pause():
    """After its outputs, and without a word from anybody else."""
    runner = GatedRunner()
    with EngineThread(runner) as engine:
        engine.send(add("a", n=2))
        runner.allow(1)
        engine.until(has_tokens)
        engine.send(Pause(1, "wait", False))
        runner.allow(3)
        assert ended(engine.until(reply_to(1))) == ["a"] * 2


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
def test_an_idle_engine_answers_a_pause_at_once(mode):
    """There is nothing to wait for; and who follows the cache learns that it was dropped."""
    with EngineThread() as engine:
        engine.send(Pause(1, mode, True))
        assert cleared(engine.until(reply_to(1))) == 1


def test_an_abort_of_the_last_request_answers_a_waiting_pause():
    """No step comes after it."""
    runner = GatedRunner()
    with EngineThread(runner) as engine:
        engine.send(add("a", max_tokens=100))
        runner.allow(1)
        engine.until(has_tokens)
        engine.send(Pause(1, "wait", True), Abort(["a"]))
        runner.allow(1)  # one is under way, or none
        assert ended(engine.until(reply_to(1))) == ["a"]


def test_a_waiting_pause_is_not_answered_while_something_runs():
    """A ping that comes later is; nor is what waits in the queue begun."""
    runner = GatedRunner()
    with EngineThread(runner) as engine:
        engine.send(add("a"))
        runner.allow(1)
        engine.until(has_tokens)
        engine.send(Pause(1, "wait", False), add("b"), Ping(2))
        runner.allow(1)
        assert not any(map(reply_to(1), engine.until(reply_to(2))))
        runner.allow(2)
        assert ended(engine.until(reply_to(1))) == ["a"]
        engine.send(Resume(3))
        runner.allow(4)
        assert ended(engine.until(lambda event: ended([event]))) == ["b"]


def test_every_caller_of_a_pause_is_answered():
    """Also who asked before somebody else asked for another mode."""
    runner = GatedRunner()
    with EngineThread(runner) as engine:
        engine.send(add("a", max_tokens=100))
        runner.allow(1)
        engine.until(has_tokens)
        engine.send(Pause(1, "wait", False), Pause(2, "wait", True), Pause(3, "abort", False))
        runner.allow(1)  # one is under way, or none
        events = engine.until(reply_to(3))
        assert [event.call_id for event in events if isinstance(event, Reply)] == [1, 2, 3]
        assert (ended(events), cleared(events)) == (["a"], 1)
