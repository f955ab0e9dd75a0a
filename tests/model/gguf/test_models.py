"""Models in GGUF files against the same checkpoint in safetensors."""

import json
import math

import gguf
import numpy as np
import pytest

from tests.compute.families import CASES, make_model, save
from tests.model.checkpoints import CONFIG, tensors_of, write_checkpoint
from tests.model.gguf.files import close, gguf_tensors, write_gguf
from tests.model.quantized.packers import assert_near, assert_same, logits_of
from tests.slow import slow_but
from weft.compute.backends import BACKENDS, choose
from weft.core.config.engine_options import EngineOptions
from weft.core.errors import ConfigError
from weft.model.gguf.blocks import TYPES
from weft.model.open import open_model
from weft.model.quantized.packed import PackedMatrix
from weft.model.spec import RopeKind

WIDE = {**CONFIG, "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8}
PACKED = [kind.name for kind in TYPES.values() if kind.form is not None]
ARCHITECTURES = [
    *("llama", "llama with biases, tied, wide heads", "llama, linear rope", "llama, yarn rope"),
    *("mistral without window", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "olmo2"),
    *("granite", "smollm3"),
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss"),
    *("glm4_moe", "glm4_moe, one group, whole sigmoids, two shared experts"),
    *("lfm2", "lfm2, a convolution last, its MLP multiplied", "lfm2_moe"),
    *("arcee", "seed_oss", "seed_oss, biases elsewhere", "internlm3", "hunyuan_v1_dense"),
    *("olmo3", "exaone4", "exaone4 without windows, tied", "phi3", "phi3, partial rope"),
    *("glm", "glm4", "ernie4_5", "ernie4_5 with biases, untied", "dots1", "gpt2"),
    "ernie4_5_moe",
    *("gpt_neox", "gpt_neox, one after the other, without biases, tied"),
    *("phi", "starcoder2", "stablelm", "stablelm with biases, side by side"),
    *("nemotron", "nemotron with biases", "cohere", "cohere2"),
]
PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}}
YARN_OF_V2 = "deepseek_v2, queries of low rank, groups, biases, yarn"
YARN_OF_V3 = "deepseek_v3, halves turn, one group, whole sigmoids, no dense layer, yarn"
DEEPSEEK = ["deepseek_v2", YARN_OF_V2, "deepseek_v3", YARN_OF_V3, "youtu"]
ROPED_HYBRID = "granitemoehybrid without experts, rope, many groups, biases, limits, Mamba-2 last"
WITH_NORMS = "cohere, norms of queries and keys"
GATED_FIRST = "falcon_h1, a norm before the gate, biases"
# What the files do not say, and must be what llama.cpp takes it for.
FIXED = {
    ROPED_HYBRID: {"time_step_limit": (0.0, float("inf"))},
    "bamba": {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    "glm": {"head_dim": 12},
    "dots1": {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    "phi": {"num_key_value_heads": 4},
    "nemotron": {"hidden_act": "relu2"},
    "falcon_mamba": {"mixer_rms_eps": 1e-6},
    GATED_FIRST: {"mamba_norm_before_gate": False},
    "smollm3": {"no_rope_layer_interval": 4, "use_sliding_window": False},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"query_pre_attn_scalar": 16},
    YARN_OF_V2: {
        "rope_parameters": {
            **CASES[YARN_OF_V2][1]["rope_parameters"],
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        }
    },
    YARN_OF_V3: {"rope_interleave": True},
}


def write_both(directory, family, settings, kinds="F32", **how):
    """A checkpoint, and the same as a GGUF file: their names."""
    name = save(make_model(family, settings), directory / "checkpoint")
    return name, str(write_gguf(directory / "m.gguf", directory / "checkpoint", kinds, **how))


def floats_of(path):
    """What the package makes of each of a file's tensors."""
    return {
        t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors
    }


@pytest.mark.parametrize(
    "case", slow_but(("llama", "gemma", "gpt_oss"), [*ARCHITECTURES, WITH_NORMS])
)
@pytest.mark.parametrize("compute", slow_but(("native",), ("native", "reference")))
def test_floats_compute_what_the_checkpoint_does_bit_for_bit(tmp_path, case, compute):
    """Every architecture: names, settings, the order of rows and the weights of norms."""
    family, settings = CASES[case]
    name, path = write_both(tmp_path, family, settings | FIXED.get(family, {}))
    assert_same(path, name, compute=compute)


@pytest.mark.parametrize("case", slow_but(("deepseek_v3",), DEEPSEEK))
@pytest.mark.parametrize("compute", ["native", "reference"])
@pytest.mark.parametrize("is_split", [True, False], ids=["split", "whole"])
def test_latent_attention_computes_what_the_checkpoint_does(tmp_path, case, compute, is_split):
    """Bit for bit: what makes keys and values in two tensors, or as older files have it in one."""
    family, settings = CASES[case]
    settings = settings | FIXED.get(case, {})
    name, path = write_both(tmp_path, family, settings, is_split=is_split)
    assert open_model(path).spec.latent == open_model(name).spec.latent
    assert_same(path, name, compute=compute)


# With a shared expert and without, with rope and without.
HYBRIDS = ["granitemoehybrid", ROPED_HYBRID, "bamba"]
STATES = ["mamba", "falcon_mamba", "mamba2", "falcon_h1", GATED_FIRST]


@pytest.mark.parametrize("case", slow_but(("granitemoehybrid", "mamba"), HYBRIDS + STATES))
def test_mamba_computes_nearly_what_the_checkpoint_does(tmp_path, case):
    """Files have the decays of states themselves, where checkpoints have their logarithms."""
    family, settings = CASES[case]
    name, path = write_both(tmp_path, family, settings | FIXED.get(case, {}))
    expected = logits_of(name)
    np.testing.assert_allclose(logits_of(path), expected, rtol=0, atol=2e-3)
    assert expected.std() > 0.5


def test_decays_that_are_not_negative_are_refused(tmp_path):
    """The state would grow with each token, or the logarithm would be no number."""
    _, path = write_both(
        tmp_path, *CASES["bamba"], change=lambda name, v: abs(v) if name.endswith("ssm_a") else v
    )
    with pytest.raises(ConfigError, match=r"blk\.0\.ssm_a must have negative numbers only"):
        open_model(path).map()


WIDE_LATENT = {
    **CASES["deepseek_v3"][1],
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    # All are used: what is rounded must not send a token elsewhere.
    "n_routed_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}


@pytest.mark.parametrize("is_split", [True, False], ids=["split", "whole"])
@pytest.mark.parametrize("kind", ["Q8_0", pytest.param("Q4_0", marks=pytest.mark.slow)])
def test_what_is_made_of_latent_vectors_is_widened_from_blocks(tmp_path, is_split, kind):
    """To what the package makes of them; all else is computed in its own numbers."""
    _, path = write_both(tmp_path, "deepseek_v3", WIDE_LATENT, kind, is_split=is_split)
    checkpoint = open_model(path, dtype="float32")
    names = {name.rpartition(".")[2] for name in checkpoint.groups}
    assert names == {"q_a", "q_b", "kv_a", "o", "gate", "up", "down"}
    read = floats_of(path)
    meant = read.get("blk.1.attn_kv_b.weight")
    if is_split:
        keys, values = (read[f"blk.1.attn_{part}_b.weight"] for part in "kv")
        meant = np.concatenate((keys.swapaxes(1, 2), values), axis=1).reshape(-1, 32)
    np.testing.assert_array_equal(checkpoint.map()["layers.1.kv_b"].float32(), meant)
    assert_near(path, logits_of(path, dtype="float32", quantization="none"))


def test_halves_of_different_types_are_joined_as_floats(tmp_path):
    """As mixtures of types have them."""
    kinds = {"attn_k_b": "F16", "attn_v_b": "Q8_0"}
    _, path = write_both(
        tmp_path, "deepseek_v3", WIDE_LATENT, lambda name: kinds.get(name[6:14], "F32")
    )
    keys, values = (
        next(t for t in gguf.GGUFReader(path).tensors if t.name == f"blk.1.attn_{part}_b.weight")
        for part in "kv"
    )
    got = open_model(str(path)).map()["layers.1.kv_b"]
    by_head = got.float32().reshape(4, 64, 32)
    np.testing.assert_array_equal(by_head[:, :32], keys.data.astype(np.float32).swapaxes(1, 2))
    meant = gguf.quants.dequantize(values.data, values.tensor_type).reshape(4, 32, 32)
    np.testing.assert_allclose(by_head[:, 32:], meant, rtol=2**-8)  # bfloat16, as all blocks


@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize("compute", ["native", "reference"])
def test_numbers_that_are_none_are_named_by_half(tmp_path, part, compute):
    """Wherever the weights are read."""

    def spoil(name, values):
        if name == f"blk.1.attn_{part}_b.weight":
            values[1, 2, 3] = np.nan
        return values

    _, path = write_both(tmp_path, "deepseek_v3", WIDE_LATENT, change=spoil)
    with pytest.raises(ConfigError, match=rf"blk\.1\.attn_{part}_b\.weight holds NaN"):
        logits_of(path, compute=compute)


def test_layers_of_glm_that_guess_later_tokens_are_passed_over(tmp_path):
    """Metadata counts them among the others, behind the last."""
    family, settings = CASES["glm4_moe"]
    guess = {"blk.3.nextn.eh_proj.weight": np.zeros((48, 96), np.float32)}
    counted = [("add_nextn_predict_layers", 1)]
    _, path = write_both(tmp_path, family, settings, metadata=counted, extra=guess)
    assert len(open_model(path).spec.layers) == 3
    path = write_gguf(tmp_path / "b.gguf", tmp_path / "checkpoint", extra=guess)
    with pytest.raises(ConfigError, match=r"blk\.3\.nextn\.eh_proj\.weight' has no place"):
        open_model(str(path))


def test_without_a_width_no_layer_of_gemma3_has_a_window(tmp_path):
    """Its family would take 4096, and other frequencies for five layers of six."""
    family, settings = CASES["gemma3_text"]
    whole = {"layer_types": ["full_attention"] * 7, **FIXED[family]}
    name = save(make_model(family, settings | whole), tmp_path / "checkpoint")
    expected = logits_of(name)
    config = tmp_path / "checkpoint" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "sliding_window": None}))
    path = write_gguf(tmp_path / "model.gguf", tmp_path / "checkpoint")
    assert np.array_equal(logits_of(str(path)), expected)


def dequantised(path, checkpoint):
    """The checkpoint's tensors as the package reads them from the file, in their own order of rows."""
    config = json.loads((checkpoint / "config.json").read_text())
    read = floats_of(path)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    tensors = {}
    for name in tensors_of(config):
        values = read[names.get_name(name, (".weight", ".bias"))]
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:
                pairs = values.reshape(config[heads], -1, 2, values.shape[1])
                values = pairs.swapaxes(1, 2).reshape(values.shape)
        tensors[name] = np.ascontiguousarray(values)
    return tensors


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Rows of 256, as the larger blocks need them."""
    return write_checkpoint(tmp_path_factory.mktemp("wide") / "checkpoint", WIDE)


@pytest.mark.parametrize("kind", slow_but(("Q4_0", "Q4_K"), PACKED))
def test_blocks_compute_what_they_mean(tmp_path, wide, kind):
    """Widened bit for bit; in their own numbers near it, as near as int8 inputs come."""
    path = write_gguf(tmp_path / "model.gguf", wide, kind)
    meant = write_checkpoint(tmp_path / "meant", WIDE, dequantised(path, wide))
    expected = logits_of(str(meant))
    assert np.array_equal(logits_of(str(path), dtype="float32", quantization="none"), expected)
    checkpoint = open_model(str(path))
    assert len(checkpoint.groups) == 7 * WIDE["num_hidden_layers"]
    assert {form.bits for form in checkpoint.groups.values()} == {checkpoint.card.stored_bits}
    assert "by row instead" not in notice_of(checkpoint)
    assert_near(str(path), expected)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K", "MXFP4"])
def test_panels_of_blocks_in_the_file_are_those_of_numbers_taken_apart(
    tmp_path, wide, kind, monkeypatch
):
    """Bit for bit; rows of queries and keys come in another order than they lie in."""
    checkpoint = open_model(str(write_gguf(tmp_path / "model.gguf", wide, kind)))
    assert all(values.halved() is not None for values in groups_of(checkpoint))
    panels = panels_of(checkpoint)
    monkeypatch.setattr(PackedMatrix, "halved", lambda _: None)
    assert panels == panels_of(checkpoint)


def groups_of(checkpoint):
    return [checkpoint.map().tensors[name] for name in checkpoint.groups]


def panels_of(checkpoint):
    compute = choose(EngineOptions(model="m", compute="native"), checkpoint.card)
    sized = BACKENDS["native"].sized(checkpoint, compute)
    runner = BACKENDS["native"].load(sized, compute, max_model_len=32)
    return [bytes(part) for part in runner.packed_parts()]


def test_experts_in_blocks_compute_what_they_mean(tmp_path):
    """As files of gpt-oss are: MXFP4 in its own four bits, each expert its part of a tensor for all of them."""
    family, settings = CASES["gpt_oss"]
    sizes = {"hidden_size": 64, "intermediate_size": 32}
    _, path = write_both(
        tmp_path, family, settings | sizes, lambda n: "MXFP4" if "exps" in n else "F32"
    )
    checkpoint = open_model(path)
    assert {form.offset for form in checkpoint.groups.values()} == {"e2m1"}
    read = floats_of(path)
    loaded = checkpoint.map().tensors
    for part in ("gate", "up", "down"):
        meant = read[f"blk.2.ffn_{part}_exps.weight"][3]
        got = loaded[f"layers.2.experts.3.{part}"].unpacked().float32()
        np.testing.assert_array_equal(got, meant)
    assert_near(str(path))


def test_products_around_a_convolution_are_computed_in_blocks(tmp_path):
    """Its own weights are floats, as llama.cpp leaves them."""
    family, settings = CASES["lfm2"]
    sizes = {"hidden_size": 64, "block_auto_adjust_ff_dim": False, "intermediate_size": 64}
    name, path = write_both(
        tmp_path, family, settings | sizes, lambda n: "F32" if "shortconv.conv" in n else "Q8_0"
    )
    groups = open_model(path).groups
    assert {"layers.0.conv_in", "layers.0.conv_out", "layers.1.q"} < groups.keys()
    assert_near(path, logits_of(name))


def notice_of(checkpoint):
    """What the start says of it."""
    compute = choose(EngineOptions(compute="native"), checkpoint.card)
    return BACKENDS["native"].sized(checkpoint, compute).card.notice


def test_types_may_differ_from_matrix_to_matrix(tmp_path, wide):
    """As mixtures of them do: what is multiplied as one is int8 then, and the start says so; all else is as it is."""
    path = write_gguf(tmp_path / "m.gguf", wide, lambda n: "Q6_K" if "attn_v" in n else "Q4_K")
    checkpoint = open_model(str(path))
    bits = {name.rpartition(".")[2]: form.bits for name, form in checkpoint.groups.items()}
    assert (bits["v"], bits["q"]) == (8, 4)
    assert "6 of these 14 matrices are computed in int8 by row instead" in notice_of(checkpoint)
    assert_near(str(path))


def test_another_type_is_served_on_request(tmp_path, wide):
    """Floats and blocks are rounded to it, as a checkpoint's are."""
    path = str(write_gguf(tmp_path / "m.gguf", wide, "F16"))
    assert open_model(path).card.dtype == "float16"
    meant = write_checkpoint(tmp_path / "m", WIDE, dequantised(path, wide))
    assert np.array_equal(
        logits_of(path, dtype="bfloat16"), logits_of(str(meant), dtype="bfloat16")
    )


def test_factors_of_frequencies_are_those_of_llama3_rope(tmp_path):
    """Which files list one by one, where the config has four settings."""
    family, settings = CASES["llama, llama3 rope"]
    rope = {**settings["rope_parameters"], "original": 64}
    plain = 10000.0 ** -(np.arange(6) / 6)
    turns = rope["original"] * plain / (2 * np.pi)
    smooth = np.clip((turns - rope["low_freq_factor"]) / 3.0, 0, 1)
    factors = (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)
    name, path = write_both(tmp_path, family, settings, extra={"rope_freqs.weight": factors})
    assert len(set(factors)) > 2
    np.testing.assert_allclose(logits_of(path), logits_of(name), rtol=1e-4, atol=1e-5)


SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"


@pytest.mark.parametrize(
    "case", ["phi3, longrope, short", pytest.param("phi3, longrope, long", marks=pytest.mark.slow)]
)
def test_factors_of_short_and_long_contexts_are_those_of_longrope(tmp_path, case):
    """Files list both in two tensors, and have the factor of attention among their settings."""
    family, settings = CASES[case]
    settings = settings | {"sliding_window": None}
    rope = settings["rope_parameters"]
    lists = {SHORT: rope["short_factor"], LONG: rope["long_factor"]}
    original = settings["original_max_position_embeddings"]
    attention = math.sqrt(1 + math.log(512 / original) / math.log(original))
    name, path = write_both(
        tmp_path,
        family,
        settings,
        extra={tensor: np.array(values, np.float32) for tensor, values in lists.items()},
        metadata=[
            ("add_rope_scaling_attn_factors", attention),
            ("add_rope_scaling_orig_ctx_len", original),
        ],
    )
    np.testing.assert_allclose(logits_of(path), logits_of(name), rtol=1e-4, atol=1e-4)


def test_one_of_two_lists_of_factors_is_refused(tmp_path):
    """A file with factors of long contexts alone does not say what short ones need."""
    _, path = write_both(tmp_path, *CASES["phi3"], extra={LONG: np.ones(6, np.float32)})
    with pytest.raises(ConfigError, match=rf"rope\.scaling\.type is 'none' beside {LONG}"):
        open_model(path)


def test_tensors_say_whether_stablelm_is_parallel(tmp_path):
    """Some files of models with a norm before the MLP claim that attention and MLP are parallel."""
    family, settings = CASES["stablelm"]
    wrong = [("add_parallel_residual", True)]
    name, path = write_both(tmp_path, family, settings, metadata=wrong)
    assert_same(path, name)


def test_frequencies_that_no_file_scales_are_not_scaled(tmp_path):
    """The family of gpt-oss would take those of its releases, and its files say them."""
    family, settings = CASES["gpt_oss"]
    name, path = write_both(tmp_path, family, settings | PLAIN_ROPE)
    assert {layer.rope.kind for layer in open_model(path).spec.layers} == {RopeKind.DEFAULT}
    assert_same(path, name)


def test_a_file_may_be_in_parts(tmp_path, wide):
    """Any of them is its name; each tensor is in one, and a part that is missing is named."""
    whole = write_gguf(tmp_path / "whole.gguf", wide)
    parts = [tmp_path / f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    write_gguf(
        parts[0],
        wide,
        change=lambda n, v: v if "blk.1." not in n else None,
        metadata=[("add_uint16", "split.count", 2)],
    )
    writer = gguf.GGUFWriter(parts[1], "llama")
    for name, values in gguf_tensors(wide, WIDE, "llama").items():
        if "blk.1." in name:
            writer.add_tensor(name, values)
    close(writer, parts[1])
    expected = logits_of(str(whole))
    assert all(np.array_equal(logits_of(str(part)), expected) for part in parts)
    assert open_model(str(parts[1])).weight_files == tuple(parts)
    parts[1].write_bytes(parts[0].read_bytes())
    with pytest.raises(ConfigError, match=r"tensor 'output\.weight' is also in m-00001-of-00002"):
        open_model(str(parts[0]))
    parts[1].unlink()
    with pytest.raises(ConfigError, match=r"m-00002-of-00002\.gguf: the file does not exist"):
        open_model(str(parts[0]))
