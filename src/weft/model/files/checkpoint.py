"""`Checkpoint`: a model that was found and checked, before its weights are read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenizers import Tokenizer

from weft.model.card import ModelCard
from weft.model.files.safetensors_files import StoredTensor
from weft.model.groups import GroupedMatrix, GroupFormat, HalvedMatrix, StoredGroups
from weft.model.spec import EchoSpec, ModelSpec
from weft.model.weights import LoadWeights, Tensor, Values, Weights, refuse_values


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerPart:
    """What the tokenizer's files say of a model, by the fields that it becomes.

    `parsed_tokenizer` is what was built from `tokenizer_files` to check them: to build it again would take
    most of a start.
    """

    tokenizer_files: Mapping[str, bytes]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    chat_template: str | None
    parsed_tokenizer: Tokenizer | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`tokenizer_files` holds, by file name, all that is needed to rebuild the tokenizer elsewhere.

    What they say is known after `with_tokenizer`: the card has no special ids before, and there is no
    template. An engine needs none of it, and to read a large vocabulary takes most of a start.
    `groups` are the matrices that kernels compute with as they are stored, by name.
    `weight_files` are those that `load_weights` reads; none where weights are drawn. `find_again` finds what
    its name stands for now; `find_mtp` its head for multi-token prediction, if it has one. `needed` are the tensors
    that are read, by their names in the files, and `load_from` reads the same from elsewhere; a model without files
    has none.
    """

    card: ModelCard
    spec: ModelSpec | EchoSpec
    tokenizer_files: Mapping[str, bytes]
    load_weights: LoadWeights = field(repr=False)
    weight_files: tuple[Path, ...] = field(default=(), repr=False, kw_only=True)
    groups: Mapping[str, GroupFormat] = field(default_factory=dict, repr=False, kw_only=True)
    find_again: "Callable[[], Checkpoint] | None" = field(default=None, repr=False, kw_only=True)
    find_mtp: "Callable[[], Checkpoint] | None" = field(default=None, repr=False, kw_only=True)
    needed: Mapping[str, StoredTensor] = field(default_factory=dict, repr=False, kw_only=True)
    load_from: Callable[[Mapping[str, StoredTensor]], Weights] | None = field(
        default=None, repr=False, kw_only=True
    )
    read_tokenizer: Callable[[], TokenizerPart] | None = field(default=None, repr=False)
    chat_template: str | None = None
    parsed_tokenizer: Tokenizer | None = field(default=None, repr=False)

    def with_tokenizer(self) -> "Checkpoint":
        """With what the tokenizer's files say; a `ConfigError` says why they do not go with the model."""
        if self.read_tokenizer is None:  # it was read, or built in
            return self
        part = self.read_tokenizer()
        card = replace(
            self.card,
            eos_token_ids=part.eos_token_ids,
            bos_token_id=part.bos_token_id,
            pad_token_id=part.pad_token_id,
        )
        return replace(
            self,
            card=card,
            tokenizer_files=part.tokenizer_files,
            read_tokenizer=None,
            chat_template=part.chat_template,
            parsed_tokenizer=part.parsed_tokenizer,
        )

    def watched(self, report: Callable[[int], None]) -> "Checkpoint":
        """The same; `report` gets the number of elements that are loaded, each time the next tensor is read."""
        done = last = 0

        def on_taken(num_elements: int) -> None:
            nonlocal done, last
            # Whoever takes the next has loaded the one before.
            done, last = done + last, num_elements
            report(done)

        def load_weights() -> Weights:
            tensors = self.load_weights().tensors
            return Weights({name: _watched(v, on_taken) for name, v in tensors.items()})

        return replace(self, load_weights=load_weights)

    def with_tensors(self, stored: Mapping[str, StoredTensor]) -> "Checkpoint":
        """The same model, whose `needed` tensors lie there."""
        load_from = self.load_from
        assert load_from is not None
        files = tuple(sorted({tensor.path for tensor in stored.values()}))
        return replace(self, load_weights=lambda: load_from(stored), weight_files=files)

    def load(self, prefix: str = "") -> Weights:
        """Map and check every tensor whose name begins so; a `ConfigError` names one that is no numbers."""
        mapped = self.load_weights().tensors
        weights = Weights({name: t for name, t in mapped.items() if name.startswith(prefix)})
        for tensor in weights.tensors.values():
            if tensor.unchecked is not None and not tensor.is_finite():
                refuse_values(tensor.unchecked)
        return weights

    def map(self) -> Weights:
        """Map every tensor; whoever reads them checks the values of those that are still unchecked."""
        return self.load_weights()


@dataclass(frozen=True, slots=True)
class _WatchedValues:
    """Values that say how many elements they have, whenever somebody takes them."""

    values: Values
    on_taken: Callable[[int], None]

    @property
    def unchecked(self) -> str | None:
        return self.values.unchecked

    def is_finite(self) -> bool:
        return self.values.is_finite()

    def unpacked(self) -> Tensor:
        tensor = self.values.unpacked()
        self.on_taken(tensor.data.size)
        return tensor


@dataclass(frozen=True, slots=True)
class _WatchedGroups(_WatchedValues):
    """The same of values that may be taken as they are stored."""

    stored: StoredGroups

    @property
    def group_format(self) -> GroupFormat | None:
        return self.stored.group_format

    def grouped(self) -> GroupedMatrix:
        matrix = self.stored.grouped()
        self.on_taken(matrix.numbers.size)
        return matrix

    def halved(self) -> HalvedMatrix | None:
        matrix = self.stored.halved()
        if matrix is not None:
            self.on_taken(2 * matrix.blocks.size)
        return matrix


def _watched(values: Values, on_taken: Callable[[int], None]) -> Values:
    if isinstance(values, StoredGroups):
        return _WatchedGroups(values, on_taken, values)
    return _WatchedValues(values, on_taken)
