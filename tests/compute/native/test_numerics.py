"""The native runner computes what the reference and transformers compute, family by family."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.compute.families import CASES, is_recurrent, make_model, save
from tests.compute.native.models import LONG_WINDOW, make_runner, model_of
from tests.compute.runners import load_runner
from tests.compute.steps import Part, run_at_random, step
from tests.slow import slow_but
from weft.compute.native import Machine, NativeRunner, usable_paths
from weft.compute.reference.runner import ReferenceRunner
from weft.model.open import open_model

# The path without instructions of its own takes twice as long as all others together.
PATHS = [
    pytest.param(path, marks=pytest.mark.slow) if path == "portable" else path
    for path in usable_paths()
]
# By default each family runs on the path that this CPU takes by itself.
PATHS_OF_FAMILIES = slow_but(usable_paths()[:1], usable_paths())
LENGTHS = (150, 75, 131)
LONG_SHAPES = ("plain", "experts and sinks", "latent attention", *LONG_WINDOW)
MAX_MODEL_LEN = 200
# Relative L2 error of all logits together. Long-context longrope sharpens attention by its factor, so
# that the same rounding weighs more there: transformers' own bfloat16 is at 0.036 on it. So does the yarn of gpt-oss
# and of DeepSeek-V2, where it is at 0.059 and 0.118. States of Mamba-2 keep the errors of all rows before: there it is
# at 0.032 and 0.042. Squares of Nemotron's activations double their errors: it is at 0.033 and 0.050, and a CPU that
# multiplies in bfloat16 rounds those squares too (0.016 and 0.028 with AVX512-BF16).
BFLOAT16_ERROR = 0.013
BFLOAT16_ERROR_OF = {
    "phi3, longrope, long": 0.017,
    "gpt_oss": 0.015,
    "deepseek_v2, queries of low rank, groups, biases, yarn": 0.015,
    "nemotron": 0.02,
    "nemotron with biases": 0.03,
    "bamba": 0.021,
    **dict.fromkeys(("mamba", "mamba, biases, not tied, automatic rank", "falcon_mamba"), 0.025),
    "falcon_h1": 0.025,
    "falcon_h1, a norm after the gate, factors, tied": 0.031,
    "falcon_h1, a norm before the gate, biases": 0.025,
    "bamba with biases, wide heads, one group": 0.021,
}
# Ours to transformers' own. An embedding that is stored narrow is rounded once more: after what leads to the
# model's width was multiplied in.
SHARE_OF_ERROR = 0.65
SHARE_OF_ERROR_OF = {"opt, norms after, narrow embedding": 0.75}


# In bfloat16 a row whose router is nearly undecided goes to other experts than in float32, and what attends to it
# differs too, in transformers as here. Of families with experts the better half of the rows is held to the bounds of
# single rows, and all of them to transformers' own error. So it is where the states of a delta net keep a large error
# of a few rows for those that follow: one row in 200 is off by 0.4, and transformers' own error is at 0.072.
SHARE_OF_ROWS = 0.5
SHARE_OF_ERROR_OF_UNEVEN = 1.0
UNEVEN_STATES = ("qwen3_5_text",)
# How many standard deviations of the error may lie between two tokens whose order changes. Falcon-H1 has a few rows
# with errors that its states keep: 7.0 at most, on every path.
DEVIATIONS = 6
DEVIATIONS_OF_FALCON_H1 = 8


@dataclass(frozen=True, slots=True)
class Family:
    """A saved model; its weights rounded to bfloat16, saved too; and what others make of both."""

    case: str
    name: str
    reference: list[np.ndarray]
    rounded_name: str
    rounded_logits: np.ndarray  # of transformers in float32
    own_bfloat16_error: float  # of transformers in bfloat16


# Cases whose switches others have too, on every path.
VARIANTS = {
    *("seed_oss, biases elsewhere", "internlm3", "internlm3 with biases, dynamic rope", "glm"),
    *("hunyuan_v1_dense with biases, tied", "exaone4 without windows, tied", "helium"),
    *("glm4 without biases, whole rope", "ernie4_5 with biases, untied", "helium with biases"),
    *(
        "exaone",
        "arcee",
        "starcoder2 without biases, window, untied",
        "nemotron with biases",
        "youtu",
    ),
    *("cohere with biases, untied", "cohere2, listed windows", "phi, whole rope", "dots1"),
    "mamba, biases, not tied, automatic rank",
    *("mamba2, one group, biases, tied, limits", "falcon_h1, a norm before the gate, biases"),
    *("olmo3, listed windows, biases, yarn in full attention", "stablelm"),
    "gpt_neox, one after the other, without biases, tied",
}


def make_sequences():
    rng = np.random.default_rng(3)
    return [rng.integers(0, 320, length).tolist() for length in LENGTHS]


@pytest.fixture(
    scope="module",
    params=slow_but(CASES.keys() - VARIANTS, CASES),
)
def family(request, tmp_path_factory):
    model = make_model(*CASES[request.param])
    name = save(model, tmp_path_factory.mktemp("whole"))
    reference = load_runner(open_model(name), max_model_len=MAX_MODEL_LEN, compute="reference")
    whole = run_at_random(reference, make_sequences(), np.random.default_rng(4), max_chunk=200)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16().float())
    rounded = logits_of(model)
    rounded_name = save(model, tmp_path_factory.mktemp("rounded"))
    own_error = relative_error(logits_of(model.bfloat16()), rounded)
    return Family(request.param, name, whole, rounded_name, rounded, own_error)


def logits_of(model):
    with torch.no_grad():
        return np.concatenate(
            [model(torch.tensor([ids])).logits[0].float().numpy() for ids in make_sequences()]
        )


def has_experts(family):
    return "experts" in str(CASES[family.case])


def is_uneven(family):
    return has_experts(family) or family.case in UNEVEN_STATES


def comparable(family, logits):
    """Which rows went the same way."""
    errors = np.linalg.norm(logits - family.rounded_logits, axis=1)
    share = SHARE_OF_ROWS if is_uneven(family) else 1
    return errors <= np.quantile(errors, share)


def relative_error(logits, expected):
    return float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))


@pytest.fixture(scope="module", params=PATHS_OF_FAMILIES)
def bfloat16_logits(request, family):
    return np.concatenate(compute(family.rounded_name, "bfloat16", request.param))


def compute(name, dtype, path):
    checkpoint = open_model(name, dtype=dtype)
    runner = NativeRunner(
        checkpoint.spec,
        checkpoint.load(),
        dtype=checkpoint.card.dtype,
        max_model_len=MAX_MODEL_LEN,
        machine=Machine(path, 2),
    )
    return run_at_random(runner, make_sequences(), np.random.default_rng(5), max_chunk=40)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", PATHS_OF_FAMILIES)
def test_float32_agrees_with_the_reference(family, path):
    """Every logit is within 1e-4, through chunks, decode and scattered blocks, on every path.

    Where logits are larger than 10, within 1e-5 of the largest: in numpy the order of a sum depends on the CPU.
    Of states 3e-3: what comes between their products is the same bits, and makes more of the errors of those.
    """
    logits = compute(family.name, "float32", path)
    differences = [np.abs(a - b).max() for a, b in zip(logits, family.reference, strict=True)]
    largest = max(np.abs(rows).max() for rows in family.reference)
    bound = 3e-3 if is_recurrent(*CASES[family.case]) else max(1e-4, 1e-5 * largest)
    assert max(differences) <= bound


@pytest.mark.filterwarnings("ignore")
def test_bfloat16_agrees_with_transformers_in_float32(family, bfloat16_logits):
    """The error stays at what bfloat16 allows, well below that of transformers in bfloat16."""
    rows = comparable(family, bfloat16_logits)
    typical = relative_error(bfloat16_logits[rows], family.rounded_logits[rows])
    assert typical <= BFLOAT16_ERROR_OF.get(family.case, BFLOAT16_ERROR)
    error = relative_error(bfloat16_logits, family.rounded_logits)
    most = SHARE_OF_ERROR_OF_UNEVEN if is_uneven(family) else SHARE_OF_ERROR
    share = SHARE_OF_ERROR_OF.get(family.case, most)
    assert error <= share * family.own_bfloat16_error


@pytest.mark.filterwarnings("ignore")
def test_bfloat16_chooses_a_token_that_float32_prefers_within_the_error(family, bfloat16_logits):
    """Where float32 prefers a token by more than the error, greedy decoding chooses that one."""
    rows = comparable(family, bfloat16_logits)
    expected, bfloat16_logits = family.rounded_logits[rows], bfloat16_logits[rows]
    deviation = np.sqrt(np.mean((bfloat16_logits - expected) ** 2))
    chosen = np.take_along_axis(expected, bfloat16_logits.argmax(axis=-1)[:, None], axis=-1)[:, 0]
    most = DEVIATIONS_OF_FALCON_H1 if family.case.startswith("falcon_h1") else DEVIATIONS
    assert (expected.max(axis=-1) - chosen).max() <= most * deviation


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", LONG_SHAPES)
def test_a_context_of_several_blocks_of_keys_agrees_with_the_reference(shape, path):
    """Later blocks have larger scores than those before: what was weighed by those is scaled down."""
    ids = np.random.default_rng(3).integers(0, 300, 1100).tolist()
    spec, weights = model_of(shape, "float32")
    reference = ReferenceRunner(spec, weights, max_model_len=1100)
    logits = []
    for runner in (reference, make_runner(shape, "float32", path, num_threads=2)):
        runner.allocate_kv(num_blocks=70, block_size=16)
        whole = Part(ids, 1100, list(range(1, 70)), 0, 1100)
        logits.append(runner.forward(step([whole], 16)))
    assert np.abs(logits[0] - logits[1]).max() <= 1e-4


@pytest.mark.parametrize("path", PATHS)
def test_float16_weights_are_widened(path):
    """A float16 checkpoint computes in float32, and gives what the reference gives."""
    checkpoint = open_model(
        "embedded:random?hidden=68&heads=5&kv_heads=1&head_dim=14&dtype=float16"
    )
    sequences = [np.random.default_rng(1).integers(0, 512, 60).tolist()]
    reference = load_runner(checkpoint, compute="reference")
    native = NativeRunner(
        checkpoint.spec,
        checkpoint.load(),
        dtype="float16",
        max_model_len=100,
        machine=Machine(path),
    )
    expected = run_at_random(reference, sequences, np.random.default_rng(2), max_chunk=20)
    logits = run_at_random(native, sequences, np.random.default_rng(2), max_chunk=20)
    assert np.abs(logits[0] - expected[0]).max() <= 1e-4
