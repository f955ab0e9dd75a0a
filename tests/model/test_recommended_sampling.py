"""What a model's files recommend: how to sample, and how long an answer is at most."""

import json

import gguf
import pytest

from tests.model.checkpoints import write_checkpoint, write_json
from weft.core.checks.resolve_params import resolve_params
from weft.core.checks.validate import Limits
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.core.values.types import SamplingParams
from weft.engine.start.configure import resolve
from weft.model.fields import Fields
from weft.model.generation import default_sampling_params
from weft.model.gguf.sampling import sampling_file
from weft.model.open import open_model
from weft.model.overrides import read_overrides


def limits_of(directory, **options):
    """The limits of an engine of this model."""
    asked = EngineOptions(model=str(directory), **options)
    card = open_model(str(directory), overrides=read_overrides(asked)).card
    return Limits.of(resolve(asked, card, 2**30))


@pytest.mark.parametrize(("asked", "most"), [(None, 7), (3, 3), (9, 7)])
def test_max_new_tokens_bounds_every_answer(tmp_path, asked, most):
    """Whether the request has a limit or none; a smaller one holds."""
    directory = write_checkpoint(tmp_path / "m")
    write_json(directory / "generation_config.json", {"max_new_tokens": 7})
    params = resolve_params(SamplingParams(max_tokens=asked), 4, limits_of(directory))
    assert params.max_tokens == most


def test_max_new_tokens_can_be_overridden(tmp_path):
    """By the flag, also where the model says nothing of it."""
    directory = write_checkpoint(tmp_path / "m")
    flag = '{"max_new_tokens": 5}'
    assert limits_of(directory).max_new_tokens is None
    assert limits_of(directory, override_generation_config=flag).max_new_tokens == 5


def test_a_limit_that_is_none_is_refused(tmp_path):
    """By the file and the key."""
    directory = write_checkpoint(tmp_path / "m")
    write_json(directory / "generation_config.json", {"max_new_tokens": 0})
    with pytest.raises(ConfigError, match="max_new_tokens"):
        open_model(str(directory))


def test_sampling_of_a_gguf_file_is_the_default():
    """Under the names that requests have, and the numbers as they were written."""
    metadata = {
        gguf.Keys.General.SAMPLING_TEMP: 0.6000000238418579,
        gguf.Keys.General.SAMPLING_TOP_K: 20,
        gguf.Keys.General.SAMPLING_XTC_THRESHOLD: 0.1,
    }
    made = json.loads(sampling_file(metadata))
    assert default_sampling_params(Fields(made, "m.gguf")) == {"temperature": 0.6, "top_k": 20}
