"""Checks media tensors from a request against what the model's own processor makes of a media item. Without side
effects.

Tensors of a wrong shape would end vLLM's engine, and all requests with it.
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
    """A media item after processing: dtype and shape of each tensor, and the item's number of tokens."""

    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ItemForm:
    """Properties that all items of a modality share: dtype and shape of each tensor, and the number of tokens. None
    stands for a property or size that differs between items.
    """

    tensors: Mapping[str, tuple[str, tuple[int | None, ...]] | None]
    num_tokens: int | None

    @classmethod
    def of(cls, one: Item, other: Item) -> Self:
        """Returns the properties that two items share. The items should be as different as possible."""
        tensors = {
            name: _common(made, other.tensors.get(name)) for name, made in one.tensors.items()
        }
        is_fixed = all(common and None not in common[1] for common in tensors.values())
        is_fixed = is_fixed and one.num_tokens == other.num_tokens
        return cls(tensors, one.num_tokens if is_fixed else None)

    def dtype(self, name: str) -> str | None:
        """Returns the dtype of a tensor; None if it is unknown."""
        common = self.tensors.get(name)
        return None if common is None else common[0]

    def check(self, item: Item) -> None:
        """Raises `BadRequest` if the item does not have the shared properties. Extra and missing tensors are
        allowed.
        """
        for name, (dtype, shape) in item.tensors.items():
            if (common := self.tensors.get(name)) is None:
                continue
            expected_dtype, sizes = common
            if dtype != expected_dtype:
                raise _refused(name, f"this model needs the dtype {expected_dtype}, got {dtype}")
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
                f"an item of this model has {self.num_tokens} tokens, got {item.num_tokens}",
            )


def check_names(given: MediaTensors, form: ItemForm) -> None:
    """Raises `BadRequest` for tensors that are no inputs of the model's encoder."""
    first, *_ = given.tensors
    if form.tensors and first not in form.tensors:
        raise _refused(
            "encoder_input_key", f"this model takes {', '.join(form.tensors)}, not {first}"
        )
    for name in given.tensors:
        if name.endswith(_AROUND_ENCODER) or name == "self":
            raise _refused(name, "the encoder has no such input")


def layout(name: str, given: MediaTensors) -> tuple[Layout, str | None]:
    """Returns how vLLM divides the tensor into items, and the name of the tensor with each item's number of rows."""
    if name in given.batched:
        return "batched", None
    if name in given.flat:
        return "flat_from_sizes", given.flat[name]
    return "shared", None


def to_hashes(given: MediaTensors) -> list[str]:
    """Returns the hashes by which the engine identifies the items."""
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
