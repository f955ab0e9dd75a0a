"""Steps launched ahead, through whole engines: the answers of steps in turn, and what a step in flight may meet."""

from functools import cache

import pytest
from msgspec.structs import replace

import weft
from tests.doubles.async_device import AsyncBackend, AsyncRunner
from tests.doubles.fake_runner import FakeRunner, greedy_after
from tests.doubles.stepping import make_config
from tests.engine.test_loop import PROMPT, Script, add
from weft.compute.backends import BACKENDS
from weft.core.config.engine import LogprobsMode
from weft.core.config.speculation import SpeculativeConfig
from weft.core.values.types import FinishReason, SamplingParams, StructuredOutputsParams
from weft.engine.ipc.messages import Abort, Pause, Ping, Reply, ResetPrefixCache, Resume, Stop
from weft.engine.loop import EngineLoop
from weft.engine.weights.engine_model import EngineModel

MODEL = "embedded:random?layers=2&hidden=32&heads=2&kv_heads=1&head_dim=16&vocab=400&max_len=256"
PROMPTS = ["one two three four", "a longer text " * 5]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=24),
    SamplingParams(seed=3, max_tokens=17, n=3),
    SamplingParams(seed=4, max_tokens=20, top_p=0.8, top_k=30, repetition_penalty=1.2),
    SamplingParams(seed=5, max_tokens=8, logprobs=3, prompt_logprobs=2, top_k=9),
    SamplingParams(
        seed=6, max_tokens=12, structured_outputs=StructuredOutputsParams(regex="[ab]+")
    ),
    SamplingParams(
        seed=7, max_tokens=12, structured_outputs=StructuredOutputsParams(choice=["yes"])
    ),
    SamplingParams(seed=8, max_tokens=24, stop=["e", "q"], presence_penalty=1.0),
    SamplingParams(seed=9, max_tokens=24, stop_token_ids=list(range(100, 200)), min_tokens=3),
    SamplingParams(seed=10, max_tokens=9, bad_words=["a", "b", "e"], logit_bias={101: 5.0}),
    SamplingParams(seed=11, max_tokens=1, min_p=0.01),
    SamplingParams(seed=12, max_tokens=9, allowed_token_ids=[70, 80, 90], frequency_penalty=1.0),
]
# Of an engine with room for all; in chunks; and with so few blocks that some are preempted.
WIDE = {"num_gpu_blocks_override": 256}
SIZES = {
    "wide": WIDE,
    "chunks": {**WIDE, "max_num_batched_tokens": 16, "max_num_seqs": 16},
    "few blocks": {"num_gpu_blocks_override": 14, "max_model_len": 128},
}


@pytest.fixture
def device(monkeypatch):
    """A backend that computes when somebody waits."""
    backend = AsyncBackend("device")
    monkeypatch.setitem(BACKENDS, "device", backend)
    return backend


def answers(compute, asked=PARAMS, **options):
    prompts = [prompt for prompt in PROMPTS for _ in asked]
    with weft.LLM(MODEL, compute=compute, **options) as llm:
        outputs = llm.generate(prompts, [*asked] * len(PROMPTS), use_tqdm=False)
    return [
        (
            output.prompt_logprobs,
            [
                (o.token_ids, o.logprobs, o.text, o.finish_reason, o.stop_reason)
                for o in output.outputs
            ],
        )
        for output in outputs
    ]


@cache
def answers_in_turn():
    """What every engine must give, whatever it has room for."""
    return answers("native", **WIDE)


@pytest.mark.parametrize("sizes", SIZES)
def test_answers_are_those_of_steps_in_turn(device, sizes):
    """Whatever is asked for, and whatever there is room for: every token and log-probability, every end."""
    assert answers("device", **SIZES[sizes]) == answers_in_turn()
    assert device.runners[0].num_followed > 10


def test_log_probabilities_of_what_a_draw_sees_are_the_same(device):
    """In another mode of the engine."""
    asked = [params for params in PARAMS if params.logprobs is not None]
    options = {"logprobs_mode": LogprobsMode.PROCESSED_LOGPROBS, **WIDE}
    assert answers("device", asked, **options) == answers("native", asked, **options)


def test_an_engine_that_drafts_takes_its_steps_in_turn(device):
    """What follows is guessed from tokens that must be known."""
    drafts = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert answers("device", **WIDE, **drafts) == answers_in_turn()
    assert device.runners[0].num_followed == 0


class DeviceScript(Script):
    """A script on a device."""

    def __init__(self, backend, *entries):
        super().__init__(*entries)
        self.backend = backend
        self.runner = AsyncRunner(FakeRunner(), backend.stream)

    def run(self, **overrides):
        config = make_config(**overrides)
        compute = replace(config.compute_config, compute="device")
        config = replace(config, compute_config=compute)
        model = EngineModel(config, self.runner)
        model.allocate_kv()
        self.loop = EngineLoop(config, model, self, self.events.append, str)
        self.loop.run()
        return self

    def num_held(self):
        """Blocks that somebody holds."""
        return self.loop._scheduler.cache.pool.num_held


def test_the_device_has_its_next_step_before_it_is_asked_for_the_one_before(device):
    """A forward pass, its sampling and its tokens, and the next forward pass are launched; nothing is computed yet."""
    script = DeviceScript(device, [add("a", max_tokens=6)]).run()
    assert script.runner.num_followed == 5
    assert device.stream.most_open >= 4


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_no_step_is_launched_for_a_sequence_that_is_sure_to_end(device, max_tokens):
    """By its number of tokens: as many steps are computed as it has tokens."""
    script = DeviceScript(device, [add("a", max_tokens=max_tokens)]).run()
    assert script.tokens("a") == greedy_after(PROMPT, max_tokens)
    assert len(script.runner.inner.num_rows) == max_tokens


def test_a_sequence_that_ends_unforeseen_has_one_row_in_vain(device):
    """Its stop token is known when the next step is in flight already."""
    second = greedy_after(PROMPT, 2)[1]
    script = DeviceScript(device, [add("a", stop_token_ids=[second], max_tokens=9)]).run()
    assert script.reasons("a") == [FinishReason.STOP]
    assert script.tokens("a") == greedy_after(PROMPT, 2)
    assert script.runner.inner.num_rows == [len(PROMPT), 1, 1]
    assert script.num_held() == 0


@pytest.mark.parametrize("num_turns", range(7))
@pytest.mark.parametrize("is_silent", [False, True])
def test_an_abort_at_any_turn_ends_one_request_once(device, num_turns, is_silent):
    """And leaves the other as it would be alone."""
    abort = Abort(["a"], is_silent=is_silent)
    script = DeviceScript(
        device, [add("a", max_tokens=6), add("b", max_tokens=6)], *[[]] * num_turns, [abort]
    ).run()
    assert script.tokens("b") == greedy_after(PROMPT, 6)
    assert script.reasons("b") == [FinishReason.LENGTH]
    got = script.tokens("a")
    assert got == greedy_after(PROMPT, 6)[: len(got)]
    is_aborted = len(got) < 6
    expected = [] if is_silent else [FinishReason.ABORT]
    assert script.reasons("a") == (expected if is_aborted else [FinishReason.LENGTH])
    assert script.num_held() == 0


@pytest.mark.parametrize("num_turns", range(5))
@pytest.mark.parametrize(
    "commands",
    [
        [Pause(1, "keep", True), Resume(2)],
        [Pause(1, "wait", True), Resume(2)],
        [ResetPrefixCache(1, reset_running_requests=True), Ping(2)],
        [Ping(1), ResetPrefixCache(2, reset_running_requests=False)],
    ],
)
def test_commands_find_no_step_in_flight(device, num_turns, commands):
    """Where they would change what it reads; no token is lost, none comes twice."""
    turns = [[command] for command in commands]
    script = DeviceScript(device, [add("a", max_tokens=6, n=2)], *[[]] * num_turns, *turns).run(
        num_blocks=16
    )
    assert sorted(script.tokens("a")) == sorted(greedy_after(PROMPT, 6) * 2)
    assert script.reasons("a") == [FinishReason.LENGTH] * 2
    assert script.replies() == [1, 2]
    assert script.num_held() == 0


@pytest.mark.parametrize("num_turns", range(5))
def test_a_stop_without_time_ends_all_at_any_turn(device, num_turns):
    """The step in flight is waited for, and the rest is aborted."""
    script = DeviceScript(device, [add("a", n=2)], *[[]] * num_turns, [Stop(0.0)]).run()
    assert len(script.reasons("a")) == 2
    assert script.num_held() == 0


DRAFTS = SpeculativeConfig(
    method="ngram", num_speculative_tokens=3, prompt_lookup_max=2, prompt_lookup_min=1
)


@pytest.mark.parametrize("speculation", [None, DRAFTS])
@pytest.mark.parametrize("fails_at", range(9))
def test_a_step_that_fails_ends_all_of_both_steps_and_leaves_the_loop(
    device, fails_at, speculation
):
    """Launches are a forward pass, a sampling and its tokens in turn; each may fail when it is computed."""
    device.stream.fails_at = fails_at
    script = DeviceScript(device, [add("a", max_tokens=3)], [add("b", max_tokens=9)], *[[]] * 20)
    with pytest.raises(RuntimeError, match="the device has failed"):
        script.run(speculation=speculation)
    reasons = [script.reasons(request_id) for request_id in ("a", "b")]
    # In turn, the second request may not have been in a step yet.
    assert all(len(own) == 1 for own in (reasons if speculation is None else reasons[:1]))
    assert FinishReason.ERROR in reasons[0] + reasons[1]
    assert not [e for e in script.events if isinstance(e, Reply)]


def test_requests_that_come_while_a_step_is_in_flight_join_the_next(device):
    """Nobody waits for those that run."""
    script = DeviceScript(
        device, [add("a", max_tokens=8)], [], [add("b", max_tokens=3)], [], [add("c", max_tokens=3)]
    ).run()
    for request_id, count in (("a", 8), ("b", 3), ("c", 3)):
        assert script.tokens(request_id) == greedy_after(PROMPT, count)
    assert len(script.runner.inner.num_rows) == 8
