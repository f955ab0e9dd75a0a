"""Table of projector types: one row for each kind of vision tower that GGUF files have (`--mmproj`).

A row converts the settings of a projector file to those of a family of models with such a tower, as
`weft.model.gguf.family_config` converts the settings of a text model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from weft.core.errors import ConfigError
from weft.model.families.tower import MAX_LAYERS, MAX_WIDTH
from weft.model.fields import Fields
from weft.model.picture_settings import MAX_PIXELS

_LEAD = "clip.vision."
_SIZES = {
    "patch_size": "patch_size",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
}
_QWEN_KEYS = {
    **_SIZES,
    "block_count": "depth",
    "attention.head_count": "num_heads",
    "spatial_merge_size": "spatial_merge_size",
    "window_size": "window_size",
}
_SIGLIP_KEYS = {
    **_SIZES,
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "image_size": "image_size",
}
# Names of a tower's tensors, by Weft's names.
_TOWER = {
    "project.patch.down": "v.patch_embd",
    "positions": "v.position_embd",
    "embed_norm": "v.pre_ln",
    "norm": "v.post_ln",
    "layer": "v.blk.{}.",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_out",
    "attention_norm_before": "ln1",
    "mlp_norm_before": "ln2",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_QWEN_NAMES = {
    **_TOWER,
    "project.merger.norm": "v.post_ln",
    "project.merger.up": "mm.0",
    "project.merger.down": "mm.2",
    "project.deep.norm": "v.deepstack.{}.norm",
    "project.deep.up": "v.deepstack.{}.fc1",
    "project.deep.down": "v.deepstack.{}.fc2",
}
_MLP_NAMES = {
    **_TOWER,
    "project.merger.norm": "mm.input_norm",
    "project.merger.up": "mm.1",
    "project.merger.down": "mm.2",
}
_QWEN_TOKENS = {
    "image_token_id": ("<|image_pad|>",),
    "vision_start_token_id": ("<|vision_start|>",),
    "vision_end_token_id": ("<|vision_end|>",),
}
_QWEN_VIDEO = "<|video_pad|>"
Shapes = Mapping[str, tuple[int, ...]]
Config = dict[str, object]


@dataclass(frozen=True, slots=True)
class ProjectorSettings:
    """The metadata of a projector file, and the shapes of its tensors by name."""

    fields: Fields
    shapes: Shapes

    def integer(self, key: str, default: int | None = None, *, high: int = MAX_WIDTH) -> int:
        """Returns a setting of the tower; `default` if the file does not have it."""
        if default is None:
            return self.fields.integer(_LEAD + key, high=high)
        return self.fields.integer_or(_LEAD + key, default, high=high)

    def renamed(self, keys: Mapping[str, str]) -> Config:
        """Returns the values of `keys` under other names, without those that the file does not have."""
        values = self.fields.values
        return {
            theirs: values[_LEAD + key] for key, theirs in keys.items() if _LEAD + key in values
        }

    def activation(self, gelu: str) -> str:
        """Returns the activation of the MLPs; `gelu` is the family's kind of GELU."""
        if self.fields.flag_or("clip.use_silu", False):
            return "silu"
        return gelu if self.fields.flag_or("clip.use_gelu", False) else "quick_gelu"

    def num_rows(self, tensor: str) -> int:
        """Returns the number of rows of a tensor."""
        if tensor not in self.shapes:
            raise ConfigError(f"{self.fields.where}: tensor {tensor} is missing")
        return self.shapes[tensor][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorRow:
    """A projector type.

    `family` is the family whose tower the file has, and `architectures` are the GGUF architectures of its text models.
    `read` returns the family's whole config without the text model, and `read_pictures` its preprocessor_config.json.
    `names` are those of the tensors. `tokens` maps keys of the config to the possible texts of the token that they
    name, and `video_token` is the text of the token for videos, which a text model may lack. `reads` are settings of
    the file that the row reads besides those of all rows. `is_interleaved`: elements that are rotated together are
    adjacent rows of queries and keys. `unused` are tensors that are not read.
    """

    family: str
    architectures: tuple[str, ...]
    read: Callable[[ProjectorSettings], Config]
    read_pictures: Callable[[ProjectorSettings], Config]
    names: Mapping[str, str]
    tokens: Mapping[str, tuple[str, ...]]
    video_token: str | None = None
    reads: tuple[str, ...] = ()
    is_interleaved: bool = False
    unused: frozenset[str] = frozenset()


def _read_qwen2(file: ProjectorSettings) -> Config:
    width, inner = file.integer("embedding_length"), file.integer("feed_forward_length")
    if inner % width:
        file.fields.refuse(f"{_LEAD}feed_forward_length", f"a multiple of {width}")
    return {
        "vision_config": {
            **file.renamed(_QWEN_KEYS),
            "embed_dim": width,
            "mlp_ratio": inner // width,
            "hidden_size": file.integer("projection_dim"),
            "temporal_patch_size": _num_frames(file),
            "hidden_act": file.activation("gelu"),
        }
    }


def _read_qwen2_5(file: ProjectorSettings) -> Config:
    depth, distance = file.integer("block_count", high=MAX_LAYERS), file.integer("n_wa_pattern")
    return {
        "vision_config": {
            **file.renamed(_QWEN_KEYS),
            "out_hidden_size": file.integer("projection_dim"),
            "temporal_patch_size": _num_frames(file),
            "hidden_act": file.activation("gelu"),
            "fullatt_block_indexes": list(range(distance - 1, depth, distance)),
            "tokens_per_second": 2,
        }
    }


def _read_qwen3(file: ProjectorSettings) -> Config:
    deep = file.fields.values.get(f"{_LEAD}is_deepstack_layers", [])
    if not isinstance(deep, list) or any(type(one) is not bool for one in deep):
        file.fields.refuse(f"{_LEAD}is_deepstack_layers", "a list of booleans")
    return {
        "vision_config": {
            **file.renamed(_QWEN_KEYS),
            "out_hidden_size": file.integer("projection_dim"),
            "temporal_patch_size": _num_frames(file),
            "hidden_act": file.activation("gelu_pytorch_tanh"),
            "num_position_embeddings": file.num_rows("v.position_embd.weight"),
            "deepstack_visual_indexes": [index for index, is_deep in enumerate(deep) if is_deep],
        }
    }


def _num_frames(file: ProjectorSettings) -> int:
    """Returns the number of frames of a patch: files have a tensor for each."""
    return sum(name.startswith("v.patch_embd.weight") for name in file.shapes)


def _read_gemma3(file: ProjectorSettings) -> Config:
    side = file.integer("image_size") // file.integer("patch_size")
    return {
        "mm_tokens_per_image": (side // file.integer("projector.scale_factor", 4)) ** 2,
        "vision_config": _siglip(file),
    }


def _read_idefics3(file: ProjectorSettings) -> Config:
    return {
        "scale_factor": file.integer("projector.scale_factor"),
        "vision_config": _siglip(file),
    }


def _read_lfm2(file: ProjectorSettings) -> Config:
    return {
        "downsample_factor": file.integer("projector.scale_factor", 2),
        "projector_hidden_size": file.num_rows("mm.1.weight"),
        "projector_use_layernorm": "mm.input_norm.weight" in file.shapes,
        "projector_bias": "mm.1.bias" in file.shapes,
        "vision_config": {
            **_siglip(file),
            "num_patches": file.num_rows("v.position_embd.weight"),
        },
    }


def _siglip(file: ProjectorSettings) -> Config:
    return {**file.renamed(_SIGLIP_KEYS), "hidden_act": file.activation("gelu_pytorch_tanh")}


def _read_pixtral(file: ProjectorSettings) -> Config:
    if file.integer("spatial_merge_size", 1) != 1:
        file.fields.refuse(f"{_LEAD}spatial_merge_size", "1, or left out, for this projector")
    return {
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "multimodal_projector_bias": "mm.1.bias" in file.shapes,
        "vision_config": {
            **file.renamed(_SIGLIP_KEYS),
            "model_type": "pixtral",
            "hidden_act": file.activation("gelu"),
        },
    }


def _qwen_pictures(least: int, most: int) -> Callable[[ProjectorSettings], Config]:
    """Returns a reader with these limits of pixels, which files seldom have."""

    def read(file: ProjectorSettings) -> Config:
        return {
            **_pictures("Qwen2VLImageProcessor", file),
            "min_pixels": file.integer("image_min_pixels", least, high=MAX_PIXELS),
            "max_pixels": file.integer("image_max_pixels", most, high=MAX_PIXELS),
        }

    return read


def _gemma3_pictures(file: ProjectorSettings) -> Config:
    side = file.integer("image_size")
    return {
        **_pictures("Gemma3ImageProcessor", file),
        "size": {"height": side, "width": side},
    }


def _idefics3_pictures(file: ProjectorSettings) -> Config:
    """Files without the size of a picture are of models whose pictures have four tiles a side."""
    side = file.integer("image_size")
    return {
        **_pictures("Idefics3ImageProcessor", file),
        "max_image_size": {"longest_edge": side},
        "size": {"longest_edge": file.integer("preproc_image_size", 4 * side)},
    }


def _lfm2_pictures(file: ProjectorSettings) -> Config:
    return _pictures("Lfm2VlImageProcessor", file)


def _pixtral_pictures(file: ProjectorSettings) -> Config:
    return {
        **_pictures("PixtralImageProcessor", file),
        "size": {"longest_edge": file.integer("image_size")},
    }


def _pictures(kind: str, file: ProjectorSettings) -> Config:
    channels = file.renamed({"image_mean": "image_mean", "image_std": "image_std"})
    return {"image_processor_type": kind, **channels}


PROJECTORS: Mapping[str, ProjectorRow] = MappingProxyType(
    {
        "qwen2vl_merger": ProjectorRow(
            family="qwen2_vl",
            architectures=("qwen2vl",),
            read=_read_qwen2,
            read_pictures=_qwen_pictures(56 * 56, 16384 * 28 * 28),
            names=_QWEN_NAMES,
            tokens=_QWEN_TOKENS,
            video_token=_QWEN_VIDEO,
            reads=("spatial_merge_size", "image_min_pixels", "image_max_pixels"),
        ),
        "qwen2.5vl_merger": ProjectorRow(
            family="qwen2_5_vl",
            architectures=("qwen2vl",),
            read=_read_qwen2_5,
            read_pictures=_qwen_pictures(56 * 56, 16384 * 28 * 28),
            names=_QWEN_NAMES,
            tokens=_QWEN_TOKENS,
            video_token=_QWEN_VIDEO,
            reads=(
                *("n_wa_pattern", "window_size", "spatial_merge_size"),
                *("image_min_pixels", "image_max_pixels"),
            ),
        ),
        "qwen3vl_merger": ProjectorRow(
            family="qwen3_vl",
            architectures=("qwen3vl",),
            read=_read_qwen3,
            read_pictures=_qwen_pictures(256 * 256, 4096 * 4096),
            names=_QWEN_NAMES,
            tokens=_QWEN_TOKENS,
            video_token=_QWEN_VIDEO,
            reads=(
                *("is_deepstack_layers", "spatial_merge_size"),
                *("image_min_pixels", "image_max_pixels"),
            ),
        ),
        "gemma3": ProjectorRow(
            family="gemma3",
            architectures=("gemma3",),
            read=_read_gemma3,
            read_pictures=_gemma3_pictures,
            names={
                **_TOWER,
                "project.merger.norm": "mm.soft_emb_norm",
                "project.merger.down": "mm.input_projection.weight",
            },
            tokens={
                # Text models that were converted without it have a token that nothing else uses.
                "image_token_id": ("<image_soft_token>", "<unused0>"),
                "boi_token_id": ("<start_of_image>",),
                "eoi_token_id": ("<end_of_image>",),
            },
            reads=("projector.scale_factor",),
        ),
        "idefics3": ProjectorRow(
            family="smolvlm",
            architectures=("llama",),
            read=_read_idefics3,
            read_pictures=_idefics3_pictures,
            names={**_TOWER, "project.merger.down": "mm.model.fc"},
            tokens={"image_token_id": ("<image>",)},
            reads=("projector.scale_factor", "preproc_image_size"),
        ),
        "lfm2": ProjectorRow(
            family="lfm2_vl",
            architectures=("lfm2",),
            read=_read_lfm2,
            read_pictures=_lfm2_pictures,
            names=_MLP_NAMES,
            tokens={"image_token_id": ("<image>",)},
            reads=("projector.scale_factor",),
        ),
        "pixtral": ProjectorRow(
            family="llava",
            architectures=("llama",),
            read=_read_pixtral,
            read_pictures=_pixtral_pictures,
            names=_MLP_NAMES,
            tokens={"image_token_id": ("[IMG]",)},
            reads=("spatial_merge_size",),
            is_interleaved=True,
            unused=frozenset({"v.token_embd.img_break"}),
        ),
    }
)
# Settings of all projector files.
COMMON_SETTINGS = (
    *("clip.projector_type", "clip.vision.projector_type"),
    *("clip.has_vision_encoder", "clip.use_gelu", "clip.use_silu"),
    *(_LEAD + key for key in ("projection_dim", "image_mean", "image_std", "image_size")),
    *(_LEAD + key for key in _SIGLIP_KEYS),
)


def own_settings(row: ProjectorRow) -> frozenset[str]:
    """Returns the names of all settings that the row reads."""
    return frozenset((*COMMON_SETTINGS, *(_LEAD + key for key in row.reads)))
