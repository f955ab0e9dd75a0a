"""Both encoder runners compute what Hugging Face transformers computes, family by family."""

import math

import numpy as np
import pytest
import torch

from tests.compute.encoders import FAMILIES, draw_prompts, hidden_states, make_model, save
from tests.compute.runners import load_runner
from weft.compute.arithmetic.activations import erf
from weft.compute.backends import BACKENDS
from weft.compute.native import NativeEncoder, resident_bytes, usable_paths
from weft.compute.pooler import Collected, load_pooler
from weft.compute.reference.encoder import EncoderRunner, attend
from weft.core.config.engine import ComputeConfig
from weft.core.config.engine_options import EngineOptions
from weft.core.values.types import PoolingKind, PoolingParams
from weft.engine.start.configure import resolve
from weft.model.open import open_model

COMPUTE = ("reference", "native")
PROMPTS = draw_prompts((150, 1, 75, 16, 75, 33))


def pooled(checkpoint, rows, task):
    """What the engine makes of the hidden states of one prompt."""
    config = resolve(EngineOptions(model="m"), checkpoint.card, 1 << 30).pooler_config
    pooler = load_pooler(checkpoint, config)
    collected = Collected(config.kinds[task]).plus(rows)
    return pooler.finish(collected.result(), PoolingParams(task=task, use_activation=False))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_agree_with_transformers(family, compute, tmp_path):
    """Every number is within 1e-4, prompts of all lengths in one step."""
    model = make_model(family, "Model")
    with torch.no_grad():
        expected = [model(torch.tensor([p])).last_hidden_state[0].numpy() for p in PROMPTS]

    runner = load_runner(open_model(save(model, tmp_path)), compute=compute)
    states = hidden_states(runner, PROMPTS)

    assert max(np.abs(a - b).max() for a, b in zip(states, expected, strict=True)) <= 1e-4
    assert min(a.std() for a in expected) > 0.3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("family", FAMILIES)
def test_sequence_scores_agree_with_transformers(family, compute, tmp_path):
    """Each family has its own head above the encoder."""
    model = make_model(family, "ForSequenceClassification", num_labels=3)
    with torch.no_grad():
        expected = [model(torch.tensor([p])).logits[0].numpy() for p in PROMPTS]

    checkpoint = open_model(save(model, tmp_path))
    states = hidden_states(load_runner(checkpoint, compute=compute), PROMPTS)
    scores = [pooled(checkpoint, rows, "classify")[0] for rows in states]

    assert np.abs(np.array(scores) - np.array(expected)).max() <= 1e-4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("family", FAMILIES)
def test_token_scores_agree_with_transformers(family, compute, tmp_path):
    """Every token gets its scores."""
    model = make_model(family, "ForTokenClassification", num_labels=4)
    prompt = PROMPTS[2]
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0].numpy()

    checkpoint = open_model(save(model, tmp_path))
    (rows,) = hidden_states(load_runner(checkpoint, compute=compute), [prompt])

    assert np.abs(pooled(checkpoint, rows, "token_classify") - expected).max() <= 1e-4


@pytest.mark.filterwarnings("ignore")
def test_a_model_saved_with_its_masked_head_embeds(tmp_path):
    """What served to train it is passed over."""
    model = make_model("bert", "ForMaskedLM")
    with torch.no_grad():
        expected = model.bert(torch.tensor([PROMPTS[3]])).last_hidden_state[0].numpy()

    runner = load_runner(open_model(save(model, tmp_path)))

    assert np.abs(hidden_states(runner, [PROMPTS[3]])[0] - expected).max() <= 1e-4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", COMPUTE)
def test_the_second_text_of_a_pair_has_its_own_type(compute, tmp_path):
    """Token types reach the embedding, row by row."""
    model = make_model("bert", "Model")
    prompt, types = PROMPTS[3], [0] * 7 + [1] * 9
    with torch.no_grad():
        states = model(torch.tensor([prompt]), token_type_ids=torch.tensor([types]))
        expected = states.last_hidden_state[0].numpy()

    runner = load_runner(open_model(save(model, tmp_path)), compute=compute)

    assert np.abs(hidden_states(runner, [prompt], [types])[0] - expected).max() <= 1e-4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("family", ["bert", "modernbert", "nomic_bert"])
def test_a_prompt_is_the_same_bits_in_any_company(family, compute, tmp_path):
    """Alone, first, last, beside its like or beside others, on one thread or several: the same bits."""
    checkpoint = open_model(save(make_model(family, "Model"), tmp_path))
    runner = load_runner(checkpoint, compute=compute)

    alone = [hidden_states(runner, [prompt])[0] for prompt in PROMPTS]
    together = hidden_states(runner, PROMPTS)
    reversed_order = hidden_states(runner, PROMPTS[::-1])[::-1]
    threads = load_runner(checkpoint, compute=compute, num_threads=3)
    shared = hidden_states(threads, PROMPTS)

    assert all((a == b).all() for a, b in zip(alone, together, strict=True))
    assert all((a == b).all() for a, b in zip(alone, reversed_order, strict=True))
    assert all((a == b).all() for a, b in zip(alone, shared, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_the_runner_of_an_encoder_is_chosen_and_described(tmp_path):
    """As for decoders: native wherever the CPU has vectors for it, unless one is named."""
    checkpoint = open_model(save(make_model("bert", "Model"), tmp_path))
    native = ComputeConfig(compute="native", num_threads=2)
    numpy = ComputeConfig(compute="reference", num_threads=2)
    expected = NativeEncoder if usable_paths()[0] != "portable" else EncoderRunner

    assert isinstance(load_runner(checkpoint), expected)
    assert isinstance(load_runner(checkpoint, compute="native"), NativeEncoder)
    assert isinstance(load_runner(checkpoint, compute="reference"), EncoderRunner)
    assert load_runner(checkpoint, compute="native", num_threads=2).num_threads == 2
    described = [BACKENDS[c.compute].describe(checkpoint.card, c) for c in (native, numpy)]
    assert [text.partition("; ")[2] for text in described] == [
        f"computed in C++ ({usable_paths()[0]}, 2 threads)",
        "computed with numpy (2 threads)",
    ]
    card = BACKENDS["native"].sized(checkpoint, native).card
    assert card.weight_bytes == resident_bytes(checkpoint.spec, "float32").weights
    assert BACKENDS["reference"].sized(checkpoint, numpy).card == checkpoint.card


@pytest.mark.parametrize("reach", [None, 40])
def test_long_prompts_are_attended_to_in_parts(reach):
    """Queries are taken some at a time; the result is that of one softmax over all keys."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1500, 2, 8)).astype(np.float32) for _ in range(3))

    result = attend(q, k, v, reach)

    scores = np.einsum("qhd,khd->hqk", q[0].astype(float), k[0].astype(float))
    if reach is not None:
        places = np.arange(1500)
        scores[:, np.abs(places[:, None] - places) > reach] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = np.einsum("hqk,khd->qhd", weights, v[0]).reshape(1500, 16)
    assert np.abs(result[0] - expected).max() < 1e-5


def test_the_error_function_is_that_of_the_library():
    """Within 5e-7 everywhere, and odd."""
    x = np.linspace(-8, 8, 20001, dtype=np.float32)
    exact = np.array([math.erf(value) for value in x])
    assert np.abs(erf(x) - exact).max() < 5e-7
    assert (erf(-x) == -erf(x)).all()


@pytest.mark.parametrize("kind", list(PoolingKind))
def test_what_is_collected_does_not_depend_on_the_cuts(kind):
    """Chunks of a prompt add up to the same bits, wherever they end."""
    rows = np.random.default_rng(0).standard_normal((101, 24)).astype(np.float32)
    whole = Collected(kind).plus(rows).result()
    parts = Collected(kind)
    for begin, end in ((0, 1), (1, 40), (40, 41), (41, 100), (100, 101)):
        parts = parts.plus(rows[begin:end])
    assert (parts.result() == whole).all()
