"""Stored tensors and the layout that a config asks for: exactly those must be there; then read them."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import ConfigError
from weft.model.fields import shown
from weft.model.layout import TensorPlan
from weft.model.safetensors_files import MappedFiles, StoredTensor
from weft.model.weights import DTYPES, Tensor, Weights


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
        """`dtype`, or for "auto" the one that most bytes are stored in."""
        if dtype in DTYPES:
            return dtype
        num_bytes: Counter[str] = Counter()
        for source in {plan.source for plan in self.layout}:
            num_bytes[self.stored[source].dtype] += self.stored[source].num_bytes
        return num_bytes.most_common(1)[0][0]

    def load(self, dtype: str | None) -> Weights:
        """Map and check every tensor; `dtype` None keeps each as it is stored."""
        files = MappedFiles()
        whole: dict[str, Tensor] = {}
        for source in {plan.source: None for plan in self.layout}:
            whole[source] = _checked(files, source, self.stored[source], dtype)
        return Weights(
            {
                plan.name: Tensor(
                    whole[plan.source].dtype,
                    whole[plan.source].data[plan.start : plan.start + plan.shape[0]],
                )
                for plan in self.layout
            }
        )


def match_tensors(
    path: Path,
    layout: tuple[TensorPlan, ...],
    stored: Mapping[str, StoredTensor],
    is_ignored: Callable[[str], bool],
) -> Matched:
    """Exactly the tensors that the config asks for must be there, in the shapes it asks for."""
    wanted = {plan.source: plan.source_shape for plan in layout}
    for source, shape in wanted.items():
        if source not in stored:
            raise ConfigError(f"{path}: tensor {source} is missing; config.json asks for it")
        if stored[source].shape != shape:
            raise ConfigError(
                f"{stored[source].path}: tensor {source} has shape {list(stored[source].shape)}; "
                f"config.json asks for {list(shape)}"
            )
    for source in sorted(stored.keys() - wanted.keys()):
        if not is_ignored(source):
            raise ConfigError(
                f"{stored[source].path}: tensor {shown(source)} has no place in the model that config.json "
                "describes"
            )
    return Matched(layout, stored)


def _checked(files: MappedFiles, name: str, stored: StoredTensor, dtype: str | None) -> Tensor:
    tensor = files.read(stored)
    if not tensor.is_finite():
        raise ConfigError(f"{stored.path}: tensor {name} holds NaN or infinity")
    if dtype is None or dtype == tensor.dtype:
        return tensor
    rounded = tensor.rounded_to(dtype)
    if not rounded.is_finite():
        raise ConfigError(
            f"{stored.path}: tensor {name} does not fit {dtype}; serve it as bfloat16"
        )
    return rounded
