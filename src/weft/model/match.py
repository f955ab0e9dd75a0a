"""Stored tensors and the layout that a config asks for: exactly those must be there; then read them."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import ConfigError
from weft.model.fields import shown
from weft.model.layout import TensorPlan
from weft.model.quantized import SCALE_SUFFIX
from weft.model.safetensors_files import MappedFiles, StoredTensor
from weft.model.weights import DTYPES, Tensor, Weights, refuse_values


@dataclass(frozen=True, slots=True)
class Matched:
    """A layout, and where its tensors are."""

    layout: tuple[TensorPlan, ...]
    stored: Mapping[str, StoredTensor]

    @property
    def num_parameters(self) -> int:
        """How many numbers the model has."""
        return sum(math.prod(plan.shape) for plan in self.layout)

    def served_dtype(self, dtype: str) -> str:
        """`dtype`, or for "auto" the one that most bytes are stored in, int8 left out."""
        if dtype in DTYPES:
            return dtype
        num_bytes: Counter[str] = Counter()
        for source in {plan.source for plan in self.layout}:
            if self.stored[source].dtype != "int8":
                num_bytes[self.stored[source].dtype] += self.stored[source].num_bytes
        return num_bytes.most_common(1)[0][0]

    def load(self, dtype: str | None) -> Weights:
        """Map every tensor; `dtype` None keeps each as it is stored, and leaves it unchecked."""
        files = MappedFiles()
        whole: dict[str, Tensor] = {}
        for source in {plan.source: None for plan in self.layout}:
            stored = self.stored[source]
            if stored.dtype == "int8":
                whole[source] = _with_scales(files, source, stored, self.stored)
            else:
                whole[source] = _mapped(files, source, stored, dtype)
        return Weights(
            {
                plan.name: Tensor(
                    whole[plan.source].dtype,
                    whole[plan.source].data[plan.start : plan.start + plan.shape[0]],
                    _scales_of(whole[plan.source], plan),
                    whole[plan.source].unchecked,
                    whole[plan.source].is_mapped,
                )
                for plan in self.layout
            }
        )


def match_tensors(
    path: Path,
    layout: tuple[TensorPlan, ...],
    stored: Mapping[str, StoredTensor],
    is_ignored: Callable[[str], bool],
    *,
    has_int8: bool = False,
) -> Matched:
    """Exactly the tensors that the config asks for must be there, in the shapes it asks for.

    `has_int8` says that linear layers may be int8, each with its scales beside it.
    """
    wanted = {plan.source: plan.source_shape for plan in layout}
    scaled = _int8_sources(layout, stored) if has_int8 else set()
    wanted |= {source + SCALE_SUFFIX: (wanted[source][0], 1) for source in scaled}
    for source, shape in wanted.items():
        if source not in stored:
            raise ConfigError(f"{path}: tensor {source} is missing; config.json asks for it")
        if stored[source].shape != shape:
            raise ConfigError(
                f"{stored[source].path}: tensor {source} has shape {list(stored[source].shape)}; "
                f"config.json asks for {list(shape)}"
            )
        if stored[source].dtype == "int8" and source not in scaled:
            raise ConfigError(
                f"{stored[source].path}: tensor {source} is int8; config.json does not say how to read it"
            )
    for source in sorted(stored.keys() - wanted.keys()):
        if not is_ignored(source):
            raise ConfigError(
                f"{stored[source].path}: tensor {shown(source)} has no place in the model that config.json "
                "describes"
            )
    return Matched(layout, stored)


def _int8_sources(layout: tuple[TensorPlan, ...], stored: Mapping[str, StoredTensor]) -> set[str]:
    """Matrices of linear layers that are stored so; the embedding and the head never are."""
    return {
        plan.source
        for plan in layout
        if plan.name.startswith("layers.")
        and len(plan.shape) == 2
        and plan.source in stored
        and stored[plan.source].dtype == "int8"
    }


def _with_scales(
    files: MappedFiles, name: str, stored: StoredTensor, others: Mapping[str, StoredTensor]
) -> Tensor:
    scales = files.read(others[name + SCALE_SUFFIX]).float32().reshape(-1)
    origin = f"{stored.path}: tensor {name}{SCALE_SUFFIX}"
    return replace(files.read(stored), scales=scales, unchecked=origin)


def _scales_of(whole: Tensor, plan: TensorPlan) -> NDArray[np.float32] | None:
    if whole.scales is None:
        return None
    return np.ascontiguousarray(whole.scales[plan.start : plan.start + plan.shape[0]])


def _mapped(files: MappedFiles, name: str, stored: StoredTensor, dtype: str | None) -> Tensor:
    """As it lies in the file, not yet looked at; or checked and rounded where another type is wanted."""
    tensor, origin = files.read(stored), f"{stored.path}: tensor {name}"
    if dtype is None or dtype == tensor.dtype:
        return replace(tensor, unchecked=origin)
    if not tensor.is_finite():
        refuse_values(origin)
    rounded = tensor.rounded_to(dtype)
    if not rounded.is_finite():
        raise ConfigError(f"{origin} does not fit {dtype}; serve it as bfloat16")
    return rounded
