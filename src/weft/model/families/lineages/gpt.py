"""GPT-2, OPT and Whisper: layer norms, and an MLP without a gate. Whisper has an encoder of sounds, too."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.model.families.encoder_families import GPT2_KEYS
from weft.model.families.family import Family
from weft.model.families.lineages.sounds import SOUND_EPS, SOUND_NAMES, read_sounds
from weft.model.families.names import GPT2, OPT, WHISPER
from weft.model.families.tower import TowerRow, read_num_layers
from weft.model.fields import Fields
from weft.model.switches import Norm
from weft.model.towers.spec import Projector, TowerSpec

_OPT = {
    "hidden_act": "relu",
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "enable_bias": True,
    "tie_word_embeddings": True,
}
_GPT2 = {
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}

_WHISPER: Mapping[str, object] = {
    "activation_function": "gelu",
    "d_model": 384,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "encoder_layers": 4,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "num_mel_bins": 80,
    "vocab_size": 51865,
}
_WHISPER_KEYS = {
    "activation_function": "hidden_act",
    "d_model": "hidden_size",
    "decoder_attention_heads": "num_attention_heads",
    "decoder_ffn_dim": "intermediate_size",
    "decoder_layers": "num_hidden_layers",
    "max_target_positions": "max_position_embeddings",
}


def _read_whisper(top: Fields, _: Fields, hidden_size: int) -> TowerSpec:
    fields = Fields({**_WHISPER, **top.values, "d_model": hidden_size}, top.where)
    return replace(
        read_sounds(fields),
        projector=Projector.CROSS,
        num_cross_layers=read_num_layers(fields, "decoder_layers"),
    )


_WHISPER_TOWER = TowerRow(
    read=_read_whisper,
    section=None,
    names={
        **SOUND_NAMES,
        "norm": "@layer_norm",
        "project.keys.down": "decoder.layers.{}.encoder_attn.k_proj",
        "project.values.down": "decoder.layers.{}.encoder_attn.v_proj",
    },
    towers=("encoder.",),
    unbiased=frozenset({"k", "project.keys.down"}),
)

GPT_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "gpt2": Family(
            architecture="GPT2LMHeadModel",
            defaults=_GPT2,
            aliases=GPT2_KEYS,
            names=GPT2,
            qkv_bias="always",
            o_bias="always",
            mlp_bias="always",
            is_gated=False,
            norm=Norm.LAYER,
            position_offset=0,
            prefixes=("transformer.", ""),
        ),
        "opt": Family(
            architecture="OPTForCausalLM",
            defaults=_OPT,
            aliases={"ffn_dim": "intermediate_size", "activation_function": "hidden_act"},
            names=OPT,
            qkv_bias="enable_bias",
            o_bias="enable_bias",
            mlp_bias="enable_bias",
            is_gated=False,
            norm=Norm.LAYER,
            position_offset=2,
            reads=frozenset({"do_layer_norm_before", "word_embed_proj_dim"}),
            prefixes=("model.decoder.", "decoder."),
        ),
        "whisper": Family(
            architecture="WhisperForConditionalGeneration",
            defaults={
                **{_WHISPER_KEYS[key]: _WHISPER[key] for key in _WHISPER_KEYS},
                "vocab_size": _WHISPER["vocab_size"],
                "layer_norm_eps": SOUND_EPS,
                "tie_word_embeddings": True,
            },
            aliases=_WHISPER_KEYS,
            names=WHISPER,
            qkv_bias="always",
            has_key_bias=False,
            o_bias="always",
            mlp_bias="always",
            is_gated=False,
            norm=Norm.LAYER,
            position_offset=0,
            prefixes=("model.decoder.", "decoder."),
            tower=_WHISPER_TOWER,
            reads=frozenset({"is_encoder_decoder"}),
            ignored_tensors=("proj_out.",),
        ),
    }
)
