"""Products of group-quantized weights and int8 activations in numpy: the same bits as the native kernels.

The module also decides which matrices of a model are group-quantized: matrices that are multiplied together have the
same format.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.compute.arithmetic.int8 import Int8Rows
from weft.compute.protocols.runner import FloatArray
from weft.model.groups import ROUNDED, GroupedMatrix, GroupFormat, StoredGroups
from weft.model.spec import ExpertsSpec, LayerSpec, ModelSpec
from weft.model.weights import Weights

_LANES = 16  # a head is padded to a multiple of this, in the depth of the matrix after attention


def multiply(rows: FloatArray, weights: GroupedMatrix) -> FloatArray:
    """Returns `rows` [rows, depth], quantized by row and group, times `weights` [out, depth]."""
    depth = rows.shape[1]
    size = weights.format.size or depth
    groups = weights.format.count(depth)
    spare = ((0, 0), (0, groups * size - depth))
    activations = Int8Rows.round(np.pad(rows, spare).reshape(-1, size))
    row_scales = activations.scales.reshape(-1, groups, 1)
    # float64 represents every possible sum, a whole number, exactly.
    x = activations.values.astype(np.float64).reshape(-1, groups, size)
    values = weights.format.values(weights.numbers)
    numbers = np.pad(values, spare).astype(np.float64).reshape(-1, groups, size)
    sums = np.matmul(x.transpose(1, 0, 2), numbers.transpose(1, 2, 0))  # [groups, rows, out]
    row_sums = x.sum(axis=2, keepdims=True)
    scales, offsets = weights.wide_scales(), weights.wide_offsets()
    has_minimums = weights.format.offset == "minimums"
    total = np.zeros((len(rows), len(weights.numbers)), np.float32)
    for g in range(groups):
        whole = sums[g] if has_minimums else sums[g] - row_sums[:, g] * offsets[:, g]
        total += whole.astype(np.float32) * row_scales[:, g] * scales[:, g]
        if has_minimums:
            total += row_sums[:, g].astype(np.float32) * row_scales[:, g] * offsets[:, g]
    return total


@dataclass(frozen=True, slots=True)
class LayerFormats:
    """Formats of a layer's matrices; None stands for int8 with one scale per row.

    The matrices before the layer's token mixing, `into`, form one product with the format `qkv`; the matrix after it,
    `out`, has the format `o`.
    """

    into: tuple[str, ...]
    out: str
    qkv: GroupFormat | None = None
    q_b: GroupFormat | None = None  # matrix from a low-rank vector to queries
    o: GroupFormat | None = None
    up: GroupFormat | None = None  # also for the gate
    down: GroupFormat | None = None
    expert_up: GroupFormat | None = None
    expert_down: GroupFormat | None = None


def layer_formats(
    spec: ModelSpec, stored: Mapping[str, GroupFormat], quantization: str | None
) -> list[LayerFormats]:
    """Returns the formats by layer: for "stored" the formats in the file; for "int4" the format for quantizing floats.

    Matrices with the same input form one product, and so do the matrices of all experts of a layer: if their formats
    differ, all of them are int8.
    """
    low_rank = spec.latent is not None and spec.latent.query_rank is not None
    qkv = ("q_a" if low_rank else "q", "kv_a") if spec.latent else ("q", "k", "v")
    mixing = [layer.mixing(qkv) for layer in spec.layers]
    if quantization not in ("int4", "stored"):
        return [LayerFormats(into, out) for into, out in mixing]

    def of(index: int, *names: str) -> GroupFormat | None:
        if quantization == "int4":
            return ROUNDED
        found = {stored.get(f"layers.{index}.{name}") for name in names}
        return found.pop() if len(found) == 1 else None

    def of_experts(experts: ExpertsSpec | None, *names: str) -> list[str]:
        numbers = range(experts.count if experts else 0)
        return [f"experts.{number}.{name}" for number in numbers for name in names]

    def has_whole_lanes(layer: LayerSpec) -> bool:
        return spec.output_size_of(layer) // spec.num_heads % _LANES == 0

    up = ("gate", "up") if spec.is_gated else ("up",)
    return [
        LayerFormats(
            into,
            out,
            qkv=of(index, *into),
            q_b=of(index, "q_b") if low_rank else None,
            o=of(index, out) if out != "o" or has_whole_lanes(layer) else None,
            up=of(index, *up),
            down=of(index, "down"),
            expert_up=of(index, *of_experts(layer.experts, *up)),
            expert_down=of(index, *of_experts(layer.experts, "down")),
        )
        for index, (layer, (into, out)) in enumerate(zip(spec.layers, mixing, strict=True))
    ]


def describe_rounded_again(spec: ModelSpec, stored: Mapping[str, GroupFormat]) -> str | None:
    """Returns a sentence about matrices that are not computed in their stored format; None if there are none."""
    formats = layer_formats(spec, stored, "stored")
    count = sum(format_of(name, formats) is None for name in stored)
    if not count:
        return None
    experts = ", or experts of a layer" if any(layer.experts for layer in spec.layers) else ""
    return (
        f"{count} of these {len(stored)} matrices are computed in int8 by row instead: q, k and v, or gate and "
        f"up{experts}, if their types differ, and o if the head width is not a multiple of {_LANES}."
    )


def stored_groups(weights: Weights) -> dict[str, tuple[StoredGroups, GroupFormat]]:
    """Returns the matrices, by name, that can be computed in their stored format."""
    return {
        name: (values, values.group_format)
        for name, values in weights.tensors.items()
        if isinstance(values, StoredGroups) and values.group_format is not None
    }


def format_of(name: str, formats: list[LayerFormats]) -> GroupFormat | None:
    """Returns the format of the matrix with this name in the runners."""
    parts = name.split(".")
    if len(parts) not in (3, 5) or parts[0] != "layers":
        return None
    layer = formats[int(parts[1])]
    if len(parts) == 5:
        return layer.expert_down if parts[4] == "down" else layer.expert_up
    places = {
        **dict.fromkeys(layer.into, layer.qkv),
        layer.out: layer.o,
        "q_b": layer.q_b,
        "gate": layer.up,
        "up": layer.up,
        "down": layer.down,
    }
    return places.get(parts[2])
