"""Checks stored tensors against the layout of a config, which they must match exactly, and reads them."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from weft.core.errors import ConfigError
from weft.model.fields import shown
from weft.model.files.safetensors_files import MappedFiles, StoredTensor
from weft.model.files.tensor_plan import TensorPlan
from weft.model.groups import GroupFormat
from weft.model.quantized.format import PASSED_OVER, Part, Parts, QuantizedFormat
from weft.model.quantized.packed import PackedMatrix
from weft.model.weights import DTYPES, Product, Tensor, Values, Weights, refuse_values

_PACKED = ("qweight", "weight_packed")  # name endings of quantized matrices


@dataclass(frozen=True, slots=True)
class Matched:
    """A layout and the places of its tensors; `rounded` are the sources that are stored in the quantized `format`."""

    layout: tuple[TensorPlan, ...]
    stored: Mapping[str, StoredTensor]
    format: QuantizedFormat | None = None
    rounded: frozenset[str] = frozenset()
    spare_biases: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that contain the tensors, each file once."""
        return tuple(sorted({stored.path for stored in self.stored.values()}))

    @property
    def groups(self) -> Mapping[str, GroupFormat]:
        """Matrices that kernels compute with in their stored format, by Weft's names."""
        found: dict[str, GroupFormat] = {}
        for plan in self.layout:
            if self.format is not None and plan.source in self.rounded:
                form = self.format.groups(self.stored[plan.lead + self.format.scales].dtype)
                if form is not None and plan.may_be_grouped:
                    found[plan.name] = form
        return found

    @property
    def needed(self) -> dict[str, StoredTensor]:
        """Tensors to read, by their names in the checkpoint."""
        names = {plan.source for plan in _with_factors(self.layout)} - self.rounded
        for plan in self.layout:
            if plan.source in self.rounded:
                assert self.format is not None
                names |= {plan.lead + part.name for part in self.format.parts(*plan.source_shape)}
        names |= set(self.spare_biases)
        return {name: stored for name, stored in self.stored.items() if name in names}

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(math.prod(plan.shape) for plan in self.layout)

    def served_dtype(self, dtype: str) -> str:
        """Returns `dtype`; for "auto", the type of the largest part of the stored bytes, without quantized tensors."""
        if dtype in DTYPES:
            return dtype
        num_bytes: Counter[str] = Counter()
        for source in {plan.source for plan in self.layout} - self.rounded:
            num_bytes[self.stored[source].dtype] += self.stored[source].num_bytes
        return num_bytes.most_common(1)[0][0]

    def load(self, dtype: str | None) -> Weights:
        """Maps every tensor; with `dtype` None each tensor has its stored type and is not checked."""
        files = MappedFiles()
        for name in self.spare_biases:
            if files.read(self.stored[name]).float32().any():
                raise ConfigError(
                    f"{self.stored[name].path}: tensor {name} has no place in the model that config.json "
                    "describes, and is not zero"
                )
        whole: dict[str, Tensor | PackedMatrix] = {}
        for plan in _with_factors(self.layout):
            if plan.source in self.rounded:
                if plan.stack is None:
                    whole[plan.source] = self._rounded(files, plan, dtype)
            elif plan.source not in whole:
                tensor = read_floats(files, plan.source, self.stored[plan.source], dtype)
                if not tensor.data.ndim:  # a scalar counts as a row of one
                    tensor = replace(tensor, data=tensor.data.reshape(1))
                if plan.folded is not None or plan.flattened is not None:
                    tensor = replace(tensor, data=tensor.data.reshape(plan.source_shape))
                if plan.channels_last is not None:
                    tensor = _channels_first(tensor, plan.channels_last)
                is_whole = plan.is_transposed and plan.stack is None
                whole[plan.source] = tensor.transposed() if is_whole else tensor
        taken = {plan.name: self._taken(plan, whole, files, dtype) for plan in self.layout}
        return Weights({p.name: _multiplied(taken[p.name], p) for p in self.layout})

    def _taken(
        self,
        plan: TensorPlan,
        whole: Mapping[str, Tensor | PackedMatrix],
        files: MappedFiles,
        dtype: str | None,
    ) -> Values:
        """Returns the values that `plan` selects from the source tensors."""
        if plan.stack is not None and plan.source in self.rounded:
            return self._rounded(files, plan, dtype)
        source = whole[plan.source]
        if plan.stack is not None:
            assert isinstance(source, Tensor)
            taken = _of_stack(source, plan, is_transposed=plan.is_transposed)
            return taken if plan.index is None else taken.taken(plan.index)
        if plan.index is not None:
            return source.taken(plan.index)
        if plan.factor is None:
            return source.rows(plan.start, plan.start + plan.shape[0])
        factor = whole[plan.factor.source]
        assert isinstance(source, Tensor)
        assert isinstance(factor, Tensor), "only linear layers are packed"
        return Product(source, factor)

    def _rounded(
        self, files: MappedFiles, plan: TensorPlan, dtype: str | None
    ) -> Tensor | PackedMatrix:
        """Returns a whole quantized source, or the selected matrix of a source with many matrices."""
        assert self.format is not None
        rows, depth = plan.source_shape
        names = [part.name for part in self.format.parts(rows, depth)]
        stored = {
            name: self.stored[plan.lead + name] for name in names if plan.lead + name in self.stored
        }
        tensors = {name: files.read(where) for name, where in stored.items()}
        if plan.stack is not None:
            rows = plan.shape[0]
            tensors = {name: _of_stack(tensor, plan) for name, tensor in tensors.items()}
        paths = {name: str(where.path) for name, where in stored.items()}
        return self.format.read(Parts(plan.lead, (rows, depth), tensors, paths), dtype)


def _multiplied(values: Values, plan: TensorPlan) -> Values:
    """Returns the values times the plan's factors, in the same type."""
    if all(factor == 1.0 for _, factor in plan.multipliers):
        return values
    if not isinstance(values, Tensor) or values.scales is not None:
        raise ConfigError(
            f"tensor {plan.source} is quantized and has a factor in config.json; this is not implemented: serve the "
            "model that is not quantized, with --quantization int8 or int4"
        )
    rows, factors = zip(*plan.multipliers, strict=True)
    by_row = np.repeat(np.asarray(factors, np.float32), rows).reshape(
        -1, *[1] * (len(plan.shape) - 1)
    )
    if not values.is_finite():
        refuse_values(f"tensor {plan.source}")
    whole = Tensor("float32", values.float32() * by_row)
    return whole.rounded_to(values.dtype)


def match_tensors(
    path: Path,
    layout: tuple[TensorPlan, ...],
    stored: Mapping[str, StoredTensor],
    is_ignored: Callable[[str], bool],
    *,
    quantized: QuantizedFormat | None = None,
) -> Matched:
    """Returns the match of a layout with the stored tensors: exactly the layout's tensors, in its shapes.

    Raises `ConfigError` for missing or further tensors and for other shapes. `quantized` is the format in which
    matrices of linear layers may be stored instead.
    """
    rounded = frozenset() if quantized is None else _rounded_sources(layout, stored, quantized)
    wanted: dict[str, Part] = {}
    for plan in _with_factors(layout):
        if quantized is None or plan.source not in rounded:
            wanted[plan.source] = Part(plan.source, plan.stored_shape, DTYPES)
            continue
        for part in quantized.parts(*plan.source_shape):
            name = plan.lead + part.name
            if name in stored or not part.is_optional:
                wanted[name] = _stacked(part, plan.stack)
    for source, part in wanted.items():
        _check(path, source, part, stored)
    spare_biases = _spare_biases(wanted, stored, rounded, quantized)
    for source in sorted(stored.keys() - wanted.keys() - set(spare_biases)):
        is_of_rounding = quantized is not None and source.endswith(PASSED_OVER)
        if not is_of_rounding and not is_ignored(source):
            raise ConfigError(
                f"{stored[source].path}: tensor {shown(source)} has no place in the model that config.json "
                "describes"
            )
    return Matched(layout, stored, quantized, rounded, spare_biases)


def _with_factors(layout: tuple[TensorPlan, ...]) -> Iterator[TensorPlan]:
    for plan in layout:
        yield plan
        if plan.factor is not None:
            yield plan.factor


def _channels_first(tensor: Tensor, channels: int) -> Tensor:
    """Returns a copy in which all numbers of a row's first channel come first, then those of the next channel."""
    rows = len(tensor.data)
    turned = tensor.data.reshape(rows, -1, channels).transpose(0, 2, 1)
    return replace(tensor, data=np.ascontiguousarray(turned).reshape(rows, -1), is_mapped=False)


def _stacked(part: Part, stack: int | None) -> Part:
    """Returns the part of a tensor whose first dimension is a stack of matrices."""
    if stack is None:
        return part
    rows, *others = part.shape
    return replace(part, shape=(stack, rows // stack, *others))


def _of_stack(tensor: Tensor, plan: TensorPlan, *, is_transposed: bool = False) -> Tensor:
    """Returns the rows that `plan` selects, as a view of the same memory."""
    assert plan.stack is not None
    if plan.shape[0] == plan.rows:
        return replace(tensor, data=tensor.data.reshape(plan.shape))
    number, first = divmod(plan.start, plan.rows // plan.stack)
    one = tensor.data[number].T if is_transposed else tensor.data[number]
    return replace(tensor, data=one[first : first + plan.shape[0] * plan.step : plan.step])


def _check(path: Path, source: str, part: Part, stored: Mapping[str, StoredTensor]) -> None:
    if source not in stored:
        module = source.removesuffix(".weight")
        packed = next(
            (f"{module}.{name}" for name in _PACKED if f"{module}.{name}" in stored), None
        )
        hint = (
            ""
            if packed is None
            else f"; {packed} is there, and config.json does not say how to read it"
        )
        raise ConfigError(f"{path}: tensor {source} is missing; config.json asks for it{hint}")
    found = stored[source]
    if (found.shape or (1,)) != part.shape:  # a scalar counts as a row of one
        raise ConfigError(
            f"{found.path}: tensor {source} has shape {list(found.shape)}; "
            f"config.json asks for {list(part.shape)}"
        )
    if found.dtype in part.dtypes:
        return
    if part.dtypes == DTYPES:
        raise ConfigError(
            f"{found.path}: tensor {source} is {found.dtype}; config.json does not say how to read it"
        )
    raise ConfigError(
        f"{found.path}: tensor {source} is {found.dtype}; config.json asks for {' or '.join(part.dtypes)}"
    )


def _rounded_sources(
    layout: tuple[TensorPlan, ...], stored: Mapping[str, StoredTensor], quantized: QuantizedFormat
) -> frozenset[str]:
    """Returns the names of linear layers' matrices, head included, that are stored quantized.

    The embedding never is.
    """
    rounded = set()
    for plan in layout:
        is_linear = plan.name in ("head", "join") or plan.name.startswith("layers.")
        if is_linear and len(plan.shape) == 2:
            first, *others = quantized.parts(*plan.source_shape)
            if plan.stack is not None and not all(part.is_by_row for part in others):
                continue  # the rows of one matrix among many cannot be located
            found = stored.get(plan.lead + first.name)
            if found is not None and found.dtype not in DTYPES:
                rounded.add(plan.source)
    return frozenset(rounded)


def _spare_biases(
    wanted: Mapping[str, Part],
    stored: Mapping[str, StoredTensor],
    rounded: frozenset[str],
    quantized: QuantizedFormat | None,
) -> tuple[str, ...]:
    if quantized is None or not quantized.has_spare_biases:
        return ()
    names = (f"{source.removesuffix('.weight')}.bias" for source in sorted(rounded))
    return tuple(
        name
        for name in names
        if name in stored and name not in wanted and stored[name].dtype in DTYPES
    )


def read_floats(files: MappedFiles, name: str, stored: StoredTensor, dtype: str | None) -> Tensor:
    """Returns a tensor as it is stored, unchecked; with another `dtype`, checked and rounded to this type."""
    tensor, origin = files.read(stored), f"{stored.path}: tensor {name}"
    if dtype is None or dtype == tensor.dtype:
        return replace(tensor, unchecked=origin)
    if not tensor.is_finite():
        refuse_values(origin)
    rounded = tensor.rounded_to(dtype)
    if not rounded.is_finite():
        raise ConfigError(f"{origin} does not fit {dtype}; serve it as bfloat16")
    return rounded
