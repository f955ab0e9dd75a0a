"""`TowerRow`: how a family's config describes its vision tower, and the names of the tower's tensors."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from weft.model.fields import Fields
from weft.model.towers.spec import TowerSpec

MAX_WIDTH = 2**20
_MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerRow:
    """A kind of tower.

    `read` makes the spec from the whole config and its vision_config. `names` maps Weft's names to those of the
    checkpoint, as in `DecoderNames`; `prefixes` are the possible beginnings of all of them. `unbiased` are linear
    layers without a bias, by Weft's names. `has_frames`: patches are stored with the dimension of frames.
    """

    read: Callable[[Fields, Fields], TowerSpec]
    names: Mapping[str, str]
    prefixes: tuple[str, ...]
    unbiased: frozenset[str] = frozenset()
    has_frames: bool = False


def read_width(vision: Fields, key: str) -> int:
    """Returns a size of the tower."""
    return vision.integer(key, high=MAX_WIDTH)


def read_heads(vision: Fields, key: str, hidden_size: int, *, unit: int) -> int:
    """Returns the number of heads, whose size is a multiple of `unit`."""
    heads = vision.integer(key, high=2**16)
    if hidden_size % heads or hidden_size // heads % unit:
        vision.refuse(
            key,
            f"a divisor of hidden_size ({hidden_size}) into heads of a multiple of {unit} elements",
        )
    return heads


def read_num_layers(vision: Fields, key: str) -> int:
    """Returns the number of layers."""
    return vision.integer(key, high=_MAX_LAYERS)


def read_layer_list(vision: Fields, key: str, num_layers: int) -> tuple[int, ...]:
    """Returns a list of different layers, by number."""
    listed = vision.values.get(key)
    is_list = isinstance(listed, list) and all(type(i) is int for i in listed)
    layers = tuple(listed) if isinstance(listed, list) and is_list else (-1,)
    if len(set(layers)) != len(layers) or any(not 0 <= i < num_layers for i in layers):
        vision.refuse(key, f"a list of different numbers from 0 to {num_layers - 1}")
    return layers


def read_side(vision: Fields, key: str) -> int:
    """Returns the side of a square grid of learned positions, from the number of positions."""
    count = vision.integer(key, high=MAX_WIDTH)
    side = math.isqrt(count)
    return side if side**2 == count else vision.refuse(key, "a square number")
