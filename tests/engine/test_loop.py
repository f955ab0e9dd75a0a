"""The engine's loop, fed by a script of commands."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from tests.doubles.fake_runner import FakeRunner, greedy_after, logits_after
from tests.doubles.stepping import make_config, make_request
from weft.core.values.logprobs import LogprobsMode
from weft.core.values.types import FinishReason, SamplingParams
from weft.engine.ipc.messages import (
    Abort,
    Add,
    Pause,
    Ping,
    Ready,
    Reply,
    ResetPrefixCache,
    Resume,
    StepOutput,
    Stop,
)
from weft.engine.loop import EngineLoop
from weft.engine.weights.engine_model import EngineModel
from weft.model.embedded.byte_tokenizer import tokenizer_files

PROMPT = list(range(10, 21))


def byte_tokenizer_json():
    """Wider than the fake model's logits."""
    return tokenizer_files(300, "<|endoftext|>")["tokenizer.json"].decode()


class Wide:
    """A runner of a large vocabulary, whose logits cost little to make."""

    vocab_size = 152_000
    adapters = None

    def allocate_kv(self, *, num_blocks, block_size, num_state_slots=0):
        """It keeps none."""

    def forward(self, batch):
        """Some finite numbers."""
        return np.ones((len(batch.logit_rows), self.vocab_size), np.float32)


class Script:
    """A mailbox that gives one entry each time it is read, then `Stop`; and the list of events."""

    def __init__(self, *entries):
        self.entries = list(entries)
        self.events = []

    def receive(self, timeout_s):
        """The next entry: commands, or a function of this script that makes them."""
        if not self.entries:
            return [Stop(1000.0)]
        entry = self.entries.pop(0)
        return entry(self) if isinstance(entry, Callable) else entry

    def wake(self):
        """The script never waits."""

    def run(self, runner=None, **overrides):
        """Play the script to its end."""
        profiler_config = overrides.pop("profiler_config", None)
        config = replace(make_config(**overrides), profiler_config=profiler_config)
        model = EngineModel(config, runner or FakeRunner())
        model.allocate_kv()
        EngineLoop(config, model, self, self.events.append, byte_tokenizer_json).run()
        return self

    def tokens(self, engine_id):
        """All tokens of a request's first answer."""
        return [
            token
            for event in self.events
            if isinstance(event, StepOutput)
            for output in event.outputs
            if output.engine_id == engine_id
            for token in output.token_ids
        ]

    def reasons(self, engine_id):
        """Final reasons of a request's answers."""
        return [
            output.finish_reason
            for event in self.events
            if isinstance(event, StepOutput)
            for output in event.outputs
            if output.engine_id == engine_id and output.finish_reason
        ]

    def replies(self):
        """Ids of the calls that were answered, in order."""
        return [event.call_id for event in self.events if isinstance(event, Reply)]


def add(request_id, **params):
    """A command that submits a greedy request."""
    merged = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 4, **params}
    return Add(make_request(request_id, PROMPT, SamplingParams(**merged)))


def test_the_loop_emits_ready_first_and_serves():
    """Ready, then step outputs, the last with the finish reason."""
    script = Script([add("a")]).run()
    assert isinstance(script.events[0], Ready)
    assert script.tokens("a") == greedy_after(PROMPT, 4)
    assert script.reasons("a") == [FinishReason.LENGTH]


def test_stop_drains_what_is_open():
    """Open requests finish within the time that Stop gives."""
    script = Script([add("a"), Stop(1000.0)]).run()
    assert script.reasons("a") == [FinishReason.LENGTH]


def test_stop_without_time_aborts_what_is_open():
    """Every accepted request ends, once, also when the engine must leave at once."""
    script = Script([add("a", n=2), Stop(0.0)]).run()
    assert script.reasons("a") == [FinishReason.ABORT] * 2


def test_a_paused_engine_still_drains():
    """Stop undoes a pause: nothing waits for ever."""
    script = Script([Pause(1, "keep", False)], [add("a")], [Stop(1000.0)]).run()
    assert script.reasons("a") == [FinishReason.LENGTH]


def test_resume_answers_a_pause_that_still_waits():
    """Nobody is left waiting for a pause that is over."""
    script = Script([add("a", max_tokens=20)], [Pause(1, "wait", True)], [Resume(2)]).run()
    assert script.replies() == [1, 2]
    assert script.tokens("a") == greedy_after(PROMPT, 20)


def test_pause_keep_with_clear_drops_the_cache_and_loses_no_token():
    """Frozen requests keep their tokens and compute their K/V again (trap 8)."""
    entries = [[add("a", max_tokens=6)], [], [Pause(1, "keep", True)], [Resume(2)]]
    script = Script(*entries).run()
    assert script.tokens("a") == greedy_after(PROMPT, 6)


def test_a_ping_is_answered_with_the_load_after_pending_commands():
    """The load in the answer counts what was queued before it."""
    script = Script([Pause(1, "keep", False)], [add("a", n=3), Ping(7)]).run()
    (reply,) = [e for e in script.events if isinstance(e, Reply) and e.call_id == 7]
    assert (reply.load.num_waiting, reply.load.num_waiting_uncached_tokens) == (3, 33)


def test_a_silent_abort_emits_nothing_and_a_plain_one_emits_abort():
    """The front ends answers itself when it asks silently."""
    script = Script([add("a"), add("b")], [Abort(["a"], is_silent=True), Abort(["b"])]).run()
    assert script.reasons("a") == []
    assert script.reasons("b") == [FinishReason.ABORT]


def test_an_abort_of_one_answer_leaves_the_others_alone():
    """The front ends one at its stop string: that one is computed no further, its siblings are."""
    runner = FakeRunner()
    script = Script([add("a", n=3)], [Abort(["a"], 1)]).run(runner)
    assert script.reasons("a") == [
        FinishReason.ABORT,
        FinishReason.LENGTH,
        FinishReason.LENGTH,
    ]
    assert runner.num_rows[-3:] == [2, 2, 2]


def test_event_batches_are_numbered_without_gaps():
    """A router that sees a gap knows that it lost something."""
    script = Script([add("a", max_tokens=30)], [ResetPrefixCache(1, True)], [add("b")]).run()
    batches = [e.kv_events for e in script.events if isinstance(e, StepOutput) and e.kv_events]
    assert [batch.sequence_number for batch in batches] == list(range(len(batches)))
    assert len(batches) > 3


def test_a_failing_step_ends_its_batch_and_leaves_the_loop():
    """A step's exception is fatal: what was in it fails with a sentence, and nothing is limped on."""

    class Broken(FakeRunner):
        def forward(self, batch):
            raise MemoryError("no room")

    script = Script([add("in the step", n=2), add("waiting")])
    with pytest.raises(MemoryError):
        script.run(runner=Broken(), max_num_seqs=2)
    assert script.reasons("in the step") == [FinishReason.ERROR] * 2
    assert script.reasons("waiting") == []


def test_load_counts_blocks_and_preemptions():
    """The load after the last step: idle, with the history in its counters."""
    script = Script([add("a"), add("b")]).run(num_blocks=6, max_model_len=24)
    loads = [event.load for event in script.events if isinstance(event, StepOutput)]
    assert max(load.num_held_blocks for load in loads) > 0
    assert loads[-1].num_held_blocks == loads[-1].num_running == loads[-1].num_waiting == 0
    assert loads[-1].num_blocks == 6


@pytest.mark.slow
def test_scoring_a_long_prompt_takes_bounded_memory():
    """8,192 rows of 152,000 tokens are 5 GB; no more than 1 GiB of them may be there at once."""
    wanted = SamplingParams(prompt_logprobs=1, max_tokens=1)
    script = Script([Add(make_request("a", [5] * 8192, wanted))])
    tracemalloc.start()
    script.run(
        Wide(),
        vocab_size=Wide.vocab_size,
        max_model_len=10_000,
        num_blocks=700,
        block_size=16,
        max_num_batched_tokens=8192,
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 30
    outputs = [o for event in script.events if isinstance(event, StepOutput) for o in event.outputs]
    assert sum(len(output.prompt_logprobs or ()) for output in outputs) == 8191


def test_the_loop_reports_in_the_engines_mode():
    """Logits, where it was started so."""
    add = Add(make_request("a", PROMPT, SamplingParams(max_tokens=1, logprobs=0, temperature=0.0)))
    script = Script([add]).run(logprobs_mode=LogprobsMode.RAW_LOGITS)
    [output] = [
        o for event in script.events if isinstance(event, StepOutput) for o in event.outputs
    ]
    assert output.logprobs[0][0][1] == logits_after(PROMPT, 64).max()
