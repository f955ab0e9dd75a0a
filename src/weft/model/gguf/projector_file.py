"""Projector files (`--mmproj`): the vision tower of a text model, in a GGUF file of its own."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weft.core.errors import ConfigError
from weft.model.card import ItemCard
from weft.model.families.decoder_families import FAMILIES
from weft.model.families.decoders import ModelConfigFile, with_tower
from weft.model.families.names import joined
from weft.model.fields import Fields, shown
from weft.model.files.safetensors_files import MappedFiles
from weft.model.files.tensor_plan import HeadRows, TensorPlan
from weft.model.files.tower_layout import tower_layout
from weft.model.gguf.architecture import CLIP
from weft.model.gguf.checked_tensors import find_tensor
from weft.model.gguf.header import GgufTensor, read_header
from weft.model.gguf.matrices import JoinedFrames, Transposed, read_tensor
from weft.model.gguf.projectors import PROJECTORS, ProjectorRow, ProjectorSettings, own_settings
from weft.model.picture_settings import make_picture_settings, picture_card, sizes_of
from weft.model.spec import ModelSpec
from weft.model.towers.spec import TowerSpec
from weft.model.weights import Values

FLAG = "--mmproj"
NONE = "none"  # value of the flag for text alone
_JOINED_HEADS = "attn_qkv"
_FRAME = ".frame."
_DEEP = re.compile(r"tower\.project\.deep\.(\d+)\.")
_LAYER = re.compile(r"tower\.layers\.(\d+)\.(.*)")
# Preferred types of weights among several projector files, by a part of the file's name.
_PREFERRED = ("bf16", "f16", "q8_0", "f32")
_NOTHING: tuple[object, ...] = (0, False, [])


@dataclass(frozen=True, slots=True)
class TextFile:
    """The text model for which a projector is opened: its GGUF architecture, its hidden size and its tokens."""

    path: Path
    architecture: str
    hidden_size: int
    tokens: Sequence[str]


@dataclass(frozen=True, slots=True)
class ProjectorFile:
    """An opened projector file: config of its family without the text model, and the tensors of its tower."""

    row: ProjectorRow
    settings: ProjectorSettings
    top: Fields
    tensors: Mapping[str, GgufTensor]
    video_token_id: int | None


@dataclass(frozen=True, slots=True)
class TowerSource:
    """The tensors of a tower by their names in the file; `layout` has a plan for each frame of a patch."""

    layout: tuple[TensorPlan, ...]
    tensors: Mapping[str, GgufTensor]
    num_channels: int

    def load(self, dtype: str | None, *, widened: str) -> dict[str, Values]:
        """Maps every tensor, with Weft's names; `dtype` and `widened` as in `read_tensor`."""
        files = MappedFiles()
        loaded: dict[str, Values] = {}
        frames: list[Values] = []
        for plan in self.layout:
            stored, order = self.tensors[plan.source], plan.index
            values = read_tensor(files, stored, order, dtype, widened=widened)
            name, frame, _ = plan.name.partition(_FRAME)
            if frame:
                frames.append(values)
                loaded[name] = JoinedFrames(tuple(frames), self.num_channels)
            elif plan.is_transposed:
                loaded[name] = Transposed(values)
            else:
                start = 0 if order is not None else plan.start
                loaded[name] = values.rows(start, start + plan.shape[0])
        return loaded


def open_projector(path: Path, text: TextFile, *, where: str) -> ProjectorFile:
    """Reads a projector file; raises `ConfigError` unless it belongs to the text model.

    `where` begins error messages.
    """
    try:
        header = read_header(path)
    except ConfigError as err:
        raise ConfigError(f"{FLAG}: {err}") from err
    fields = Fields(header.metadata, where)
    row = _find_row(fields, text)
    _refuse_others(row, fields)
    size = fields.integer("clip.vision.projection_dim")
    if size != text.hidden_size:
        raise ConfigError(
            f"{where}: clip.vision.projection_dim is {size}, but the hidden size of {text.path} is {text.hidden_size}: "
            "the files belong to different models"
        )
    settings = ProjectorSettings(fields, {name: t.shape for name, t in header.tensors.items()})
    top = Fields({**row.read(settings), **_token_ids(row, text, where)}, where)
    names = () if row.video_token is None else (row.video_token,)
    return ProjectorFile(row, settings, top, header.tensors, _token_id(names, text))


def find_beside(path: Path) -> list[Path]:
    """Returns the projector files in the directory of a text model, the preferred one first."""
    names = [one for one in path.parent.glob("*.gguf") if is_projector(one.name)]
    return sorted(names, key=lambda one: preference(one.name))


def is_projector(name: str) -> bool:
    """True if the name of a GGUF file says that it is a projector, as llama.cpp names them."""
    return "mmproj" in name.rpartition("/")[2].lower()


def preference(name: str) -> tuple[int, str]:
    """Returns a sort key for names of projector files of one model: the preferred type of weights is first."""
    lower = name.lower()
    found = (place for place, kind in enumerate(_PREFERRED) if kind in lower)
    return next(found, len(_PREFERRED)), name


def fits(path: Path, text: TextFile) -> bool:
    """True if a projector file's type and size are those of the text model, which has the tokens for its pictures."""
    try:
        metadata = read_header(path).metadata
    except ConfigError:
        return False
    row = PROJECTORS.get(str(_type_of(metadata)))
    if row is None or text.architecture not in row.architectures:
        return False
    has_size = metadata.get("clip.vision.projection_dim") == text.hidden_size
    return has_size and all(_token_id(names, text) is not None for names in row.tokens.values())


def add_tower(
    config: ModelConfigFile, spec: ModelSpec, projector: ProjectorFile
) -> tuple[ModelConfigFile, ModelSpec, TowerSource, ItemCard]:
    """Returns config and spec of a text model with the tower of a projector file, its tensors, and the facts for
    pictures.
    """
    config = _with_projector(config, projector)
    spec = _with_tower(config, spec, projector)
    return config, spec, _match_tower(config, spec, projector), _read_pictures(spec, projector)


def _with_projector(config: ModelConfigFile, projector: ProjectorFile) -> ModelConfigFile:
    """Returns the config of a text model with the tower of a projector file."""
    row = projector.row
    family = FAMILIES[row.family]
    assert family.tower is not None
    names = dict(row.names)
    if f"v.blk.0.{_JOINED_HEADS}.weight" in projector.tensors:
        names |= joined(_JOINED_HEADS, "q", "k", "v")
    tower = replace(
        family.tower,
        names=names,
        towers=("",),
        others=(),
        prefixes=("",),
        ignored=(),
        has_frames=False,
        has_flat_patches=False,
    )
    own = replace(config.family, tower=tower, sees_items_whole=family.sees_items_whole)
    return replace(config, family=own, top=projector.top)


def _with_tower(config: ModelConfigFile, spec: ModelSpec, projector: ProjectorFile) -> ModelSpec:
    """Returns the spec of a text model with a tower; weights of the projector's norm include the family's offset."""
    spec, fields = with_tower(config, spec), projector.settings.fields
    assert spec.tower is not None
    eps = fields.number("clip.vision.attention.layer_norm_epsilon")
    tower = replace(
        spec.tower,
        norm_eps=eps,
        projector_norm_offset=0.0,
        video_token_id=projector.video_token_id,
    )
    return replace(spec, tower=tower)


def _read_pictures(spec: ModelSpec, projector: ProjectorFile) -> ItemCard:
    """Returns the facts for pictures; settings of a picture processor that the file lacks are the family's."""
    assert spec.tower is not None
    fields = Fields(projector.row.read_pictures(projector.settings), projector.top.where)
    settings = make_picture_settings(fields, sizes_of(spec.tower))
    return picture_card(settings, spec, Fields({}, projector.top.where))


def _match_tower(config: ModelConfigFile, spec: ModelSpec, projector: ProjectorFile) -> TowerSource:
    """Returns the tower's tensors; raises `ConfigError` unless the file has exactly these, in their shapes."""
    tower, row, where = spec.tower, config.family.tower, projector.top.where
    assert tower is not None
    assert row is not None
    swapped = _has_swapped_mlps(projector.tensors, tower)
    plans = (
        _as_stored(plan, tower, projector.row, is_swapped=swapped)
        for plan in tower_layout(tower, row, projector.tensors)
    )
    layout = tuple(part for plan in plans for part in _frames(plan, tower))
    try:
        needed = {plan.source: find_tensor(plan, projector.tensors, where) for plan in layout}
    except ConfigError as err:
        raise err if str(err).startswith(where) else ConfigError(f"{FLAG}: {err}") from err
    spare = projector.tensors.keys() - needed.keys() - projector.row.unused
    if spare:
        raise ConfigError(
            f"{where}: tensor {shown(min(spare))} has no place in the tower that its metadata describes"
        )
    return TowerSource(layout, needed, tower.num_channels)


def _find_row(fields: Fields, text: TextFile) -> ProjectorRow:
    """Returns the row of the file's projector type; raises `ConfigError` unless it is one of the text model."""
    where, name = fields.where, fields.values.get("general.architecture")
    if name != CLIP:
        raise ConfigError(
            f"{where}: general.architecture is {shown(name)}, and {CLIP} in a projector file: is it a text model?"
        )
    takers = sorted(one for row in PROJECTORS.values() for one in row.architectures)
    if text.architecture not in takers:
        raise ConfigError(
            f"{where}: {text.path} takes no pictures: its general.architecture is {text.architecture}, and projectors "
            f"are read for {', '.join(dict.fromkeys(takers))}"
        )
    kind = _type_of(fields.values)
    row = PROJECTORS.get(kind) if isinstance(kind, str) else None
    if row is None:
        raise ConfigError(
            f"{where}: clip.projector_type is {shown(kind)}; implemented are {', '.join(PROJECTORS)}"
        )
    if text.architecture not in row.architectures:
        raise ConfigError(
            f"{where}: its projector {kind} is for text models of architecture {', '.join(row.architectures)}, but "
            f"{text.path} has {text.architecture}: the files belong to different models"
        )
    return row


def _type_of(metadata: Mapping[str, object]) -> object:
    return metadata.get("clip.projector_type") or metadata.get("clip.vision.projector_type")


def _refuse_others(row: ProjectorRow, fields: Fields) -> None:
    """Raises `ConfigError` for settings that the row does not read, unless they have no effect."""
    if not fields.flag_or("clip.has_vision_encoder", True):
        fields.refuse("clip.has_vision_encoder", "true")
    known = own_settings(row)
    for key, value in fields.values.items():
        if key.startswith(f"{CLIP}.") and key not in known and value not in _NOTHING:
            raise ConfigError(
                f"{fields.where}: {shown(key)[1:-1]} is {shown(value)}, which is not implemented"
            )


def _token_ids(row: ProjectorRow, text: TextFile, where: str) -> dict[str, object]:
    """Returns the ids of the tokens that pictures need, under the keys of the family's config."""
    ids: dict[str, object] = {}
    for key, names in row.tokens.items():
        found = _token_id(names, text)
        if found is None:
            raise ConfigError(
                f"{where}: {text.path} has no token {names[0]}, which pictures of this projector need"
            )
        ids[key] = found
    return ids


def _token_id(names: tuple[str, ...], text: TextFile) -> int | None:
    """Returns the id of the first of these tokens that the text model has."""
    found = next((name for name in names if name in text.tokens), None)
    return None if found is None else text.tokens.index(found)


def _has_swapped_mlps(tensors: Mapping[str, GgufTensor], tower: TowerSpec) -> bool:
    """True for old files, in which the matrices `up` and `down` have each other's names."""
    down = tensors.get("v.blk.0.ffn_down.weight")
    sizes = (tower.intermediate_size, tower.hidden_size)
    return down is not None and down.shape == sizes and sizes[0] != sizes[1]


def _as_stored(
    plan: TensorPlan, tower: TowerSpec, row: ProjectorRow, *, is_swapped: bool
) -> TensorPlan:
    """Returns the plan with the name and the order of rows that the file has."""
    deep, layer = _DEEP.match(plan.name), _LAYER.match(plan.name)
    if deep is not None:  # numbered by the layer before the merger
        number = int(deep[1])
        lead, own = "v.deepstack.", tower.deepstack_layers[number]
        return replace(plan, source=plan.source.replace(f"{lead}{number}.", f"{lead}{own}."))
    if layer is None:
        return plan
    part = layer[2].removesuffix(".bias")
    if is_swapped and part in ("up", "down"):
        names = ("ffn_up", "ffn_down") if part == "up" else ("ffn_down", "ffn_up")
        return replace(plan, source=plan.source.replace(*names))
    if row.is_interleaved and part in ("q", "k"):
        size = tower.head_dim
        return replace(plan, heads=HeadRows(tower.num_heads, size, size, turned=size))
    return plan


def _frames(plan: TensorPlan, tower: TowerSpec) -> Iterable[TensorPlan]:
    """Yields a plan for each frame of a patch: the first frame's tensor has the plain name."""
    count = tower.temporal_patch_size
    if plan.folded is None or count == 1:
        yield plan
        return
    for number in range(count):
        ending = f".{number}" if number else ""
        shape = (plan.shape[0], plan.shape[1] // count)
        yield replace(
            plan, name=f"{plan.name}{_FRAME}{number}", source=plan.source + ending, shape=shape
        )
