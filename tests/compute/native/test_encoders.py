"""The native encoder gives what the numpy reference gives, and the same bits in any company."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compute.encoders import draw_prompts, hidden_states, packed
from weft.compute.native import Machine, NativeEncoder, resident_bytes, usable_paths
from weft.compute.reference.encoder import EncoderRunner
from weft.core.errors import ConfigError
from weft.model.spec import LayerSpec, ModelSpec, NormPlacement, RopeSpec
from weft.model.switches import Activation, Norm
from weft.model.weights import Tensor, Weights

PROMPTS = draw_prompts((150, 1, 75, 16, 75, 33, 12, 13))
ONE = Machine(num_threads=1)
LOCAL = LayerSpec(rope=RopeSpec(dim=12, theta=10_000.0), window=13)
GLOBAL = LayerSpec(rope=RopeSpec(dim=12, theta=160_000.0))

# Odd sizes on purpose: tails of vector registers, and a hidden size that no panel divides.
BERT = ModelSpec(
    vocab_size=320,
    hidden_size=60,
    intermediate_size=83,
    num_heads=5,
    num_kv_heads=5,
    head_dim=12,
    layers=(LayerSpec(),) * 3,
    max_position_embeddings=198,
    is_causal=False,
    num_positions=200,
    position_offset=2,
    num_token_types=2,
    norm=Norm.LAYER,
    norm_bias=True,
    norm_eps=1e-12,
    norm_placement=NormPlacement.SUM,
    has_embed_norm=True,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    is_gated=False,
    activation=Activation.GELU,
    attention_scale=12**-0.5,
    has_head=False,
)
MODERNBERT = replace(
    BERT,
    layers=(replace(GLOBAL, has_attention_norm=False), LOCAL, LOCAL, GLOBAL),
    num_positions=0,
    position_offset=0,
    num_token_types=0,
    norm_bias=False,
    norm_placement=NormPlacement.BEFORE,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    is_gated=True,
)
SPECS = {
    "bert": BERT,
    "distilbert": replace(BERT, num_token_types=0, position_offset=0),
    "tanh gelu": replace(BERT, activation=Activation.GELU_TANH, num_token_types=1),
    "modernbert": MODERNBERT,
    "modernbert with biases": replace(
        MODERNBERT, norm_bias=True, qkv_bias=True, o_bias=True, mlp_bias=True
    ),
    "nomic_bert": replace(
        MODERNBERT,
        layers=(GLOBAL,) * 3,
        num_token_types=2,
        norm_bias=True,
        norm_placement=NormPlacement.SUM,
        activation=Activation.SILU,
    ),
    "relu": replace(BERT, activation=Activation.RELU),
    "tanh": replace(BERT, activation=Activation.TANH),
    "wide": replace(
        BERT,
        hidden_size=160,
        num_heads=2,
        num_kv_heads=2,
        head_dim=80,
        intermediate_size=1500,
        attention_scale=80**-0.5,
    ),
}


def shapes_of(spec):
    """Every tensor of the encoder, by name."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    place, is_before = spec.norm_placement.value, spec.norm_placement is NormPlacement.BEFORE
    yield "embed", (spec.vocab_size, hidden)
    if spec.num_positions:
        yield "positions", (spec.num_positions, hidden)
    if spec.num_token_types:
        yield "token_types", (spec.num_token_types, hidden)
    norms = ["embed_norm", *(["norm"] if is_before else [])]
    for index, layer in enumerate(spec.layers):
        prefix = f"layers.{index}."
        norms += [f"{prefix}attention_norm_{place}"] * layer.has_attention_norm
        norms += [f"{prefix}mlp_norm_{place}"]
        up = ("gate", "up") if spec.is_gated else ("up",)
        parts = dict.fromkeys(("q", "k", "v"), (hidden, hidden, spec.qkv_bias))
        parts |= {"o": (hidden, hidden, spec.o_bias), "down": (hidden, inner, spec.mlp_bias)}
        parts |= dict.fromkeys(up, (inner, hidden, spec.mlp_bias))
        for part, (rows, columns, has_bias) in parts.items():
            yield prefix + part, (rows, columns)
            if has_bias:
                yield f"{prefix}{part}.bias", (rows,)
    for norm in norms:
        yield norm, (hidden,)
        if spec.norm_bias:
            yield f"{norm}.bias", (hidden,)


def draw_weights(spec, dtype="float32"):
    """All drawn, norms and biases too."""
    rng = np.random.default_rng(5)
    tensors = {}
    for name, shape in shapes_of(spec):
        values = rng.standard_normal(shape).astype(np.float32)
        values *= 0.2 if len(shape) == 1 else shape[1] ** -0.5
        if "norm" in name and not name.endswith(".bias"):
            values += 1
        tensors[name] = Tensor("float32", values).rounded_to(dtype)
    return Weights(tensors)


def make_encoder(spec, path=None, num_threads=1, dtype="float32"):
    """Loaded with the drawn weights."""
    weights = draw_weights(spec, dtype)
    return NativeEncoder(spec, weights, dtype=dtype, machine=Machine(path, num_threads))


def relative(a, b):
    """The relative L2 error of `a`."""
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("name", SPECS)
def test_hidden_states_agree_with_the_reference(name, path):
    """Every switch of the spec, on every path: the same function up to the rounding of float32."""
    spec = SPECS[name]
    expected = hidden_states(EncoderRunner(spec, draw_weights(spec)), PROMPTS)

    states = hidden_states(make_encoder(spec, path), PROMPTS)

    assert max(relative(a, b) for a, b in zip(states, expected, strict=True)) < 3e-6
    assert max(np.abs(a - b).max() for a, b in zip(states, expected, strict=True)) < 3e-5


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("name", ["bert", "modernbert", "nomic_bert", "wide"])
def test_bfloat16_is_near_the_reference(name, path):
    """Activations are rounded on the way; what is left is within 1 %."""
    spec = SPECS[name]
    expected = hidden_states(EncoderRunner(spec, draw_weights(spec, "bfloat16")), PROMPTS)

    states = hidden_states(make_encoder(spec, path, dtype="bfloat16"), PROMPTS)

    assert relative(np.concatenate(states), np.concatenate(expected)) < 0.01


def test_a_checkpoint_in_float16_is_widened():
    """Nothing of it is lost."""
    weights = draw_weights(BERT, "float16")
    expected = hidden_states(EncoderRunner(BERT, weights), PROMPTS)
    encoder = NativeEncoder(BERT, weights, dtype="float16", machine=ONE)
    assert (
        relative(np.concatenate(hidden_states(encoder, PROMPTS)), np.concatenate(expected)) < 3e-6
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("name", ["bert", "modernbert", "nomic_bert", "wide"])
def test_a_prompt_is_the_same_bits_in_any_company(name, path, dtype):
    """Alone, first, last, beside its like or beside others, on one thread or several."""
    one = make_encoder(SPECS[name], path, dtype=dtype)
    three = make_encoder(SPECS[name], path, num_threads=3, dtype=dtype)

    alone = [hidden_states(one, [prompt])[0].tobytes() for prompt in PROMPTS]
    together = [states.tobytes() for states in hidden_states(one, PROMPTS)]
    backwards = [states.tobytes() for states in hidden_states(three, PROMPTS[::-1])][::-1]

    assert together == alone
    assert backwards == alone


@pytest.mark.parametrize("wanted", [[0], [374, 2, 2, 151], [], range(100, 200)])
@pytest.mark.parametrize("path", usable_paths())
def test_a_row_is_the_same_bits_whichever_rows_are_wanted(path, wanted):
    """Only wanted rows go through the last MLP, in the order asked for."""
    encoder = make_encoder(MODERNBERT, path, num_threads=2)
    batch = packed(PROMPTS)
    every = encoder.forward(batch)
    rows = np.array(wanted, np.int32)
    assert encoder.forward(replace(batch, logit_rows=rows)).tobytes() == every[rows].tobytes()


@pytest.mark.parametrize("path", usable_paths())
def test_a_prompt_that_overflows_leaves_its_neighbours_alone(path):
    """NaN stays in its own sequence, in this step and in those that find its tiles later."""
    weights = dict(draw_weights(BERT).tensors)
    embed = weights["embed"].data.copy()
    embed[0] = np.nan
    weights["embed"] = Tensor("float32", embed)
    encoder = NativeEncoder(BERT, Weights(weights), dtype="float32", machine=Machine(path, 2))
    expected = hidden_states(make_encoder(BERT, path), PROMPTS)

    mixed = hidden_states(encoder, [[0] * 77, *PROMPTS, [9, 0, 9]])
    after = hidden_states(encoder, PROMPTS)

    assert np.isnan(mixed[0]).all()
    assert np.isnan(mixed[-1]).all()
    assert [a.tobytes() for a in mixed[1:-1]] == [a.tobytes() for a in expected]
    assert [a.tobytes() for a in after] == [a.tobytes() for a in expected]


def test_token_types_reach_the_embedding():
    """Row by row; none is as all 0."""
    encoder = make_encoder(BERT)
    prompt = PROMPTS[3]
    plain = hidden_states(encoder, [prompt])[0]
    types = [[0] * 7 + [1] * 9]
    expected = hidden_states(EncoderRunner(BERT, draw_weights(BERT)), [prompt], types)[0]
    assert (hidden_states(encoder, [prompt], [[0] * 16])[0] == plain).all()
    assert relative(hidden_states(encoder, [prompt], types)[0], expected) < 3e-6
    assert relative(plain, expected) > 0.01


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("float16", 4), ("bfloat16", 2)])
def test_the_memory_of_the_weights_is_reported(dtype, width):
    """Sizes that fill panels take what matrices and tables hold; others are padded."""
    whole = replace(
        BERT, hidden_size=64, num_heads=4, num_kv_heads=4, head_dim=16, intermediate_size=96
    )
    elements = sum(math.prod(shape) for _, shape in shapes_of(whole) if len(shape) == 2)
    assert resident_bytes(whole, dtype).weights == elements * width
    gated = replace(whole, is_gated=True)
    assert resident_bytes(gated, dtype).weights == (elements + 3 * 64 * 96) * width
    elements = sum(math.prod(shape) for _, shape in shapes_of(BERT) if len(shape) == 2)
    assert elements * width < resident_bytes(BERT, dtype).weights < 2 * elements * width


def ints(*values):
    """An array as a batch holds it."""
    return np.array(values, np.int32)


GOOD = packed([[5, 6, 7, 8], [9, 10]], [[0, 0, 1, 1], [0, 1]])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", ints(5, 6, 7, 8, 9, 320)),
        ("token_ids", ints(5, 6, 7, 8, 9, -1)),
        ("token_ids", ints()),
        ("positions", ints(0, 1, 2, 3, 0)),
        ("positions", ints(0, 1, 2, 3, 0, 2)),
        ("positions", ints(0, 1, 2, 3, 1, 2)),
        ("positions", ints(0, 1, 2, 3, 0, -1)),
        ("positions", ints(0, 1, 2, 3, 0, 198)),
        ("token_types", ints(0, 0, 0, 0, 0, 2)),
        ("token_types", ints(0, 0, 0, 0, 0, -1)),
        ("token_types", ints(0, 0, 0)),
        ("token_types", ints()),
        ("query_starts", ints(0, 4, 7)),
        ("query_starts", ints(1, 4, 6)),
        ("query_starts", ints(0, 7, 6)),
        ("query_starts", ints(0, 0, 6)),
        ("query_starts", ints(0)),
        ("logit_rows", ints(0, 6)),
        ("logit_rows", ints(-1)),
        ("adapter_ids", ints(1, 0)),
    ],
)
def test_a_bad_field_is_refused(field, value):
    """Each field that could lead out of bounds is checked, and the message names it."""
    with pytest.raises(ValueError, match=field):
        FUZZED.forward(replace(GOOD, **{field: value}))


def test_a_prompt_beyond_the_learned_positions_is_refused():
    """198 rows have a position; the 199th would be read past the table."""
    (prompt,) = draw_prompts((199,))
    with pytest.raises(ValueError, match="positions"):
        FUZZED.forward(packed([prompt]))
    assert np.isfinite(FUZZED.forward(packed([prompt[:198]]))).all()


def test_a_token_type_of_a_model_without_them_is_refused():
    """It would be dropped without a word."""
    encoder = make_encoder(SPECS["distilbert"])
    with pytest.raises(ValueError, match="token_types"):
        encoder.forward(GOOD)


@pytest.mark.parametrize("field", ["token_ids", "positions", "query_starts", "logit_rows"])
def test_an_array_of_another_type_is_refused(field):
    """Only contiguous int32 arrays are read; others would be read as something they are not."""
    with pytest.raises(TypeError):
        FUZZED.forward(replace(GOOD, **{field: getattr(GOOD, field).astype(np.float64)}))


def test_a_missing_tensor_is_named():
    """A step never runs on weights that were not there."""
    tensors = dict(draw_weights(BERT).tensors)
    del tensors["layers.1.up"]
    encoder = NativeEncoder(BERT, Weights(tensors), dtype="float32", machine=ONE)
    with pytest.raises(ValueError, match=r"layers\.1\.up was not loaded"):
        encoder.forward(GOOD)


@pytest.mark.parametrize("name", ["layers.1.gate", "layers.7.up", "embed.bias", "norm"])
def test_a_tensor_that_the_model_has_not_is_named(name):
    """It would be dropped without a word."""
    weights = Weights({name: Tensor("float32", np.zeros((60, 60), np.float32))})
    with pytest.raises(ValueError, match=f"{name} is not part of this model"):
        NativeEncoder(BERT, weights, dtype="float32", machine=ONE)


@pytest.mark.parametrize(
    "name", ["layers.1.q", "layers.1.q.bias", "embed", "token_types", "embed_norm"]
)
def test_a_tensor_of_another_shape_is_refused(name):
    """Packing never reads past the end of what it is given."""
    weights = Weights({name: Tensor("float32", np.zeros((7, 3), np.float32))})
    with pytest.raises(ValueError, match=f"{name} must have shape"):
        NativeEncoder(BERT, weights, dtype="float32", machine=ONE)


@pytest.mark.parametrize("name", ["embed", "layers.1.q", "layers.2.up.bias", "embed_norm"])
def test_a_tensor_that_holds_no_numbers_is_refused(name):
    """Values are looked at while they are packed; the message names the tensor's source."""
    tensors = dict(draw_weights(BERT).tensors)
    values = tensors[name].data.copy()
    values.reshape(-1)[-1] = np.inf
    tensors[name] = Tensor("float32", values, unchecked="file: tensor x")
    with pytest.raises(ConfigError, match="file: tensor x"):
        NativeEncoder(BERT, Weights(tensors), dtype="float32", machine=ONE)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_heads": 7}, "num_heads"),
        ({"position_offset": 200}, "position_offset"),
        ({"layers": ()}, "layers"),
        ({"layers": (replace(LOCAL, window=0),)}, "window"),
        ({"layers": (replace(LOCAL, rope=RopeSpec(dim=14, theta=1.0)),)}, "ropes"),
        ({"layers": (LayerSpec(has_attention_norm=False),)}, "has_attention_norm"),
    ],
)
def test_an_impossible_spec_is_refused(changes, named):
    """By the field at fault."""
    with pytest.raises(ValueError, match=named):
        NativeEncoder(replace(BERT, **changes), Weights({}), dtype="float32", machine=ONE)


small = st.integers(-2, 9)
arrays = st.lists(small, max_size=8).map(lambda values: ints(*values))


@settings(max_examples=300, deadline=None)
@given(
    changes=st.fixed_dictionaries(
        {},
        optional={
            "token_ids": arrays,
            "positions": arrays,
            "token_types": st.none() | arrays,
            "query_starts": arrays,
            "logit_rows": arrays,
        },
    )
)
def test_any_batch_is_computed_or_refused(changes):
    """Whatever the arrays hold, a step gives finite states or a ValueError."""
    batch = replace(GOOD, **changes)
    try:
        states = FUZZED.forward(batch)
    except ValueError:
        return
    assert np.isfinite(states).all()


FUZZED = make_encoder(BERT, num_threads=2)
