"""Order of the heads of gated delta nets in GGUF files.

Each key head belongs to several value heads, which are adjacent in Weft. With `has_tiled_heads`, files have the first
value head of each key head, then the second one of each, and so on. Other files have b and a in one tensor, in which
the rows of a key head are adjacent: b of its value heads, then their a.
"""

from collections.abc import Iterator

import numpy as np

from weft.core.errors import ConfigError
from weft.model.files.tensor_plan import TensorPlan
from weft.model.gguf.architecture import Architecture
from weft.model.gguf.header import GgufTensor
from weft.model.gguf.matrices import Order
from weft.model.recurrence import DeltaSpec
from weft.model.spec import ModelSpec

_BY_HEAD = ("delta_b", "delta_a", "a_log", "step_bias")
_CHANNELS = ("delta_qkv", "conv")


def delta_orders(
    layout: tuple[TensorPlan, ...], spec: ModelSpec, architecture: Architecture
) -> dict[str, Order]:
    """Returns the order of rows of the tensors of delta nets, by their names in the file."""
    orders: dict[str, Order] = {}
    for plan, name, net in _plans(layout, spec):
        heads = _heads(net, architecture)
        if name in ("delta_b", "delta_a") and plan.rows > net.num_value_heads:
            orders[plan.source] = _pairs(net)
        elif name in _BY_HEAD:
            orders[plan.source] = heads
        elif name == "delta_z":
            orders[plan.source] = _widened(heads, net.value_size)
        elif name in _CHANNELS:
            keys = np.arange(2 * net.keys_size)
            values = 2 * net.keys_size + _widened(heads, net.value_size)
            orders[plan.source] = np.concatenate([keys, values])
    return orders


def delta_columns(
    layout: tuple[TensorPlan, ...], spec: ModelSpec, architecture: Architecture
) -> dict[str, Order]:
    """Returns the order of columns of the linear layers after delta nets."""
    if not architecture.has_tiled_heads:
        return {}
    return {
        plan.source: _widened(_heads(net, architecture), net.value_size)
        for plan, name, net in _plans(layout, spec)
        if name == net.out
    }


def check_columns(stored: GgufTensor, columns: Order) -> None:
    """Raises `ConfigError` if heads end within a group of quantized columns."""
    form = stored.type.form
    if form is None or form.size is None:
        return
    groups = columns.reshape(-1, form.size) if len(columns) % form.size == 0 else columns[None]
    if (np.diff(groups, axis=1) != 1).any() or (groups[:, 0] % form.size).any():
        raise ConfigError(
            f"{stored.path}: tensor {stored.name} is {stored.type.name}, in groups of {form.size} columns; "
            "the size of a head's values must be a multiple of that"
        )


def _plans(
    layout: tuple[TensorPlan, ...], spec: ModelSpec
) -> Iterator[tuple[TensorPlan, str, DeltaSpec]]:
    """Yields the plans of layers with delta nets, with the name of the tensor in the layer."""
    for plan in layout:
        lead, _, rest = plan.name.partition(".")
        number, _, name = rest.partition(".")
        if lead == "layers":
            net = spec.layers[int(number)].recurrence
            if isinstance(net, DeltaSpec):
                yield plan, name, net


def _heads(net: DeltaSpec, architecture: Architecture) -> Order:
    """Returns the file's number of each value head."""
    heads = np.arange(net.num_value_heads)
    return (
        heads.reshape(-1, net.num_key_heads).T.reshape(-1)
        if architecture.has_tiled_heads
        else heads
    )


def _pairs(net: DeltaSpec) -> Order:
    """Returns the rows of b, then those of a, in the tensor of both."""
    rows = np.arange(2 * net.num_value_heads).reshape(net.num_key_heads, 2, -1)
    return rows.swapaxes(0, 1).reshape(-1)


def _widened(heads: Order, size: int) -> Order:
    """Returns the rows of all heads, each with `size` rows."""
    return (heads[:, None] * size + np.arange(size)).reshape(-1)
