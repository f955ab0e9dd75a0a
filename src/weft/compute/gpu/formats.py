"""Formats in which the card keeps matrices; this module works without torch.

Matrices of one input form one product, with one format. If their formats in a file differ, the product is kept in the
model's type.
"""

from collections.abc import Iterator, Mapping

from weft.model.files.layout import decoder_layout
from weft.model.groups import ROUNDED, GroupFormat
from weft.model.spec import ExpertsSpec, LayerSpec, ModelSpec
from weft.model.weights import BYTES_PER_ELEMENT

# Int8 with one scale for each row, as `weft.compute.arithmetic.int8` quantizes floats.
BY_ROW = GroupFormat(bits=8, size=None, offset="symmetric", scales="float32")
_DEPTH = 64
_ZERO_BYTES = 2
_HEAD = ("head",)


def padded_depth(depth: int) -> int:
    """Returns the depth of a matrix on the card, a multiple of the depth of tiles."""
    return -(-depth // _DEPTH) * _DEPTH


def product_format(
    names: tuple[str, ...], stored: Mapping[str, GroupFormat], quantization: str | None
) -> GroupFormat | None:
    """Returns the format of the product of these matrices; None: the model's type.

    With "int4" the head has eight bits, as on the CPU.
    """
    if quantization is None:
        return None
    if quantization == "stored":
        formats = {stored.get(name) for name in names}
        return formats.pop() if len(formats) == 1 else None
    return ROUNDED if quantization == "int4" and names != _HEAD else BY_ROW


def products_of(spec: ModelSpec) -> Iterator[tuple[str, ...]]:
    """Yields the names of the matrices of each product of a decoder."""
    for index, layer in enumerate(spec.layers):
        for names in layer_products(spec, layer):
            yield tuple(f"layers.{index}.{name}" for name in names)
    if spec.has_head:
        yield _HEAD


def layer_products(spec: ModelSpec, layer: LayerSpec) -> list[tuple[str, ...]]:
    """Returns the names of the matrices of each product of a layer, of all its experts together."""
    up = ("gate", "up") if spec.is_gated else ("up",)
    products: list[tuple[str, ...]] = [("q", "k", "v"), ("o",)]
    if spec.mlp_size(layer):
        products += [up, ("down",)]
    if layer.experts is not None:
        products += [expert_names(layer.experts, *up), expert_names(layer.experts, "down")]
    return products


def expert_names(experts: ExpertsSpec, *names: str) -> tuple[str, ...]:
    """Returns the names of these matrices of every expert."""
    return tuple(f"experts.{number}.{name}" for number in range(experts.count) for name in names)


def saved_bytes(
    spec: ModelSpec, stored: Mapping[str, GroupFormat], quantization: str | None, element: int
) -> int:
    """Returns how many bytes fewer than with `element` bytes per weight the card holds."""
    shapes = {plan.name: plan.shape for plan in decoder_layout(spec)}
    saved = 0
    for names in products_of(spec):
        form = product_format(names, stored, quantization)
        if form is None:
            continue
        for name in names:
            is_tied = name not in shapes
            rows, depth = shapes["embed" if is_tied else name]
            saved += (0 if is_tied else element * rows * depth) - rows * row_bytes(form, depth)
    return saved


def row_bytes(form: GroupFormat, depth: int) -> int:
    """Returns the bytes of a row with its scales and offsets."""
    whole = padded_depth(depth)
    of_scale = BYTES_PER_ELEMENT[form.scales]
    of_offset = {"zeros": _ZERO_BYTES, "minimums": of_scale}.get(form.offset, 0)
    return whole * form.bits // 8 + form.count(whole) * (of_scale + of_offset)


def describe_formats(
    spec: ModelSpec, stored: Mapping[str, GroupFormat], quantization: str | None
) -> str | None:
    """Returns a sentence about the stored formats of a checkpoint; None if they are not used."""
    if quantization != "stored":
        return None
    quantized = {
        name
        for names in products_of(spec)
        if product_format(names, stored, quantization) is not None
        for name in names
    }
    count, total = len(set(stored) - quantized), len(stored)
    rest = f" {count} of these {total} matrices are dequantized: their product has several formats."
    return (
        "The checkpoint's quantized weights are kept in their stored format and dequantized in each product; other "
        "linear layers are in the model's type." + (rest if count else "")
    )
