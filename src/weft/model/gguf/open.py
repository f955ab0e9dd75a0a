"""Opens a GGUF file, or its parts, as a `Checkpoint`: the metadata becomes the config of a known family."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.core.config.file_overrides import FileOverrides
from weft.core.errors import ConfigError
from weft.model.card import ModelCard
from weft.model.families.decoders import read_config, read_spec
from weft.model.families.mtp import has_mtp, mtp_names, mtp_spec
from weft.model.families.names import DecoderNames
from weft.model.fields import shown
from weft.model.files.checkpoint import Checkpoint
from weft.model.files.directory import describe, read_part
from weft.model.files.layout import decoder_layout, shared_keys
from weft.model.files.match import read_floats
from weft.model.files.safetensors_files import MappedFiles
from weft.model.files.tensor_plan import HeadRows, TensorPlan
from weft.model.gguf.architecture import NUM_GUESSING_LAYERS, Architecture
from weft.model.gguf.architectures import find_architecture
from weft.model.gguf.checked_tensors import find_tensor
from weft.model.gguf.family_config import (
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    make_config,
)
from weft.model.gguf.head_order import check_columns, delta_columns, delta_orders
from weft.model.gguf.header import GgufTensor, read_header
from weft.model.gguf.matrices import JoinedHeads, Order, read_tensor
from weft.model.gguf.names import HEAD, NEGATIVE_DECAYS, with_joined_heads
from weft.model.gguf.projector_file import (
    FLAG,
    NONE,
    ProjectorFile,
    TextFile,
    TowerSource,
    add_tower,
    find_beside,
    fits,
    open_projector,
)
from weft.model.gguf.sampling import sampling_file
from weft.model.gguf.vocabulary import Vocabulary, make_files, read_vocabulary
from weft.model.groups import GroupFormat
from weft.model.overrides import GENERATION, read_generation
from weft.model.spec import ModelSpec
from weft.model.tokenizers.tokenizer import TOKENIZER, read_tokenizer_files
from weft.model.tokenizers.tokenizer_trial import try_out
from weft.model.weights import Tensor, Values, Weights, refuse_values

SUFFIX = ".gguf"
_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")
_MAX_PARTS = 1000
_FACTORS = (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS)
_KEYS, _VALUES = ".keys", ".values"  # name endings of the two parts of `kv_b`
_WIDENED = "bfloat16"  # default type that blocks are widened to


class _LazyFiles(Mapping[str, bytes]):
    """The tokenizer's files, made at the first access: most engines never need them."""

    def __init__(self, make: Callable[[], Mapping[str, bytes]]) -> None:
        self._make = cache(make)

    def __getitem__(self, name: str) -> bytes:
        return self._make()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(self._make())


@dataclass(frozen=True)
class _Source:
    """The tensors of a layout by their names in the file, with the order of their rows."""

    layout: tuple[TensorPlan, ...]
    tensors: Mapping[str, GgufTensor]
    orders: Mapping[str, Order]
    columns: Mapping[str, Order]
    tower: TowerSource | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that contain the tensors, each file once."""
        of_tower = {} if self.tower is None else self.tower.tensors
        stored = (*self.tensors.values(), *of_tower.values())
        return tuple(sorted({tensor.path for tensor in stored}))

    @cached_property
    def groups(self) -> dict[str, GroupFormat]:
        """Matrices that kernels compute with in their stored format, by Weft's names."""
        forms = {
            plan.name: self.tensors[plan.source].type.form
            for plan in self.layout
            if plan.may_be_grouped
        }
        return {name: form for name, form in forms.items() if form is not None}

    @property
    def served_dtype(self) -> str:
        """Float type of the largest part of the matrices' bytes; for a file with only blocks, the type of their
        floats.
        """
        num_bytes: Counter[str] = Counter()
        for plan in self.layout:
            tensor = self.tensors[plan.source]
            if len(plan.shape) == 2:
                num_bytes[tensor.type.dtype or _WIDENED] += tensor.num_bytes
        return num_bytes.most_common(1)[0][0]

    def load(self, dtype: str | None) -> Weights:
        """Maps every tensor; with `dtype` None float tensors have their stored type."""
        files = MappedFiles()
        loaded: dict[str, Values] = {}
        for plan in self.layout:
            stored, order = self.tensors[plan.source], self.orders.get(plan.source)
            values = read_tensor(
                files,
                stored,
                order,
                dtype,
                widened=dtype or _WIDENED,
                columns=self.columns.get(plan.source),
            )
            # Kept in float32 by all backends, even where the file has blocks.
            if plan.flattened is not None:
                values = Tensor("float32", values.unpacked().float32().reshape(-1))
            loaded[plan.name] = values.rows(plan.start, plan.start + plan.shape[0])
            if stored.name.endswith(f".{NEGATIVE_DECAYS}"):
                loaded[plan.name] = _logarithms(stored, loaded[plan.name].unpacked())
            if plan.name.endswith(_VALUES):
                whole, num_heads = plan.name.removesuffix(_VALUES), plan.stack
                assert num_heads is not None
                parts = (loaded.pop(whole + _KEYS), loaded.pop(plan.name))
                loaded[whole] = JoinedHeads(*parts, num_heads)
        if self.tower is not None:
            loaded |= self.tower.load(dtype, widened=dtype or _WIDENED)
        return Weights(loaded)


def open_gguf(path: Path, *, name: str, dtype: str, overrides: FileOverrides) -> Checkpoint:
    """Reads and checks all of the model except its tokenizer and the values of its weights.

    `path` may be any part of a split file. `overrides.tokenizer` must be a directory, and `overrides.mmproj` a file or
    "none"; without it, a projector file beside the model is used.
    """
    metadata, tensors = _read_parts(path)
    where = str(path)
    kind, architecture = find_architecture(metadata, where)
    values = make_config(
        kind,
        architecture,
        metadata,
        where,
        tensors={name: tensor.shape for name, tensor in tensors.items()},
        rope_factors=_rope_factors(tensors),
    )
    vocabulary = read_vocabulary(metadata, where)
    values["eos_token_id"] = vocabulary.eos_token_ids
    if overrides.hf_overrides:
        values, where = values | overrides.hf_overrides, f"{where} with --hf-overrides"
    config = read_config(values, where)
    architecture = replace(architecture, names=with_joined_heads(architecture.names, tensors))
    # Files have what belongs to a key head of a delta net apart.
    family = replace(config.family, names=architecture.names, is_by_key_head=False)
    config = replace(config, family=family)
    spec = read_spec(config)
    if architecture.adds_norm_offset:
        spec = replace(spec, norm_offset=0.0)
    generation = read_generation({GENERATION: sampling_file(metadata)}, where, overrides)
    ordinary = _without_guesses(tensors, spec, values.get(NUM_GUESSING_LAYERS))
    source = _match(spec, ordinary, path, architecture)
    text = TextFile(path, kind, spec.hidden_size, vocabulary.tokens)
    media = None
    if (projector := _find_projector(text, overrides.mmproj)) is not None:
        config, spec, tower, media = add_tower(config, spec, projector)
        source = replace(source, tower=tower)
    served = source.served_dtype if dtype == "auto" else dtype
    card = replace(describe(name, config, spec, generation, served), media=media)
    files = _tokenizer_files(vocabulary, path, overrides.tokenizer)
    load_dtype = None if dtype == "auto" else dtype
    found = _checkpoint(card, spec, source, load_dtype, files)

    def find_mtp() -> Checkpoint:
        names = mtp_names(architecture.names, tensors, len(spec.layers), str(path))
        own, head = replace(config, family=replace(config.family, names=names)), mtp_spec(spec)
        layout = _layout(head, tensors, names)
        named = {plan.source for plan in layout}
        beside = {name: tensor for name, tensor in tensors.items() if name in named}
        matched = _match(head, beside, path, replace(architecture, names=names))
        own_card = describe(name, own, head, generation, served)
        return _checkpoint(own_card, head, matched, load_dtype, files)

    return replace(
        found,
        read_tokenizer=lambda: read_part(
            dict(files), str(path), config, generation, spec.vocab_size
        ),
        find_mtp=find_mtp if has_mtp(architecture.names, tensors, len(spec.layers)) else None,
    )


def _find_projector(text: TextFile, given: str | None) -> ProjectorFile | None:
    """Returns the projector that the user named, or the first one beside the text model that fits it."""
    if given == NONE:
        return None
    if given is not None:
        return open_projector(Path(given), text, where=f"{FLAG} {given}")
    found = next((path for path in find_beside(text.path) if fits(path, text)), None)
    if found is None:
        return None
    where = f"{found} (beside the model; {FLAG} {NONE} leaves it out)"
    return open_projector(found, text, where=where)


def _checkpoint(
    card: ModelCard,
    spec: ModelSpec,
    source: _Source,
    dtype: str | None,
    files: Mapping[str, bytes],
) -> Checkpoint:
    if source.groups:
        bits = min(form.bits for form in source.groups.values())
        card = replace(card, stored_bits=bits, notice=_notice(source))
    return Checkpoint(
        card,
        spec,
        files,
        lambda: source.load(dtype),
        weight_files=source.files,
        groups=source.groups,
    )


def _tokenizer_files(vocabulary: Vocabulary, path: Path, other: str | None) -> Mapping[str, bytes]:
    """Returns the tokenizer's files, tested in a child process; the files in the directory `other` if it is given."""
    if other is not None:
        return _LazyFiles(lambda: read_tokenizer_files(Path(other)))

    def make() -> Mapping[str, bytes]:
        files = make_files(vocabulary)
        try_out(files[TOKENIZER], f"{path}: its tokenizer")
        return files

    return _LazyFiles(make)


def _read_parts(path: Path) -> tuple[Mapping[str, object], Mapping[str, GgufTensor]]:
    """Returns the metadata of the first part, and the tensors of all parts."""
    paths = all_parts(path)
    first = read_header(paths[0])
    said = first.metadata.get("split.count", 1)
    if said not in (len(paths), 0):
        raise ConfigError(
            f"{paths[0]}: split.count is {shown(said)}; by its name it has {len(paths)} parts"
        )
    tensors = dict(first.tensors)
    for part in paths[1:]:
        for name, tensor in read_header(part).tensors.items():
            if name in tensors:
                raise ConfigError(
                    f"{part}: tensor {shown(name)} is also in {tensors[name].path.name}"
                )
            tensors[name] = tensor
    # The converter leaves the suffix of this norm out for Falcon-H1.
    named = {f"{n}.weight" if n.endswith(".ffn_norm") else n: t for n, t in tensors.items()}
    return first.metadata, named


def all_parts(path: Path) -> list[Path]:
    """Returns all parts of a split file, from the name of one of them."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return [path]
    stem, count = found.groups()
    if not 0 < int(count) <= _MAX_PARTS:
        raise ConfigError(f"{path}: is one of {int(count)} parts; 1 to {_MAX_PARTS} are read")
    names = (f"{stem}-{number:05}-of-{count}{SUFFIX}" for number in range(1, int(count) + 1))
    return [path.with_name(name) for name in names]


def _logarithms(stored: GgufTensor, decays: Tensor) -> Tensor:
    """Returns the logarithms of the decays of states, which the file has as negative numbers."""
    values = -decays.float32()
    if not (values > 0).all():
        raise ConfigError(f"{stored.path}: tensor {stored.name} must have negative numbers only")
    return Tensor("float32", np.log(values))


def _rope_factors(tensors: Mapping[str, GgufTensor]) -> dict[str, NDArray[np.float32]]:
    return {name: _read_row(tensors[name]) for name in _FACTORS if name in tensors}


def _read_row(stored: GgufTensor) -> NDArray[np.float32]:
    if stored.type.dtype != "float32" or len(stored.shape) != 1:
        raise ConfigError(f"{stored.path}: tensor {stored.name} must be a row of F32")
    row = read_floats(MappedFiles(), stored.name, stored.as_floats, None)
    if not row.is_finite():
        refuse_values(f"{stored.path}: tensor {stored.name}")
    return row.data


def _without_guesses(
    tensors: Mapping[str, GgufTensor], spec: ModelSpec, guessing: object
) -> Mapping[str, GgufTensor]:
    """Returns all tensors except those of the last `guessing` layers, which are for multi-token prediction."""
    last, num_layers = len(spec.layers), guessing if isinstance(guessing, int) else 0
    guesses = {f"blk.{number}" for number in range(last, min(last + num_layers, last + 1024))}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if ".".join(name.split(".", 2)[:2]) not in guesses
    }


def _match(
    spec: ModelSpec, tensors: Mapping[str, GgufTensor], path: Path, architecture: Architecture
) -> _Source:
    """Returns the tensors of the layout; raises `ConfigError` unless the file has exactly these, in their shapes."""
    layout = tuple(_layout(spec, tensors, architecture.names))
    needed: dict[str, GgufTensor] = {}
    for plan in layout:
        needed[plan.source] = find_tensor(plan, tensors, str(path))
    spare = tensors.keys() - {plan.source for plan in layout} - set(_FACTORS)
    spare -= {f"{name}.weight" for name in shared_keys(spec, architecture.names.names)}
    if spare:
        raise ConfigError(
            f"{path}: tensor {shown(min(spare))} has no place in the model that its metadata describes"
        )
    orders = _orders(layout, spec, architecture) | delta_orders(layout, spec, architecture)
    columns = delta_columns(layout, spec, architecture)
    for source, order in columns.items():
        check_columns(needed[source], order)
    return _Source(layout, needed, orders, columns)


def _layout(
    spec: ModelSpec, tensors: Mapping[str, GgufTensor], names: DecoderNames
) -> Iterator[TensorPlan]:
    """Yields the plans of a checkpoint's layout, without the tensors that newer files split in two."""
    for plan in decoder_layout(spec, replace(names, head=HEAD), prefix=""):
        if plan.name.endswith(".kv_b") and plan.source not in tensors:
            assert spec.latent is not None
            keys = (spec.num_heads * spec.latent.rank, spec.latent.key_size)
            values = (spec.num_heads * spec.latent.value_size, spec.latent.rank)
            for part, shape in ((_KEYS, keys), (_VALUES, values)):
                source = plan.source.replace(names.names["kv_b"], names.names[f"kv_b{part}"])
                name = plan.name + part
                yield TensorPlan(name, source, shape, 0, shape[0], stack=spec.num_heads)
        else:
            yield plan


def _orders(
    layout: tuple[TensorPlan, ...], spec: ModelSpec, architecture: Architecture
) -> dict[str, Order]:
    """Returns the order of rows of each tensor that is read in another order than stored."""
    orders: dict[str, Order] = {}
    size = spec.head_dim
    for plan in layout:
        heads, name = plan.heads, plan.name.removesuffix(".bias").rpartition(".")[2]
        if architecture.is_interleaved and name in ("q", "k"):
            heads = HeadRows(plan.shape[0] // size, size, size, turned=size)
        if heads is not None:
            order = orders.setdefault(plan.source, np.arange(plan.rows))
            order[plan.start : plan.start + plan.shape[0]] = heads.index(plan.start)
    return orders


def _notice(source: _Source) -> str:
    kinds = Counter(
        source.tensors[plan.source].type.name
        for plan in source.layout
        if plan.name in source.groups
    )
    return (
        f"The file's {' and '.join(kinds)} weights are computed in their stored format, and other linear layers "
        "in int8; --quantization none dequantizes them."
    )
