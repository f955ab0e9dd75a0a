"""Match the tensors of a checkpoint's files with the names that a family gives them."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from weft.model.families.decoders import ModelConfigFile
from weft.model.families.encoder_families import EncoderConfig
from weft.model.families.tower import TowerRow
from weft.model.fields import Fields
from weft.model.files.layout import decoder_layout, encoder_layout, shared_keys
from weft.model.files.match import Matched, match_tensors
from weft.model.files.safetensors_files import StoredTensor, find_tensors
from weft.model.files.tensor_plan import TensorPlan
from weft.model.files.tower_layout import tower_layout, unused_of
from weft.model.pooling import PoolingSpec
from weft.model.quantized.config import read_quantization
from weft.model.spec import ModelSpec

_NESTED_HEAD = "language_model.lm_head"  # in families with vision, in some of their checkpoints
_NUM_MTP = "num_nextn_predict_layers"
# Tensors that Weft computes from the config, which old versions of transformers saved; and the number below which xIELU
# computes as if its input were that number, which changes results by less than rounding does.
_COMPUTED_SUFFIXES = (".rotary_emb.inv_freq", ".self_attn.rotary_emb.inv_freq", ".act_fn.eps")
# Names of norm weights in the first releases of BERT.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def match_decoder(
    path: Path,
    config: ModelConfigFile,
    spec: ModelSpec,
    pooling: PoolingSpec | None,
    stored: Mapping[str, StoredTensor],
) -> Matched:
    """Returns the tensors that the decoder's runner needs, each with the file that holds it.

    Raises `ConfigError` for a tensor that is missing, has another shape, or belongs to nothing in the layout.
    """
    # Read first: the quantization may explain unusual types in the files.
    quantized = read_quantization(config.fields)
    family = config.family
    # Tensor names of a model that was saved without its head have no prefix.
    known = family.prefixes if spec.has_head else (*family.prefixes, "")
    embed = family.names.names["embed"]
    prefixes = [p for p in known if f"{p}{embed}.weight" in stored]
    names = family.names
    if f"{_NESTED_HEAD}.weight" in stored:
        names = replace(names, head=_NESTED_HEAD)
    layout = decoder_layout(spec, names, prefix=(prefixes or list(known))[0])
    if pooling is not None and pooling.head is not None:
        hidden, labels = spec.hidden_size, len(pooling.head.labels)
        layout += (TensorPlan("head.labels", "score.weight", (labels, hidden), 0, labels),)
    if spec.tower is not None and family.tower is not None:
        layout += tower_layout(spec.tower, family.tower, stored)
    is_headless = spec.tied_head or spec.embed_size is not None or not spec.has_head
    ignored = (
        *family.ignored_tensors,
        *_ignored_of_tower(family.tower, spec),
        *(("lm_head.", f"{_NESTED_HEAD}.") if is_headless else ()),
        *_drafting_layers(config.fields, family.names.names["layer"], len(spec.layers), prefixes),
        *(f"{p}{name}." for p in prefixes for name in shared_keys(spec, family.names.names)),
    )
    return match_tensors(
        path,
        layout,
        stored,
        lambda source: source.startswith(ignored) or source.endswith(_COMPUTED_SUFFIXES),
        quantized=quantized,
    )


def _ignored_of_tower(row: TowerRow | None, spec: ModelSpec) -> tuple[str, ...]:
    """Returns the name prefixes of a tower's unused tensors: all of its tensors if the spec has no tower."""
    if row is None:
        return ()
    return row.leads if spec.tower is None else unused_of(spec.tower, row)


def _drafting_layers(
    fields: Fields, layer: str, num_layers: int, prefixes: Collection[str]
) -> tuple[str, ...]:
    """Returns the name prefixes of layers for multi-token prediction, which follow the last layer and are not used
    here.
    """
    numbers = range(num_layers, num_layers + fields.integer_or(_NUM_MTP, 0, low=0, high=1024))
    return tuple(prefix + layer.format(number) for prefix in prefixes for number in numbers)


def match_encoder(
    path: Path, config: EncoderConfig, spec: ModelSpec, pooling: PoolingSpec
) -> Matched:
    """Returns the tensors that the encoder's runner needs. Raises as `match_decoder`."""
    stored = {_usual(name): tensor for name, tensor in find_tensors(path).items()}
    family = config.family
    layout = encoder_layout(
        config.model_type, family.names, family.prefix, spec, pooling.head, stored.keys()
    )
    return match_tensors(
        path, layout.plans, stored, lambda source: source.startswith(layout.ignored)
    )


def _usual(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
