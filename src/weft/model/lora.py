"""Reads LoRA adapters in PEFT's format: a directory, checked against the model that the adapter changes.

Settings that would change the result and are not implemented are refused by name. An adapter of another model is
refused too: if its tensors were skipped, the model would answer as if it had no adapter. The tensors determine which
modules were trained; as in PEFT, the configuration may name further modules.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError, NotFound
from weft.model.families.decoder_families import FAMILIES
from weft.model.fields import (
    LARGEST_FACTOR,
    Fields,
    is_finite_number,
    read_fields,
    shown,
)
from weft.model.files.layout import decoder_layout
from weft.model.files.safetensors_files import MappedFiles, StoredTensor, read_header
from weft.model.files.tensor_plan import TensorPlan
from weft.model.spec import ModelSpec
from weft.model.weights import DTYPES

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_ROOT = "base_model.model."
_HEAD = "lm_head"
# Endings of tensor names after the module, each with the part of the adapter that the tensor has.
_PARTS = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_embedding_A": "a",
    ".lora_embedding_B": "b",
    ".base_layer.weight": "whole",  # the embedding, which PEFT saves with its adapter
    ".weight": "whole",  # for modules_to_save
}
# Keys that change the result if they are set, and that Weft does not implement.
_REFUSED = (
    "use_dora",
    "lora_bias",
    "fan_in_fan_out",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "layer_replication",
)
# Initializations that leave the base model unchanged; others subtract values from its weights.
_INITS = (True, False, "gaussian", "eva", "orthogonal")

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LowRank:
    """A low-rank addition to one matrix [out, in]: `b` [out, rank] times `a` [rank, in]; `b` includes the scale."""

    a: Float32
    b: Float32


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: additions to matrices, and replacements of whole matrices, by Weft's tensor names."""

    low_rank: Mapping[str, LowRank]
    whole: Mapping[str, Float32]


@dataclass(frozen=True, slots=True)
class AdapterTargets:
    """The matrices of a model that an adapter may change, by module names.

    A head that is tied to the embedding is still a module of its own, as in PEFT: an adapter of one of the two leaves
    the other unchanged.
    """

    prefixes: tuple[str, ...]
    plans: Mapping[str, tuple[TensorPlan, ...]]  # by module name without prefix
    embed: str  # the module of the embedding
    is_tied: bool
    is_transposed: bool  # linear layers are [in, out] in the model's files
    of_experts: frozenset[str] = (
        frozenset()
    )  # modules of experts and routers, which cannot have adapters

    @classmethod
    def of(cls, spec: ModelSpec, model_type: str) -> "AdapterTargets":
        """Returns the matrices that adapters of a decoder may change."""
        names = FAMILIES[model_type].names
        plans: dict[str, tuple[TensorPlan, ...]] = {}
        of_experts: set[str] = set()
        for plan in decoder_layout(replace(spec, tied_head=False), names, prefix=""):
            if plan.takes_adapters:
                module = plan.source.removesuffix(".weight")
                plans[module] = (*plans.get(module, ()), plan)
            elif plan.is_of_experts:
                of_experts.add(plan.source.removesuffix(".weight"))
        return cls(
            FAMILIES[model_type].prefixes,
            plans,
            names.names["embed"],
            spec.tied_head,
            names.is_transposed,
            frozenset(of_experts),
        )

    @property
    def leaves(self) -> str:
        """Names of the modules, for error messages."""
        return ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in self.plans))

    def find(self, path: str) -> str | None:
        """Returns the module that a full path names; None if no module matches."""
        for prefix in self.prefixes:
            if path.startswith(prefix) and path.removeprefix(prefix) in self.plans:
                return path.removeprefix(prefix)
        return _HEAD if path.rpartition(".")[2] == _HEAD and _HEAD in self.plans else None

    def refuse_experts(self, where: str, path: str) -> None:
        """Raises `ConfigError` if the path names an expert or a router."""
        if any(path == f"{p}{module}" for p in self.prefixes for module in self.of_experts):
            raise ConfigError(
                f"{where} is a module of the experts; adapters are supported only on modules "
                f"that every token uses: {self.leaves}"
            )

    def matching(self, target: str) -> set[str]:
        """Returns the modules that `target` names: by the end of a path or, after a `^`, by the whole path."""
        is_whole, name = target.startswith("^"), target.removeprefix("^")
        found = set()
        for module in self.plans:
            paths = [module] if module == _HEAD else [p + module for p in self.prefixes]
            if name in paths or (not is_whole and any(p.endswith("." + name) for p in paths)):
                found.add(module)
        return found


@dataclass(frozen=True, slots=True)
class _Config:
    """The ranks and scales in `adapter_config.json`."""

    path: Path
    fields: Fields
    known: AdapterTargets
    targets: tuple[str, ...] | None  # None: a pattern; the tensors name the modules
    saved: tuple[str, ...]

    @property
    def ties(self) -> bool:
        """True if head and embedding were trained together, as one matrix."""
        return self.fields.flag_or("ensure_weight_tying", False)

    def rank(self, module: str) -> int:
        """Returns the rank of one module's adapter."""
        rank = self._for("rank_pattern", module, self.fields.integer("r"))
        if rank < 1 or rank % 1:
            self.fields.refuse("rank_pattern", "an object from module names to whole numbers")
        return int(rank)

    def scale(self, module: str) -> float:
        """Returns the factor by which the module's product is multiplied."""
        alpha = float(self._for("alpha_pattern", module, self.fields.factor("lora_alpha")))
        rank = self.rank(module)
        return alpha / (math.sqrt(rank) if self.fields.flag_or("use_rslora", False) else rank)

    def _for(self, key: str, module: str, default: float) -> float:
        pattern = self.fields.object(key)
        for name, value in (pattern.values if pattern else {}).items():
            if module in self.known.matching(_plain(self.fields, key, name)):
                if not is_finite_number(value) or not 1 / LARGEST_FACTOR <= value <= LARGEST_FACTOR:
                    self.fields.refuse(
                        key,
                        f"an object from module names to numbers from {1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}",
                    )
                return value
        return default


def read_adapter(path: Path, targets: AdapterTargets, *, max_rank: int) -> Adapter:
    """Returns the adapter in `path`, checked.

    Raises `NotFound` if there is none, and `ConfigError` for other errors.
    """
    if not (path / CONFIG_FILE).is_file():
        raise NotFound(f"No adapter found for {path}: there is no {CONFIG_FILE}")
    config = _read_config(path, targets)
    stored = _read_weights(path)
    found = _sort(path, stored, targets)
    if not found:
        raise ConfigError(
            f"{path}: the adapter changes no module of the model; the model has {targets.leaves}"
        )
    _check_complete(config, found)
    files = MappedFiles()
    low_rank: dict[str, LowRank] = {}
    whole: dict[str, Float32] = {}
    for module, parts in found.items():
        plans = targets.plans[module]
        tensors = {part: _read(files, path, key, stored[key]) for part, key in parts.items()}
        if "whole" in tensors:
            _check_shape(path, parts["whole"], tensors["whole"], plans[0].source_shape)
            whole[plans[0].name] = tensors["whole"]
        if "a" in tensors:
            low_rank.update(_low_rank(config, module, parts, tensors, plans, max_rank))
    return Adapter(low_rank, whole)


def _read_config(path: Path, targets: AdapterTargets) -> _Config:
    fields = read_fields(path / CONFIG_FILE)
    where = fields.where
    if fields.text("peft_type") != "LORA":
        fields.refuse("peft_type", '"LORA"')
    for key in _REFUSED:
        if fields.values.get(key) and not (key == "fan_in_fan_out" and targets.is_transposed):
            raise ConfigError(f"{where}: {key} is {shown(fields.values[key])}; it is not supported")
    if fields.values.get("bias", "none") != "none":
        fields.refuse("bias", '"none": biases cannot be trained')
    if fields.values.get("init_lora_weights", True) not in _INITS:
        fields.refuse(
            "init_lora_weights",
            "true, false, gaussian, eva or orthogonal: others change the base model, and are served "
            "once they were converted to plain LoRA",
        )
    saved = fields.texts("modules_to_save")
    for name in saved:
        if name.rpartition(".")[2] not in (targets.embed, _HEAD):
            raise ConfigError(
                f"{where}: modules_to_save names {shown(name)}; only {targets.embed} and {_HEAD} can be "
                "replaced as a whole"
            )
    is_pattern = isinstance(fields.values.get("target_modules"), str)
    named = None if is_pattern else fields.texts("target_modules")
    return _Config(path, fields, targets, named, saved)


def _plain(fields: Fields, key: str, pattern: str) -> str:
    """Returns a pattern that is a plain name, possibly after a `^`; other patterns are refused.

    So no regular expression of an adapter is ever executed.
    """
    plain = pattern.replace("\\.", ".").removesuffix("$")
    parts = plain.removeprefix("^").split(".")
    if not all(part.isidentifier() or part.isdigit() for part in parts):
        raise ConfigError(
            f"{fields.where}: {key} holds {shown(pattern)}; it must be the name of a module"
        )
    return plain


def _read_weights(path: Path) -> dict[str, StoredTensor]:
    if not (path / WEIGHTS_FILE).is_file():
        raise ConfigError(
            f"{path}: {WEIGHTS_FILE} is missing; pickled adapters (adapter_model.bin) are never loaded"
        )
    return read_header(path / WEIGHTS_FILE)


def _sort(
    path: Path, stored: Mapping[str, StoredTensor], targets: AdapterTargets
) -> dict[str, dict[str, str]]:
    """Returns the tensors' keys, by module and part; raises `ConfigError` for a key that names no module."""
    found: dict[str, dict[str, str]] = {}
    for key in stored:
        suffix = next((suffix for suffix in _PARTS if key.endswith(suffix)), None)
        module = None
        if suffix is not None:
            path_of = key.removeprefix(_ROOT).removesuffix(suffix)
            module = targets.find(path_of)
            targets.refuse_experts(f"{path / WEIGHTS_FILE}: tensor {shown(key)}", path_of)
        if suffix is None or module is None:
            raise ConfigError(
                f"{path / WEIGHTS_FILE}: tensor {shown(key)} belongs to no module of the "
                f"model; the model has {targets.leaves}"
            )
        part = _PARTS[suffix]
        if part == "whole" and module not in (targets.embed, _HEAD):
            raise ConfigError(
                f"{path / WEIGHTS_FILE}: tensor {shown(key)} would replace a module; only {targets.embed} "
                f"and {_HEAD} can be"
            )
        if found.setdefault(module, {}).setdefault(part, key) != key:
            raise ConfigError(f"{path / WEIGHTS_FILE}: duplicate tensor {shown(key)}")
    return found


def _check_complete(config: _Config, found: Mapping[str, Mapping[str, str]]) -> None:
    """Raises `ConfigError` for incomplete adapters, modules that are not named, and replaced modules without a
    tensor.
    """
    targets = config.known
    where = config.path / WEIGHTS_FILE
    for module, parts in found.items():
        if ("a" in parts) != ("b" in parts):
            raise ConfigError(f"{where}: module {module} has only one of lora_A and lora_B")
    for target in config.saved:
        if not any("whole" in found.get(module, {}) for module in targets.matching(target)):
            raise ConfigError(f"{where}: there are no tensors for {shown(target)}")
    named = {
        module
        for target in (*(config.targets or ()), *config.saved)
        for module in targets.matching(target)
    }
    if config.ties and targets.is_tied:
        _check_tied(where, targets.embed, found)
        both = {_HEAD, targets.embed}
        named |= both if named & both else set()
    strangers = [] if config.targets is None else sorted(found.keys() - named)
    if strangers:
        raise ConfigError(f"{where}: module {strangers[0]} is not among target_modules")


def _check_tied(where: Path, embed: str, found: Mapping[str, Mapping[str, str]]) -> None:
    """Raises `ConfigError` unless tied modules have equal tensors: PEFT trains them together, and saves them twice."""
    if set(found.get(embed, ())) != set(found.get(_HEAD, ())):
        raise ConfigError(
            f"{where}: ensure_weight_tying is set, but {embed} and {_HEAD} do not have the same tensors"
        )


def _low_rank(
    config: _Config,
    module: str,
    keys: Mapping[str, str],
    tensors: Mapping[str, Float32],
    plans: tuple[TensorPlan, ...],
    max_rank: int,
) -> Iterator[tuple[str, LowRank]]:
    """Yields the name of each matrix of the module with its low-rank addition."""
    path = config.path
    rank = config.rank(module)
    if rank > max_rank:
        raise ConfigError(
            f"{path}: the adapter's rank is {rank} ({module}); --max-lora-rank is {max_rank}"
        )
    rows, columns = plans[0].source_shape
    is_embed = plans[0].name == "embed"
    if is_embed:  # an embedding is read by rows, so its matrix is transposed
        rows, columns = columns, rows
    _check_shape(path, keys["a"], tensors["a"], (rank, columns))
    _check_shape(path, keys["b"], tensors["b"], (rows, rank))
    with np.errstate(over="ignore"):
        scaled = tensors["b"] * np.float32(config.scale(module))
    if not np.isfinite(scaled).all():
        raise ConfigError(
            f"{path / WEIGHTS_FILE}: tensor {shown(keys['b'])} is beyond float32 once it is scaled"
        )
    for plan in plans:
        index = plan.index
        if index is None:
            part = scaled if is_embed else scaled[plan.start : plan.start + plan.shape[0]]
        else:
            part = scaled[index]
        yield plan.name, LowRank(tensors["a"], part)


def _read(files: MappedFiles, path: Path, key: str, stored: StoredTensor) -> Float32:
    if stored.dtype not in DTYPES:
        raise ConfigError(
            f"{path / WEIGHTS_FILE}: tensor {shown(key)} is {stored.dtype}; it must be one of {', '.join(DTYPES)}"
        )
    tensor = files.read(stored)
    if not tensor.is_finite():
        raise ConfigError(f"{path / WEIGHTS_FILE}: tensor {shown(key)} holds NaN or infinity")
    # A copy: the file may be replaced while the adapter is loaded.
    return np.array(tensor.float32(), np.float32, order="C")


def _check_shape(path: Path, key: str, tensor: Float32, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ConfigError(
            f"{path / WEIGHTS_FILE}: tensor {shown(key)} has shape {list(tensor.shape)}; the model "
            f"asks for {list(shape)}"
        )
