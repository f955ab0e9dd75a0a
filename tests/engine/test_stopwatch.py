"""What a sequence's stamps come to, on a clock that the test turns."""

from tests.doubles.fake_runner import FakeRunner
from tests.doubles.stepping import make_engine
from weft.core.observe.stats import SequenceTimes
from weft.engine.scheduling.stopwatch import Stopwatch

PROMPT = list(range(10, 17))  # 7 tokens: one full block of 4, and a part
OTHER = list(range(30, 37))


class TickingRunner(FakeRunner):
    """A step takes one second."""

    def __init__(self):
        super().__init__()
        self.now = 100.0

    def forward(self, batch):
        self.now += 1.0
        return super().forward(batch)


def timed_engine(**overrides):
    """An engine on that clock."""
    runner = TickingRunner()
    engine = make_engine(runner, **overrides)
    engine.scheduler.stopwatch = Stopwatch(lambda: runner.now)
    return engine


def ended(engine) -> dict[int, SequenceTimes]:
    """Times of what has ended, by length of the prompt."""
    return {times.num_prompt_tokens: times for times in engine.scheduler.stopwatch.take()[1]}


def intervals_of(times: SequenceTimes):
    """Queue, prefill, decode and inference time."""
    return times.queue_s, times.prefill_s, times.decode_s, times.inference_s


def test_a_request_alone_waits_for_nothing():
    """One step to its first token, then one a token."""
    engine = timed_engine()
    engine.finish("a", PROMPT, max_tokens=4)
    assert intervals_of(ended(engine)[7]) == (0.0, 1.0, 3.0, 4.0)


def test_waiting_for_a_place_is_queue_time():
    """Until first scheduled; prefill starts there."""
    engine = timed_engine(max_num_seqs=1)
    engine.submit("a", PROMPT, max_tokens=4)
    engine.finish("b", OTHER[:6], max_tokens=2)
    assert intervals_of(ended(engine)[6]) == (4.0, 1.0, 1.0, 2.0)


def test_chunks_of_a_prompt_are_prefill_time():
    """From the first chunk's plan to the first token."""
    engine = timed_engine(max_num_batched_tokens=4)
    engine.finish("a", PROMPT, max_tokens=1)
    assert intervals_of(ended(engine)[7]) == (0.0, 2.0, 0.0, 2.0)


def test_preemption_while_decoding_lengthens_decode_and_not_the_queue():
    """It has its place in time: the first schedule stays, and no interval is negative."""
    engine = timed_engine(num_blocks=4, max_model_len=12)
    engine.submit("old", PROMPT, max_tokens=4)
    engine.finish("new", OTHER[:6], max_tokens=5)
    assert engine.scheduler.planner.num_preemptions == 1
    times = ended(engine)[6]
    assert (times.queue_s, times.prefill_s) == (0.0, 1.0)
    assert times.decode_s > 4.0  # five tokens are four steps apart


def test_preemption_while_decoding_lengthens_one_interval_between_tokens():
    """The tokens before and after it are as far apart as the caller saw."""
    engine = timed_engine(num_blocks=4, max_model_len=12)
    engine.submit("old", PROMPT, max_tokens=4)
    engine.finish("new", OTHER[:6], max_tokens=5)
    intervals = dict(engine.scheduler.stopwatch.take()[0])
    assert sum(intervals.values()) == 3 + 4
    assert sum(seconds > 1.0 for seconds in intervals) == 1
    assert min(intervals) == 1.0


def test_preemption_in_prefill_lengthens_prefill_and_not_the_queue():
    """It was scheduled once, and has no token yet."""
    engine = timed_engine(max_num_batched_tokens=4)
    engine.submit("a", PROMPT, max_tokens=1)
    engine.step()
    engine.scheduler.reset_cache(preempt_running=True)
    engine.run()
    assert intervals_of(ended(engine)[7]) == (0.0, 3.0, 0.0, 3.0)


def test_what_never_ran_has_no_interval():
    """Aborted while it waits: nothing to measure, and nothing negative."""
    engine = timed_engine(max_num_seqs=1)
    engine.submit("a", PROMPT, max_tokens=4)
    engine.submit("b", OTHER[:6], max_tokens=4)
    engine.step()
    engine.abort("b")
    assert intervals_of(ended(engine)[6]) == (None, None, None, None)


def test_what_ends_without_a_token_has_a_queue_time_only():
    """An abort in the middle of the prompt."""
    engine = timed_engine(max_num_batched_tokens=4)
    engine.submit("a", PROMPT, max_tokens=4)
    engine.step()
    engine.abort("a")
    assert intervals_of(ended(engine)[7]) == (0.0, None, None, None)


def test_sequences_of_a_step_share_one_interval():
    """A step of many sequences tells one number, with their count."""
    engine = timed_engine()
    engine.finish("a", PROMPT, max_tokens=3, n=4)
    assert engine.scheduler.stopwatch.take()[0] == [(1.0, 8)]


def test_the_clock_is_read_once_a_stage():
    """Not once a token: stamps of one step are equal."""
    reads = []
    engine = make_engine()
    engine.scheduler.stopwatch = Stopwatch(lambda: float(len(reads.append(0) or reads)))
    engine.finish("a", PROMPT, max_tokens=3, n=8)
    assert len(reads) == 1 + 1 + 2 * 3  # made, queued; each step planned and committed


def test_tokens_are_counted_once_for_each_answer():
    """Prompt tokens with the first token, as the engine computes each answer's own sequence."""
    engine = timed_engine()
    engine.finish("a", PROMPT, max_tokens=3, n=2)
    stopwatch = engine.scheduler.stopwatch
    assert (stopwatch.num_prompt_tokens, stopwatch.num_generated_tokens) == (14, 6)


def test_nothing_is_reported_twice():
    """What was taken is gone."""
    engine = timed_engine()
    engine.finish("a", PROMPT, max_tokens=3)
    assert engine.scheduler.stopwatch.has_samples
    engine.scheduler.stopwatch.take()
    assert not engine.scheduler.stopwatch.has_samples
