"""The echo runner: the prompt comes back, through blocks, at the pace that was asked for."""

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from weft.compute.backends import choose
from weft.compute.echo import EchoRunner
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.model.open import open_model

EOS = 256


def answers(runner, parts, block_size=4, rows=None):
    return runner.forward(step(parts, block_size, rows)).argmax(axis=-1).tolist()


def make_runner(query=""):
    runner = load_runner(open_model(f"embedded:echo{query}"))
    runner.allocate_kv(num_blocks=16, block_size=4)
    return runner


def test_the_prompt_comes_back_and_then_the_end():
    """The last prompt row answers the first prompt token; after the last one comes EOS, for ever."""
    runner = make_runner()
    prompt, blocks = [5, 9, 7, 300, 8], [3, 11, 2, 6]
    answer = answers(runner, [Part(prompt, 5, blocks, 0, 5)], rows=[4])
    ids = prompt + answer
    while len(ids) < 12:
        place = len(ids) - 1
        ids += answers(runner, [Part(ids, 5, blocks, place, place + 1)])
    assert ids[5:] == [*prompt, EOS, EOS]


def test_chunks_and_neighbours_do_not_mix():
    """Two sequences in one step, one of them in chunks, each get their own prompt."""
    runner = make_runner()
    one, two = [1, 2, 3, 4, 5, 6], [7, 8]
    answers(runner, [Part(one, 6, [4, 9], 0, 3)], rows=[])
    got = answers(runner, [Part(one, 6, [4, 9], 3, 6), Part(two, 2, [1], 0, 2)], rows=[2, 4])
    assert got == [1, 7]


def test_scoring_rows_before_the_last_of_the_prompt_is_allowed():
    """Rows asked for prompt scores only give some token of the vocabulary."""
    logits = make_runner().forward(step([Part([1, 2, 3], 3, [0], 0, 3)], 4))
    assert logits.shape == (3, 512)
    assert np.isfinite(logits).all()


@pytest.mark.parametrize(
    ("start", "end", "waits"), [(0, 3, []), (3, 6, [0.08]), (0, 6, [0.08]), (6, 7, [0.03])]
)
def test_each_kind_of_step_waits_its_time(start, end, waits):
    """A step that ends a prompt waits ttft_ms, a decode step itl_ms, a chunk before that nothing."""
    slept = []
    spec = open_model("embedded:echo?ttft_ms=80&itl_ms=30").spec
    runner = EchoRunner(spec, sleep=slept.append)
    runner.allocate_kv(num_blocks=16, block_size=4)
    runner.forward(step([Part([1] * 7, 6, [0, 1], start, end)], 4))
    assert slept == waits


@pytest.mark.parametrize(
    "asked", [{"compute": "native"}, {"num_threads": 2}, {"quantization": "int8"}]
)
def test_how_to_compute_is_no_question(asked):
    """What would change nothing is refused by name, before an engine starts."""
    (name,) = asked
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} has no effect"):
        choose(EngineOptions(**asked), open_model("embedded:echo").card)
