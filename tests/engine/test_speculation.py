"""Drafted tokens: the same answers in fewer steps."""

import random

import pytest

from tests.contract.engines import MODEL, start, stop
from tests.doubles.drafting import draft_with
from tests.doubles.fake_runner import FakeRunner, logits_after
from tests.doubles.stepping import make_engine
from tests.engine.test_structured_output import TOKENIZER, grammar
from weft.core.config.speculation import SpeculativeConfig
from weft.core.errors import ConfigError
from weft.core.observe.metrics import Metrics
from weft.core.values.prompts import OpenReasoning
from weft.core.values.types import OutputKind, RepetitionDetectionParams, SamplingParams
from weft.engine.clients.local_client import LocalClient
from weft.engine.constraints.grammar import GrammarVocabulary
from weft.engine.scheduling.drafts import NgramLookup
from weft.engine.settings.speculation import read_speculation
from weft.model.open import open_model
from weft.rpc.client import RpcClient
from weft.rpc.options import RpcOptions
from weft.rpc.server import RpcServer

VOCAB = 300
EOS = (257, 258)
VOCABULARY = GrammarVocabulary.read(TOKENIZER, VOCAB, EOS)


def ngram(num=4, most=3, least=1):
    """How to draft."""
    return SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=num,
        prompt_lookup_max=most,
        prompt_lookup_min=least,
    )


class Habitual(FakeRunner):
    """Logits that depend on little of the last token, so that texts repeat themselves."""

    def _row(self, batch, row):
        super()._row(batch, row)  # its checks
        return logits_after([int(batch.token_ids[row]) % 4], VOCAB)


@pytest.mark.parametrize(
    ("tokens", "most", "drafted"),
    [
        ([1, 2, 3, 4, 1, 2], 9, (3, 4, 1, 2)),
        ([1, 2, 3, 4, 1, 2], 2, (3, 4)),
        ([1, 2, 3, 4, 1, 2], 0, ()),
        ([9, 2, 3, 1, 2, 5, 9, 2], 1, (3,)),  # two equal ones count before a later place with one
        ([1, 2, 7, 1, 2, 8, 1, 2], 1, (8,)),  # of equally good places the latest
        ([5, 5, 5], 4, (5,)),
        ([1, 2, 3], 4, ()),
        ([1], 4, ()),
        ([256, 1, 65536, 7, 1], 4, (65536, 7, 1)),  # bytes that look alike are no tokens
    ],
)
def test_a_draft_continues_the_latest_place_that_reads_like_the_end(tokens, most, drafted):
    """The longest likeness first, and no longer than asked."""
    assert NgramLookup(ngram()).propose(tokens, most) == drafted


def test_a_lookup_that_grew_is_as_one_made_at_once():
    """It is asked at every step, and reads only what is new."""
    rng = random.Random(5)
    tokens = [rng.randrange(3) for _ in range(200)]
    grown = NgramLookup(ngram())
    for length in range(1, 200):
        assert grown.propose(tokens[:length], 4) == NgramLookup(ngram()).propose(tokens[:length], 4)


# What else is asked of an answer: all that depends on the tokens before.
WISHES = [
    {"temperature": 0.0},
    {"temperature": 1.0, "logprobs": 3},
    {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
    {"temperature": 0.0, "presence_penalty": 1.5, "min_tokens": 20, "logprobs": 1},
    {"temperature": 1.0, "grammar": grammar("(ab|cd|ba){2,40}"), "min_tokens": 30},
    {
        "temperature": 1.0,
        "grammar": grammar("[ab]{12}"),
        "reasoning": OpenReasoning(end="zq", end_token_ids=[*b"zq"]),
        "thinking_token_budget": 9,
    },
    {
        "temperature": 0.0,
        "repetition_detection": RepetitionDetectionParams(max_pattern_size=3, min_count=4),
    },
    {"temperature": 0.3, "stop_token_ids": [7], "n": 3, "prompt_logprobs": 1},
    {"temperature": 0.0, "bad_token_ids": [[5], [6, 7]], "max_tokens": 1},
]


def answers(runner, draft=None, *, wishes=WISHES, **options):
    """Every wish, run together; with drafts by the runner `draft` if there is one."""
    engine = make_engine(
        runner,
        **{
            "vocab_size": VOCAB,
            "num_blocks": 512,
            "max_model_len": 96,
            "eos_token_ids": EOS,
            **options,
        },
    )
    engine.vocabulary = VOCABULARY
    if draft is not None:
        draft_with(engine, draft)
    for index, wish in enumerate(wishes):
        engine.submit(
            f"r{index}",
            [*range(10, 20), *range(10, 20)],
            eos_token_ids=EOS,
            seed=index,
            **{"max_tokens": 60, "ignore_eos": False, **wish},
        )
    num_steps = 0
    while engine.scheduler.has_work:
        plan = engine.step()
        engine.scheduler.check()
        assert plan.num_tokens <= engine.config.scheduler_config.max_num_batched_tokens
        num_steps += 1
        assert num_steps < 5000
    assert engine.pool.num_held == 0
    return engine, [
        answer for index in range(len(wishes)) for answer in engine.answers[f"r{index}"]
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 7, "max_num_seqs": 4},
        {"num_blocks": 40},
        {"enable_prefix_caching": False, "num_blocks": 40, "max_num_batched_tokens": 16},
    ],
    ids=["batched", "chunked", "preempted", "both"],
)
@pytest.mark.parametrize("config", [ngram(), ngram(num=9, most=1), ngram(num=1)])
@pytest.mark.parametrize("runner", [FakeRunner, Habitual])
def test_every_answer_is_the_same_bit_for_bit(runner, config, options):
    """Sampled, penalised, bound by grammars or thoughts, scored, preempted: drafts change nothing."""
    _, plain = answers(runner(VOCAB), **options)
    engine, drafted = answers(runner(VOCAB), speculation=config, **options)
    assert [
        (a.token_ids, a.logprobs, a.prompt_logprobs, a.finish_reason, a.stop_reason)
        for a in drafted
    ] == [
        (a.token_ids, a.logprobs, a.prompt_logprobs, a.finish_reason, a.stop_reason) for a in plain
    ]
    assert engine.scheduler.drafts.num_tokens > 0


def test_a_text_that_repeats_itself_takes_fewer_steps():
    """And the counts say how many drafts were right."""
    steps = []
    for speculation in (None, ngram()):
        runner = Habitual(VOCAB)
        engine = make_engine(runner, vocab_size=VOCAB, max_model_len=96, speculation=speculation)
        engine.submit("a", [10, 11, 12], max_tokens=60)
        engine.run()
        steps.append(len(runner.num_rows))
    scheduler = engine.scheduler
    assert steps[0] == 60
    assert steps[1] < 25
    assert 60 - steps[1] == scheduler.drafts.num_accepted <= scheduler.drafts.num_tokens


@pytest.mark.parametrize("wish", [{"temperature": 0.0}, {"temperature": 0.7, "logprobs": 2}])
async def test_a_real_model_gives_the_same_bits(wish):
    """A row of a draft is computed as the row of a step of its own."""
    text = "one two three four five six seven " * 4
    params = SamplingParams(
        max_tokens=48, seed=3, ignore_eos=True, output_kind=OutputKind.FINAL_ONLY, **wish
    )
    got = []
    for config in (None, {"num_speculative_tokens": 5, "prompt_lookup_max": 3}):
        client = await start(LocalClient, model="embedded:tiny", speculative_config=config)
        [output] = [output async for output in client.generate(text, params, "r")]
        got.append((output.outputs[0].token_ids, output.outputs[0].logprobs))
        [load] = await client.get_loads()
        await stop(client)
    assert got[0] == got[1]
    assert 0 < load.num_accepted_tokens <= load.num_draft_tokens


async def test_the_counts_are_reported_over_the_wire_and_to_metrics():
    """With the answer's end, for each answer; metrics sum them, and count each place of a draft."""
    prompt = {"prompt_token_ids": [5, 6, 7, 8] * 6}
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, n=2)
    config = {"num_speculative_tokens": 3, "prompt_lookup_max": 2}
    metrics = Metrics()
    client = await start(LocalClient, metrics=metrics, speculative_config=config)
    server = RpcServer(client, open_model(MODEL).tokenizer_files, RpcOptions(port=0))
    remote = await RpcClient.connect(f"127.0.0.1:{await server.start()}")
    try:
        outputs = [output async for output in remote.generate(prompt, params, "r")]
    finally:
        await remote.close()
        await server.stop()
        await stop(client)
    ends = outputs[-1].outputs
    drafted = sum(one.num_draft_tokens for one in ends)
    accepted = sum(one.num_accepted_tokens for one in ends)
    assert 0 < accepted <= drafted
    reported = {
        (sample.name, sample.labels.get("position")): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if "spec_decode" in sample.name
    }
    assert reported["vllm:spec_decode_num_draft_tokens_total", None] == drafted
    assert reported["vllm:spec_decode_num_accepted_tokens_total", None] == accepted
    places = [
        reported["vllm:spec_decode_num_accepted_tokens_per_pos_total", str(i)] for i in range(3)
    ]
    assert sum(places) == accepted
    assert places == sorted(places, reverse=True)


def test_nothing_is_drafted_unless_requested():
    """It costs rows that may be for nothing."""
    engine, _ = answers(Habitual(VOCAB))
    assert engine.scheduler.drafts.num_tokens == 0


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        ('{"num_speculative_tokens": 3}', (5, 5)),
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}, (4, 4)),
        ({"num_speculative_tokens": 3, "prompt_lookup_min": 2}, (2, 2)),
        (
            {"num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
            (4, 2),
        ),
    ],
)
def test_bounds_that_are_left_out_are_filled_in(value, bounds):
    """One from the other; both as other engines do."""
    config = read_speculation(value)
    assert (config.prompt_lookup_max, config.prompt_lookup_min) == bounds
    assert read_speculation(None) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", "truncated"),
        ("{}", "num_speculative_tokens"),
        ({"num_speculative_tokens": 3, "draft_model": "x"}, "draft_model"),
        ({"num_speculative_tokens": 3, "method": "eagle"}, "method"),
        ({"num_speculative_tokens": 0}, "between 1 and 32"),
        ({"num_speculative_tokens": 3, "prompt_lookup_max": 99}, "between 1 and 64"),
        (
            {"num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 3},
            "between 1 and 2",
        ),
    ],
)
def test_what_cannot_be_drafted_with_is_refused(value, words):
    """With the flag's name and what is allowed."""
    with pytest.raises(ConfigError, match=f"--speculative-config.*{words}"):
        read_speculation(value)
