"""Layers that keep a state of a sequence in place of its keys and values: what each kind is like, and its size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    """A gated delta net: see `weft.compute.delta` for its maths.

    Its products make queries and keys of `num_key_heads`, values and gates of `num_value_heads`, each key head being
    that of so many value heads side by side. Queries, keys and values go through a short convolution over
    `conv_width` rows first. `is_by_key_head`: rows of the first product lie key head by key head, each with all that
    belongs to it; else all queries come first, then all keys, and so on.
    """

    num_key_heads: int
    num_value_heads: int
    key_size: int
    value_size: int
    conv_width: int
    is_by_key_head: bool
    norm_eps: float

    @property
    def keys_size(self) -> int:
        """Of all keys, and of all queries."""
        return self.num_key_heads * self.key_size

    @property
    def values_size(self) -> int:
        """Of all values, and of all gates."""
        return self.num_value_heads * self.value_size

    @property
    def num_channels(self) -> int:
        """What the convolution goes over: queries, keys and values."""
        return 2 * self.keys_size + self.values_size

    @property
    def products(self) -> Mapping[str, int]:
        """The first products in order, and what each makes: channels and gates, then b and a of each value head."""
        if self.is_by_key_head:
            return {
                "delta_qkvz": self.num_channels + self.values_size,
                "delta_ba": 2 * self.num_value_heads,
            }
        heads = self.num_value_heads
        return {
            "delta_qkv": self.num_channels,
            "delta_z": self.values_size,
            "delta_b": heads,
            "delta_a": heads,
        }

    @property
    def rounded(self) -> tuple[str, ...]:
        """Those of them that are rounded where linear layers are: not b and a, on which the whole state depends."""
        return ("delta_qkvz",) if self.is_by_key_head else ("delta_qkv", "delta_z")

    @property
    def out(self) -> str:
        """The product behind it."""
        return "delta_out"

    @property
    def state_size(self) -> int:
        """Floats of a sequence: rows of channels that the convolution looks back at, oldest first; then a matrix
        [key_size, value_size] for each value head."""
        matrices = self.num_value_heads * self.key_size * self.value_size
        return (self.conv_width - 1) * self.num_channels + matrices


Recurrence: TypeAlias = DeltaSpec
