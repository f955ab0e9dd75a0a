"""Numbers of a config: those that float32 does not hold are refused, and the others computed with."""

from contextlib import suppress

import numpy as np
import pytest

from tests.compute.runners import load_runner
from tests.compute.steps import Part, step
from tests.model.checkpoints import CONFIG, write_checkpoint, write_json
from weft.core.errors import ConfigError
from weft.model.open import open_model


def with_changes(changes):
    return {**CONFIG, **changes}


def refusal(directory):
    """The message with which opening is refused."""
    with pytest.raises(ConfigError) as error:
        open_model(str(directory))
    return str(error.value)


def yarn(**settings):
    return {"rope_scaling": {"rope_type": "yarn", "factor": 2, **settings}}


def llama3(**settings):
    bands = {"low_freq_factor": 1, "high_freq_factor": 4}
    return {"rope_scaling": {"rope_type": "llama3", "factor": 8, **bands, **settings}}


def of_phi3(**settings):
    lists = {"short_factor": [1] * 4, "long_factor": [1] * 4}
    rope = {"type": "longrope", **lists, **settings}
    family = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}
    return {**family, "rope_scaling": rope, "original_max_position_embeddings": 32}


def of_gemma2(**changes):
    return {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "head_dim": 8,
        **changes,
    }


def of_granite(**changes):
    return {"model_type": "granite", "architectures": ["GraniteForCausalLM"], **changes}


NUMBERS = {
    "rms_norm_eps": lambda n: {"rms_norm_eps": n},
    "rope_theta": lambda n: {"rope_theta": n},
    "linear": lambda n: {"rope_scaling": {"rope_type": "linear", "factor": n}},
    "llama3 factor": lambda n: llama3(factor=n),
    "llama3 low": lambda n: llama3(low_freq_factor=n, high_freq_factor=n * 1.001),
    "yarn factor": lambda n: yarn(factor=n),
    "yarn attention": lambda n: yarn(attention_factor=n),
    "yarn beta": lambda n: yarn(beta_fast=n),
    "yarn mscale": lambda n: yarn(mscale=n, mscale_all_dim=1),
    "yarn mscale all": lambda n: yarn(mscale=1, mscale_all_dim=n),
    "longrope list": lambda n: of_phi3(long_factor=[n] * 4),
    "longrope factor": lambda n: of_phi3(factor=n),
    "longrope attention": lambda n: of_phi3(attention_factor=n),
    "attention scale": lambda n: of_gemma2(query_pre_attn_scalar=n),
    "attention cap": lambda n: of_gemma2(attn_logit_softcapping=n),
    "final cap": lambda n: of_gemma2(final_logit_softcapping=n),
    "embedding": lambda n: of_granite(embedding_multiplier=n),
    "attention": lambda n: of_granite(attention_multiplier=n),
    "residual": lambda n: of_granite(residual_multiplier=n),
    "logits": lambda n: of_granite(logits_scaling=n),
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("value", [1e-300, 1e-30, 1e30, 1e300])
def test_a_number_that_float32_does_not_hold_is_refused(tmp_path, number, value):
    """With it the model would answer nothing but NaN, or the same to everything."""
    config = with_changes(NUMBERS[number](value))
    write_checkpoint(tmp_path / "m")
    write_json(tmp_path / "m" / "config.json", config)
    assert " from 1e-" in refusal(tmp_path / "m") or "from 0.001" in refusal(tmp_path / "m")


def accepted(directory, change):
    """The values nearest to the bounds with which the checkpoint can be opened."""
    for exponent in range(-16, 17):
        config = with_changes(change(10.0**exponent))
        with suppress(ConfigError):
            write_checkpoint(directory, config)
            yield open_model(str(directory))


@pytest.mark.parametrize("compute", ["reference", "native"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_that_is_taken_can_be_computed_with(tmp_path, number, compute):
    """By every power of ten that is not refused, sound weights give logits that are numbers."""
    checkpoints = list(accepted(tmp_path, NUMBERS[number]))
    ends = [checkpoints[0], checkpoints[-1]]
    prompt = Part(list(range(40)), 40, [0, 1, 2], 0, 40)
    for checkpoint in ends:
        runner = load_runner(checkpoint, compute=compute)
        runner.allocate_kv(num_blocks=3, block_size=16)
        assert np.isfinite(runner.forward(step([prompt], 16))).all()


def test_a_scaling_from_one_position_is_refused(tmp_path):
    """Its logarithm is what others are divided by."""
    write_checkpoint(tmp_path / "m")
    changes = {**of_phi3(), "original_max_position_embeddings": 1}
    write_json(tmp_path / "m" / "config.json", with_changes(changes))
    assert "original_max_position_embeddings is 1" in refusal(tmp_path / "m")
