"""Random damage to the files of a checkpoint ends in a `ConfigError` or in a model, never in a crash."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.model.checkpoints import CONFIG, write_checkpoint, write_json
from weft.core.errors import ConfigError
from weft.model.families.decoders import read_config, read_spec
from weft.model.open import open_model

FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from([0, 1, 2**31, 10**30, "sliding_attention", "yarn", "llama3"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
KEYS = [
    *CONFIG,
    *(
        "rope_scaling rope_parameters rope_theta layer_types sliding_window head_dim hidden_act"
        " attention_bias text_config no_rope_layers max_window_layers use_sliding_window"
        " sliding_window_pattern query_pre_attn_scalar partial_rotary_factor"
    ).split(),
]


MODEL_KEYS = (*KEYS, "architectures", "quantization_config", "torch_dtype", "dtype")
ODD = (None, True, 0, -1.5, "", "x", [], [[]], [{}], {}, {"a": []}, [None, "a"])


def complaint(action):
    """What a `ConfigError` says; nothing when all is well. Any other exception fails the test."""
    try:
        action()
    except ConfigError as error:
        return str(error)
    return ""


# Where bytes are put in, changed or taken out, and whether in what describes the tensors.
DAMAGES = st.tuples(st.integers(0, 2**31), st.booleans(), st.binary(max_size=8), st.integers(0, 8))


def check_damage(path, num_header_bytes, damage, load):
    """A damaged file is refused in one line or read; it is sound again afterwards."""
    place, in_header, put_in, num_taken = damage
    data = path.read_bytes()
    place %= num_header_bytes if in_header else len(data)
    path.write_bytes(data[:place] + put_in + data[place + num_taken :])
    message = complaint(load)
    path.write_bytes(data)
    assert "\n" not in message


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "m")


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(FILES),
    place=st.integers(0, 5000),
    damage=st.binary(max_size=4),
    cut=st.integers(0, 4),
)
def test_damaged_bytes_never_crash(directory, name, place, damage, cut):
    """A few bytes put in or taken out, anywhere in any file."""
    path = directory / name
    sound = path.read_bytes()
    place %= len(sound)
    path.write_bytes(sound[:place] + damage + sound[place + cut :])
    message = complaint(lambda: open_model(str(directory)).load())
    path.write_bytes(sound)
    assert "\n" not in message


@settings(max_examples=400, deadline=None)
@given(
    model_type=st.sampled_from("llama mistral qwen2 smollm3 phi3 granite gemma2 gemma3".split()),
    changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4),
)
def test_any_config_is_read_or_refused(model_type, changes):
    """Whatever a key holds, the answer is a spec or one line of refusal."""
    config = {**CONFIG, "model_type": model_type, **changes}
    config.pop("architectures")
    assert "\n" not in complaint(lambda: read_spec(read_config(config, "config.json")))


@pytest.mark.parametrize("key", MODEL_KEYS)
def test_any_kind_of_value_is_read_or_refused_from_the_file_on(directory, key):
    """Also by what looks at the config before it is known what it is of."""
    path = directory / "config.json"
    sound = path.read_bytes()
    for value in ODD:
        write_json(path, {**CONFIG, key: value})
        assert "\n" not in complaint(lambda: open_model(str(directory)))
    path.write_bytes(sound)


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "key", ["eos_token_id", "eos_token", "bos_token", "top_p", "chat_template", "add_bos_token"]
)
def test_any_kind_of_value_beside_the_config_is_read_or_refused(tmp_path, name, key):
    """The files around it are no better known."""
    directory = write_checkpoint(tmp_path / "m")
    for value in ODD:
        write_json(directory / name, {key: value})
        assert "\n" not in complaint(lambda: open_model(str(directory)))
