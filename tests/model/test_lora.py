"""Adapters from disk: what is read of them, and which are refused, by name."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.model.adapters import ATTENTION, MLP, ROOT, modules_of, tensors_of, write_adapter
from weft.core.errors import ConfigError, NotFound
from weft.model.lora import AdapterTargets, read_adapter
from weft.model.open import open_model

SPEC = open_model("embedded:random?layers=2&hidden=32&vocab=300").spec
TARGETS = AdapterTargets.of(SPEC, "llama")
TIED = open_model("embedded:tiny")
TIED_TARGETS = AdapterTargets.of(TIED.spec, TIED.card.model_type)
Q = "model.layers.0.self_attn.q_proj"


def read(path, *, max_rank=16, targets=TARGETS):
    """The adapter."""
    return read_adapter(path, targets, max_rank=max_rank)


def test_every_kind_of_module_is_read(tmp_path):
    """Attention, MLP, embedding and head, each under the name of the matrix that it changes."""
    every = (*ATTENTION, *MLP, "embed_tokens", "lm_head")
    adapter = read(write_adapter(tmp_path / "a", SPEC, targets=every))
    assert set(adapter.low_rank) == {
        "embed",
        "head",
        *(f"layers.{i}.{n}" for i in (0, 1) for n in "q k v o gate up down".split()),
    }
    assert adapter.whole == {}


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"lora_alpha": 6}, 1.5),
        ({"lora_alpha": 6, "use_rslora": True}, 3.0),
        ({"lora_alpha": 6, "alpha_pattern": {"q_proj": 8}}, 2.0),
        ({"lora_alpha": 6, "alpha_pattern": {"layers.0.self_attn.q_proj": 8}}, 2.0),
        ({"lora_alpha": 6, "alpha_pattern": {"layers.1.self_attn.q_proj": 8}}, 1.5),
    ],
)
def test_the_scale_is_alpha_over_rank(tmp_path, config, scale):
    """Over its square root where the adapter says so, and alpha by module where it says that."""
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj",), **config)
    stored = tensors_of(SPEC, ("q_proj",))[f"{ROOT}{Q}.lora_B.weight"]
    np.testing.assert_array_equal(read(path).low_rank["layers.0.q"].b, stored * np.float32(scale))


def test_ranks_may_differ_between_modules(tmp_path):
    """`rank_pattern` says so, and the shapes must agree."""
    tensors = tensors_of(SPEC, ("q_proj",)) | tensors_of(SPEC, ("v_proj",), rank=2)
    path = write_adapter(
        tmp_path / "a",
        SPEC,
        targets=("q_proj", "v_proj"),
        tensors=tensors,
        rank_pattern={"v_proj": 2},
    )
    adapter = read(path)
    assert len(adapter.low_rank["layers.0.q"].a) == 4
    assert len(adapter.low_rank["layers.1.v"].a) == 2


def test_a_module_of_no_rank_is_refused(tmp_path):
    """A pattern of less than one, with tensors to match, would divide the scale by zero."""
    tensors = tensors_of(SPEC, ("q_proj",), rank=1)
    empty = {key: t[:0] if "lora_A" in key else t[:, :0] for key, t in tensors.items()}
    path = write_adapter(
        tmp_path / "a", SPEC, targets=("q_proj",), tensors=empty, rank_pattern={"q_proj": 0.5}
    )
    with pytest.raises(ConfigError, match=r"rank_pattern is .* whole numbers"):
        read(path)


def test_fused_projections_are_taken_apart(tmp_path):
    """A family that has one matrix for queries, keys and values has adapters of it."""
    spec = open_model("embedded:random?layers=1&hidden=32&vocab=300").spec
    path = write_adapter(tmp_path / "a", spec, targets=("qkv_proj", "gate_up_proj"))
    low_rank = read(path, targets=AdapterTargets.of(spec, "phi3")).low_rank
    q, k, v = (low_rank[f"layers.0.{name}"] for name in "qkv")
    assert q.a is k.a is v.a
    stored = tensors_of(spec, ("qkv_proj", "gate_up_proj"))
    whole = stored[f"{ROOT}model.layers.0.self_attn.qkv_proj.lora_B.weight"] * np.float32(2)
    np.testing.assert_array_equal(np.concatenate([q.b, k.b, v.b]), whole)


def test_an_embedding_and_a_head_may_be_replaced(tmp_path):
    """`modules_to_save` holds them whole."""
    tensors = tensors_of(SPEC, ("q_proj",))
    whole = np.ones((SPEC.vocab_size, SPEC.hidden_size), np.float32)
    tensors |= {f"{ROOT}lm_head.weight": whole, f"{ROOT}model.embed_tokens.weight": whole}
    saved = ["lm_head", "embed_tokens"]
    path = write_adapter(
        tmp_path / "a", SPEC, targets=("q_proj",), tensors=tensors, modules_to_save=saved
    )
    assert set(read(path).whole) == {"embed", "head"}


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", "query_key_value", "c_attn"]},
        {"target_modules": ["q_proj", "v_proj", "gate_proj"]},
        {"rank_pattern": {f"^{Q}": 4}},
        {"r": 8, "rank_pattern": {Q.replace(".", r"\.") + "$": 4, "layers.1.self_attn.q_proj": 4}},
    ],
    ids=["of other families", "without tensors", "whole path", "escaped"],
)
def test_a_configuration_may_name_more_than_was_trained(tmp_path, config):
    """As in PEFT: lists are written for many families, and patterns may be anchored."""
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj",), **config)
    assert set(read(path).low_rank) == {"layers.0.q", "layers.1.q"}


@pytest.mark.parametrize("pattern", [Q, f"^{Q}"])
def test_a_pattern_may_be_a_whole_path(tmp_path, pattern):
    """Only the module of that path has its alpha."""
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj",), alpha_pattern={pattern: 16})
    stored = tensors_of(SPEC, ("q_proj",))[f"{ROOT}{Q}.lora_B.weight"]
    low_rank = read(path).low_rank
    np.testing.assert_array_equal(low_rank["layers.0.q"].b, stored * np.float32(4))
    one = write_adapter(tmp_path / "b", SPEC, targets=("q_proj",))
    np.testing.assert_array_equal(low_rank["layers.1.q"].b, read(one).low_rank["layers.1.q"].b)


def test_names_may_leave_out_that_they_are_of_a_base_model(tmp_path):
    """Other trainers save the same tensors without what PEFT puts before their names."""
    tensors = tensors_of(SPEC, ("q_proj",))
    plain = {key.removeprefix(ROOT): tensor for key, tensor in tensors.items()}
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj",), tensors=plain)
    whole = write_adapter(tmp_path / "b", SPEC, targets=("q_proj",), tensors=tensors)
    np.testing.assert_array_equal(
        read(path).low_rank["layers.1.q"].b, read(whole).low_rank["layers.1.q"].b
    )


def test_no_adapter_is_not_found(tmp_path):
    """A directory without one is told apart from a bad one."""
    with pytest.raises(NotFound, match="No adapter found"):
        read(tmp_path / "none")


def test_pickles_are_never_loaded(tmp_path):
    """Only safetensors."""
    path = write_adapter(tmp_path / "a", SPEC)
    (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
    with pytest.raises(ConfigError, match="never loaded"):
        read(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type"),
        ({"r": 0}, "r is 0"),
        ({"r": 8}, r"has shape \[4, 32\]; the model asks for \[8, 32\]"),
        ({"lora_alpha": -1}, "lora_alpha"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"target_parameters": ["mlp.experts"]}, "target_parameters"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"modules_to_save": ["q_proj"]}, "modules_to_save names 'q_proj'"),
        ({"modules_to_save": ["lm_head"]}, "no tensors for 'lm_head'"),
        ({"target_modules": ["k_proj"]}, "q_proj is not among target_modules"),
        ({"rank_pattern": {".*": 2}}, "rank_pattern"),
        ({"rank_pattern": {"q_proj": 4.5}}, "rank_pattern is .* whole numbers"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern"),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(tmp_path, config, message):
    """What is not computed is never passed over."""
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj",), **config)
    with pytest.raises(ConfigError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            f"{ROOT}model.layers.9.self_attn.q_proj.lora_A.weight",
            "belongs to no module of the model",
        ),
        (f"{ROOT}model.layers.0.attn.c_attn.lora_A.weight", "belongs to no module of the model"),
        (f"{ROOT}{Q}.lora_magnitude_vector", "belongs to no module of the model"),
        (f"{Q}.lora_A.weight", "duplicate tensor"),
        (f"{ROOT}{Q}.weight", "would replace a module"),
        (f"{ROOT}model.layers.1.mlp.up_proj.lora_A.weight", "has only one of lora_A and lora_B"),
    ],
)
def test_a_tensor_without_a_place_is_refused_by_name(tmp_path, key, message):
    """An adapter of another model changes nothing, and would be taken for one that works."""
    tensors = tensors_of(SPEC, ("q_proj",)) | {key: np.zeros((4, 32), np.float32)}
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj",), tensors=tensors)
    with pytest.raises(ConfigError, match=message):
        read(path)


def test_a_module_that_was_not_named_is_refused(tmp_path):
    """Tensors and configuration must agree."""
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj", "v_proj"))
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(config | {"target_modules": ["q_proj"]}))
    with pytest.raises(ConfigError, match=r"v_proj is not among target_modules"):
        read(path)


def test_an_adapter_of_nothing_is_refused(tmp_path):
    """It would answer as the model does."""
    path = write_adapter(tmp_path / "a", SPEC, tensors={}, targets=())
    with pytest.raises(ConfigError, match="changes no module"):
        read(path)


def test_a_rank_beyond_the_limit_is_refused(tmp_path):
    """With the flag that would allow it."""
    path = write_adapter(tmp_path / "a", SPEC, rank=17)
    with pytest.raises(ConfigError, match=r"rank is 17 .*--max-lora-rank is 16"):
        read(path)
    assert read(path, max_rank=17)


@pytest.mark.parametrize(
    "config",
    [
        {"lora_alpha": 1e300},
        {"lora_alpha": 8, "alpha_pattern": {"q_proj": 1e30}},
        {"lora_alpha": 1e6},
    ],
    ids=["alpha", "pattern", "product"],
)
def test_a_scale_that_gives_no_numbers_is_refused(tmp_path, config):
    """By its key where it is beyond any, else by the tensor that it takes beyond float32."""
    tensors = tensors_of(SPEC, ("q_proj",))
    tensors[f"{ROOT}{Q}.lora_B.weight"][0, 0] = 1e35
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj",), tensors=tensors, **config)
    with pytest.raises(ConfigError, match=r"1e-06 to 1e\+06|beyond float32 once it is scaled"):
        read(path)


def test_numbers_that_are_none_are_refused(tmp_path):
    """They would spread to every answer."""
    tensors = tensors_of(SPEC, ("q_proj",))
    tensors[f"{ROOT}{Q}.lora_A.weight"][0, 0] = np.nan
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj",), tensors=tensors)
    with pytest.raises(ConfigError, match="NaN"):
        read(path)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8"])
def test_numbers_that_are_no_floats_are_refused(tmp_path, dtype):
    """Nothing says what they stand for, and bits of float8 are no whole numbers."""
    whole = {key: value.astype(np.uint8) for key, value in tensors_of(SPEC, ("q_proj",)).items()}
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj",), tensors=whole)
    file = path / "adapter_model.safetensors"
    length = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    header, numbers = file.read_bytes()[8:length], file.read_bytes()[length:]
    header = header.rstrip().replace(b'"U8"', f'"{dtype}"'.encode())
    header += b" " * (-len(header) % 8)
    file.write_bytes(len(header).to_bytes(8, "little") + header + numbers)
    with pytest.raises(ConfigError, match="must be one of float32, bfloat16, float16"):
        read(path)


@pytest.mark.parametrize(
    ("target", "name"), [("embed_tokens", "embed"), ("lm_head", "head")], ids="-".join
)
def test_one_matrix_in_two_places_is_adapted_in_one(tmp_path, target, name):
    """Where head and embedding are tied, what was trained of one leaves the other as it is."""
    path = write_adapter(tmp_path / "a", TIED.spec, targets=(target,))
    assert set(read(path, targets=TIED_TARGETS).low_rank) == {name}


def test_what_was_trained_together_is_on_both(tmp_path):
    """With `ensure_weight_tying` PEFT names one of the two and saves both."""
    both = ("embed_tokens", "lm_head")
    flags = {"ensure_weight_tying": True, "target_modules": ["embed_tokens"]}
    path = write_adapter(tmp_path / "a", TIED.spec, targets=both, **flags)
    assert set(read(path, targets=TIED_TARGETS).low_rank) == {"embed", "head"}
    path = write_adapter(tmp_path / "b", TIED.spec, targets=both[:1], **flags)
    with pytest.raises(
        ConfigError, match="ensure_weight_tying is set, but embed_tokens and lm_head"
    ):
        read(path, targets=TIED_TARGETS)


def test_tying_means_nothing_where_nothing_is_tied(tmp_path):
    """PEFT says so and goes on; a head that was not named is still refused."""
    flags = {"ensure_weight_tying": True, "target_modules": ["embed_tokens"]}
    path = write_adapter(tmp_path / "a", SPEC, targets=("embed_tokens",), **flags)
    assert set(read(path).low_rank) == {"embed"}
    path = write_adapter(tmp_path / "b", SPEC, targets=("embed_tokens", "lm_head"), **flags)
    with pytest.raises(ConfigError, match="lm_head is not among target_modules"):
        read(path)


def test_a_file_that_is_replaced_does_not_change_what_was_read(tmp_path):
    """The numbers are copied: the directory is the user's to write."""
    path = write_adapter(tmp_path / "a", SPEC, targets=("q_proj",))
    adapter = read(path)
    before = adapter.low_rank["layers.0.q"].a.copy()
    zeros = {key: value * 0 for key, value in tensors_of(SPEC, ("q_proj",)).items()}
    with (path / "adapter_model.safetensors").open("r+b") as file:
        save_file(zeros, tmp_path / "zeros")
        file.write((tmp_path / "zeros").read_bytes())
    np.testing.assert_array_equal(adapter.low_rank["layers.0.q"].a, before)


def test_whole_paths_name_modules_too(tmp_path):
    """As PEFT writes them for some layers only."""
    names = tuple(modules_of(SPEC, ("q_proj",)))
    path = write_adapter(tmp_path / "a", SPEC, targets=names, tensors=tensors_of(SPEC, ("q_proj",)))
    assert set(read(path).low_rank) == {"layers.0.q", "layers.1.q"}
