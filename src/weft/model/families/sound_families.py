"""Family rows of models that hear, of several lineages: Whisper, and text models with an encoder of its kind."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.core.values.pictures import rows_of_chunk
from weft.model.families.encoder_families import read_activation
from weft.model.families.family import Family
from weft.model.families.lineages.llama import LLAMA_FAMILIES
from weft.model.families.lineages.qwen import QWEN_FAMILIES
from weft.model.families.names import WHISPER
from weft.model.families.tower import TowerRow, read_heads, read_num_layers, read_width
from weft.model.fields import Fields
from weft.model.switches import Norm
from weft.model.towers.spec import CHUNK_COLUMNS, Projector, TowerSpec

_EPS = 1e-5
_ENCODER: Mapping[str, object] = {
    "activation_function": "gelu",
    "d_model": 1280,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "encoder_layers": 32,
    "max_source_positions": 1500,
    "num_mel_bins": 128,
}
_QWEN3: Mapping[str, object] = {
    "d_model": 1024,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "encoder_layers": 24,
    "n_window": 50,
    "n_window_infer": 800,
    "output_dim": 3584,
    "downsample_hidden_size": 480,
}
# Voxtral's names of keys, with Whisper's.
_VOXTRAL_KEYS = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "num_hidden_layers": "encoder_layers",
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
_NAMES = {
    "project.patch.down": "@conv1",
    "project.half.down": "@conv2",
    "positions": "@embed_positions",
    "layer": "@layers.{}.",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.out_proj",
    "attention_norm_before": "self_attn_layer_norm",
    "mlp_norm_before": "final_layer_norm",
    "up": "fc1",
    "down": "fc2",
}


def _read_sounds(fields: Fields) -> TowerSpec:
    """Returns an encoder with Whisper's keys, each row of which goes to the decoder as it is."""
    hidden = read_width(fields, "d_model")
    return TowerSpec(
        patch_size=1,
        num_channels=fields.integer("num_mel_bins", high=1024),
        hidden_size=hidden,
        intermediate_size=read_width(fields, "encoder_ffn_dim"),
        num_layers=read_num_layers(fields, "encoder_layers"),
        num_heads=read_heads(fields, "encoder_attention_heads", hidden, unit=1),
        norm_eps=_EPS,
        activation=read_activation(fields, "activation_function"),
        has_last_norm=True,
        num_positions=fields.integer("max_source_positions", high=2**16),
        has_conv_stem=True,
        merge=1,
        projector=Projector.SHUFFLE,
        output_size=hidden,
    )


def _read_qwen2(top: Fields, audio: Fields, hidden_size: int) -> TowerSpec:
    key = "audio_token_index" if top.has("audio_token_index") else "audio_token_id"
    return replace(
        _read_sounds(Fields({**_ENCODER, **audio.values}, audio.where)),
        has_short_sounds=True,
        has_last_norm=False,
        merge=2,
        projector=Projector.POOL,
        pool_norm=Norm.LAYER,
        projector_eps=_EPS,
        output_size=hidden_size,
        image_token_id=top.integer_or(key, 151646, low=0),
    )


def _read_voxtral(top: Fields, audio: Fields, hidden_size: int) -> TowerSpec:
    given = {_VOXTRAL_KEYS.get(key, key): value for key, value in audio.values.items()}
    spec = _read_sounds(Fields({**_ENCODER, **given}, audio.where))
    merge, rest = divmod(spec.intermediate_size, spec.hidden_size)
    if rest or not merge or spec.num_positions % merge:
        audio.refuse(
            "intermediate_size",
            f"hidden_size ({spec.hidden_size}) times a divisor of max_source_positions ({spec.num_positions})",
        )
    top = Fields({"projector_hidden_act": "gelu", **top.values}, top.where)
    return replace(
        spec,
        merge=merge,
        projector=Projector.MLP,
        projector_inner=hidden_size,
        projector_activation=read_activation(top, "projector_hidden_act"),
        has_projector_norm=False,
        has_projector_bias=False,
        output_size=hidden_size,
        image_token_id=top.integer_or("audio_token_id", 24, low=0),
    )


def _read_qwen3(top: Fields, audio: Fields, hidden_size: int) -> TowerSpec:
    fields = Fields({**_ENCODER, **_QWEN3, **audio.values}, audio.where)
    if fields.integer("n_window") != CHUNK_COLUMNS // 2:
        fields.refuse("n_window", f"{CHUNK_COLUMNS // 2}")
    num_chunks, rest = divmod(fields.integer("n_window_infer", high=2**20), CHUNK_COLUMNS)
    if rest or not num_chunks:
        fields.refuse("n_window_infer", f"a multiple of {CHUNK_COLUMNS}")
    if read_width(fields, "output_dim") != hidden_size:
        fields.refuse("output_dim", f"hidden_size of the text model ({hidden_size})")
    if read_width(fields, "d_model") % 2:
        fields.refuse("d_model", "an even number")
    spec = _read_sounds(Fields({**fields.values, "max_source_positions": 1}, audio.where))
    return replace(
        spec,
        num_positions=0,
        stem_channels=read_width(fields, "downsample_hidden_size"),
        window=num_chunks * rows_of_chunk(CHUNK_COLUMNS),
        projector=Projector.MLP,
        projector_inner=spec.hidden_size,
        projector_activation=spec.activation,
        has_projector_norm=False,
        output_size=hidden_size,
        image_token_id=top.integer_or("audio_token_id", 151676, low=0),
    )


def _read_whisper(top: Fields, _: Fields, hidden_size: int) -> TowerSpec:
    fields = Fields({**_WHISPER, **top.values, "d_model": hidden_size}, top.where)
    return replace(
        _read_sounds(fields),
        projector=Projector.CROSS,
        num_cross_layers=read_num_layers(fields, "decoder_layers"),
    )


_WHISPER_TOWER = TowerRow(
    read=_read_whisper,
    section=None,
    names={
        **_NAMES,
        "norm": "@layer_norm",
        "project.keys.down": "decoder.layers.{}.encoder_attn.k_proj",
        "project.values.down": "decoder.layers.{}.encoder_attn.v_proj",
    },
    towers=("encoder.",),
    unbiased=frozenset({"k", "project.keys.down"}),
)
_QWEN2_TOWER = TowerRow(
    read=_read_qwen2,
    section="audio_config",
    names={
        **_NAMES,
        "project.merger.norm": "@layer_norm",
        "project.merger.down": "multi_modal_projector.linear",
    },
    towers=("audio_tower.",),
    others=("multi_modal_projector.",),
    unbiased=frozenset({"k"}),
)
_VOXTRAL_TOWER = replace(
    _QWEN2_TOWER,
    read=_read_voxtral,
    names={
        **_NAMES,
        "norm": "@layer_norm",
        "project.merger.up": "multi_modal_projector.linear_1",
        "project.merger.down": "multi_modal_projector.linear_2",
    },
)
_QWEN3_TOWER = replace(
    _QWEN2_TOWER,
    read=_read_qwen3,
    names={
        **_NAMES,
        "project.patch.down": "@conv2d1",
        "project.half.down": "@conv2d2",
        "project.quarter.down": "@conv2d3",
        "project.stem.down": "@conv_out",
        "norm": "@ln_post",
        "project.merger.up": "multi_modal_projector.linear_1",
        "project.merger.down": "multi_modal_projector.linear_2",
    },
    unbiased=frozenset({"project.stem.down"}),
)
_PREFIXES = ("language_model.model.", "model.language_model.")

SOUND_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "whisper": Family(
            architecture="WhisperForConditionalGeneration",
            defaults={
                **{_WHISPER_KEYS[key]: _WHISPER[key] for key in _WHISPER_KEYS},
                "vocab_size": _WHISPER["vocab_size"],
                "layer_norm_eps": _EPS,
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
        "qwen2_audio": replace(
            QWEN_FAMILIES["qwen2"],
            architecture="Qwen2AudioForConditionalGeneration",
            prefixes=_PREFIXES,
            text_types=("qwen2",),
            tower=_QWEN2_TOWER,
        ),
        "qwen3_asr": replace(
            QWEN_FAMILIES["qwen3"],
            architecture="Qwen3ASRForConditionalGeneration",
            defaults={
                **QWEN_FAMILIES["qwen3"].defaults,
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "max_position_embeddings": 65536,
                "tie_word_embeddings": True,
            },
            prefixes=("model.language_model.", "model."),
            text_types=("qwen3",),
            tower=_QWEN3_TOWER,
        ),
        "voxtral": replace(
            LLAMA_FAMILIES["llama"],
            architecture="VoxtralForConditionalGeneration",
            defaults={
                **LLAMA_FAMILIES["llama"].defaults,
                "vocab_size": 131072,
                "hidden_size": 3072,
                "intermediate_size": 8192,
                "num_hidden_layers": 30,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "max_position_embeddings": 131072,
                "rms_norm_eps": 1e-5,
                "rope_theta": 100_000_000.0,
                "head_dim": 128,
            },
            prefixes=_PREFIXES,
            text_types=("llama",),
            tower=_VOXTRAL_TOWER,
        ),
    }
)
