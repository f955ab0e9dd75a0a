"""Media that come as tensors, held to what the model's own processor makes of an item. Pure.

In a wrong shape they would end vLLM's engine, and with it everybody's requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from weft.core.errors import BadRequest
from weft.core.values.media import TENSORS, MediaTensors

Layout = Literal["batched", "flat_from_sizes", "shared"]

# Ending of inputs that hold encoder outputs, and so bypass the encoder. vLLM accepts them only if its operator trusts
# every caller.
_AROUND_ENCODER = "_embeds"
# Prefix of hashes from callers, so that they cannot equal the hash of an item that vLLM made itself.
_PREFIX = "tensors:"


@dataclass(frozen=True, slots=True)
class Item:
    """A processed item: dtype and shape of each tensor, and its number of tokens."""

    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ItemForm:
    """Properties that the items of a modality share; None for those that differ."""

    tensors: Mapping[str, tuple[str, tuple[int | None, ...]] | None]
    num_tokens: int | None

    @classmethod
    def of(cls, one: Item, other: Item) -> Self:
        """The form shared by two items that differ as much as possible."""
        tensors = {
            name: _common(made, other.tensors.get(name)) for name, made in one.tensors.items()
        }
        is_fixed = all(common and None not in common[1] for common in tensors.values())
        is_fixed = is_fixed and one.num_tokens == other.num_tokens
        return cls(tensors, one.num_tokens if is_fixed else None)

    def dtype(self, name: str) -> str | None:
        """Data type of a tensor, if known."""
        common = self.tensors.get(name)
        return None if common is None else common[0]

    def check(self, item: Item) -> None:
        """Raises `BadRequest` for an item of another form. Extra and missing tensors are allowed."""
        for name, (dtype, shape) in item.tensors.items():
            if (common := self.tensors.get(name)) is None:
                continue
            expected_dtype, sizes = common
            if dtype != expected_dtype:
                raise _refused(name, f"this model takes numbers of {expected_dtype}, got {dtype}")
            if len(shape) != len(sizes) or any(
                size not in (None, given) for size, given in zip(sizes, shape, strict=True)
            ):
                expected = ", ".join("any" if size is None else str(size) for size in sizes)
                raise _refused(
                    name, f"an item of this model has the shape [{expected}], got {list(shape)}"
                )
        if self.num_tokens not in (None, item.num_tokens):
            raise _refused(
                "mm_placeholders",
                f"an item of this model takes {self.num_tokens} tokens, got {item.num_tokens}",
            )


def check_names(given: MediaTensors, form: ItemForm) -> None:
    """Raise `BadRequest` for tensors that the model's encoder does not have as inputs."""
    first, *_ = given.tensors
    if form.tensors and first not in form.tensors:
        raise _refused(
            "encoder_input_key", f"this model takes {', '.join(form.tensors)}, not {first}"
        )
    for name in given.tensors:
        if name.endswith(_AROUND_ENCODER) or name == "self":
            raise _refused(name, "the encoder has no such input")


def layout(name: str, given: MediaTensors) -> tuple[Layout, str | None]:
    """Returns how a tensor is divided into items, in vLLM's terms, and the tensor with the number of rows of each."""
    if name in given.batched:
        return "batched", None
    if name in given.flat:
        return "flat_from_sizes", given.flat[name]
    return "shared", None


def to_hashes(given: MediaTensors) -> list[str]:
    """By which the engine knows the items."""
    return [f"{_PREFIX}{name}" for name in given.hashes]


def _common(
    one: tuple[str, tuple[int, ...]], other: tuple[str, tuple[int, ...]] | None
) -> tuple[str, tuple[int | None, ...]] | None:
    if other is None or len(one[1]) != len(other[1]):
        return None
    sizes = zip(one[1], other[1], strict=True)
    return one[0], tuple(size if size == another else None for size, another in sizes)


def _refused(name: str, words: str) -> BadRequest:
    return BadRequest(TENSORS, f"{TENSORS}: {name}: {words}")
