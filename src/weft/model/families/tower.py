"""`TowerRow`: how a family's config describes its tower, and the names of the tower's tensors."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from weft.model.families.encoder_families import read_activation
from weft.model.fields import Fields
from weft.model.switches import Activation
from weft.model.towers.spec import TowerSpec

MAX_WIDTH = 2**20
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerRow:
    """A kind of vision tower.

    `read` makes the spec from the whole config, its `section`, and the hidden size of the text model; without a section
    the tower's keys are in the file itself, and the text model cannot be used without the tower. `names`
    maps Weft's names to those of the checkpoint, as in `DecoderNames`. `@` in them stands for one of `towers`, the
    possible beginnings of the tower's own tensors, and `prefixes` are those of all. `unbiased` are linear layers
    without a bias, and `bare` are matrices stored as [in, out] and without `.weight`, both by Weft's names. `ignored`
    tensors, by their beginnings as in `names`, are not used. `has_frames`: patches are stored with the dimension of
    frames. `has_flat_patches`: patches are stored as rows of pixels, each with its channels.
    """

    read: Callable[[Fields, Fields, int], TowerSpec]
    section: str | None = "vision_config"
    names: Mapping[str, str]
    towers: tuple[str, ...]
    others: tuple[str, ...] = ()  # prefixes of tensors outside of the tower, such as a projector's
    prefixes: tuple[str, ...] = ("model.", "")
    unbiased: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()
    has_frames: bool = False
    has_flat_patches: bool = False

    def find(self, stored: Collection[str]) -> tuple[str, str] | None:
        """Returns the prefix of all names and the tower's own prefix in a checkpoint; None if it has no tower."""
        patch = self.names["project.patch.down"] + ".weight"
        leads = ((p, tower) for p in self.prefixes for tower in self.towers)
        return next((one for one in leads if one[0] + patch.replace("@", one[1]) in stored), None)

    @property
    def leads(self) -> tuple[str, ...]:
        """Possible beginnings of the names of a tower's tensors."""
        return tuple(p + lead for p in self.prefixes for lead in (*self.towers, *self.others))


def read_width(vision: Fields, key: str) -> int:
    """Returns a size of the tower from the config key `key`."""
    return vision.integer(key, high=MAX_WIDTH)


def read_heads(vision: Fields, key: str, hidden_size: int, *, unit: int) -> int:
    """Returns the tower's number of heads; raises `ConfigError` unless a head's size is a multiple of `unit`."""
    heads = vision.integer(key, high=2**16)
    if hidden_size % heads or hidden_size // heads % unit:
        vision.refuse(
            key,
            f"a divisor of hidden_size ({hidden_size}) into heads of a multiple of {unit} elements",
        )
    return heads


def read_mlp_activation(vision: Fields, key: str) -> tuple[Activation, float]:
    """Returns the activation of MLPs without a gate, and its factor as in `TowerSpec`.

    The activation `quick_gelu` is x times the logistic function of 1.702 x, which is SiLU of 1.702 x, divided by 1.702.
    """
    if vision.values.get(key) == "quick_gelu":
        return Activation.SILU, 1.702
    return read_activation(vision, key), 1.0


def read_num_layers(vision: Fields, key: str) -> int:
    """Returns the number of layers."""
    return vision.integer(key, high=MAX_LAYERS)


def read_layer_list(vision: Fields, key: str, num_layers: int) -> tuple[int, ...]:
    """Returns a list of layer numbers without duplicates."""
    listed = vision.values.get(key)
    is_list = isinstance(listed, list) and all(type(i) is int for i in listed)
    layers = tuple(listed) if isinstance(listed, list) and is_list else (-1,)
    if len(set(layers)) != len(layers) or any(not 0 <= i < num_layers for i in layers):
        vision.refuse(key, f"a list of different numbers from 0 to {num_layers - 1}")
    return layers


def read_side(vision: Fields, key: str) -> int:
    """Returns the side of the square grid of learned positions; `key` has the number of positions."""
    count = vision.integer(key, high=MAX_WIDTH)
    side = math.isqrt(count)
    return side if side**2 == count else vision.refuse(key, "a square number")
