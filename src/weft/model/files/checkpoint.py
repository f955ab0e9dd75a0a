"""`Checkpoint`: a model whose files were found and checked, before its weights are read."""

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
    """Facts about a model that come from its tokenizer's files, under the names of the checkpoint's fields.

    `parsed_tokenizer` was built from `tokenizer_files` to check them; it is stored because building it again would take
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
    """A model with its card, its spec, and functions that read its tokenizer and weights.

    `tokenizer_files` has, by file name, all that is needed to rebuild the tokenizer elsewhere. Facts from the tokenizer
    are known only after `with_tokenizer`: before, the card has no special ids, and there is no template. An engine
    needs no tokenizer, and reading a large vocabulary takes most of a start.

    `groups` are the matrices that kernels compute with in their stored format, by name. `weight_files` are the files
    that `load_weights` reads; empty for random weights. `find_again` finds the model that the name refers to at that
    time; `find_mtp` finds the model's head for multi-token prediction, if it has one. `needed` are the tensors to read,
    by their names in the files, and `load_from` reads the same tensors from other places; for a model without files
    both are None.
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
        """Returns the checkpoint with facts from the tokenizer's files.

        Raises `ConfigError` if these files do not match the model.
        """
        if self.read_tokenizer is None:  # already read, or built in
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
        """Returns the same checkpoint with progress reports.

        Each time a tensor is read, `report` gets the number of elements loaded so far.
        """
        done = last = 0

        def on_taken(num_elements: int) -> None:
            nonlocal done, last
            # A caller that reads the next tensor has loaded the previous one.
            done, last = done + last, num_elements
            report(done)

        def load_weights() -> Weights:
            tensors = self.load_weights().tensors
            return Weights({name: _watched(v, on_taken) for name, v in tensors.items()})

        return replace(self, load_weights=load_weights)

    def with_tensors(self, stored: Mapping[str, StoredTensor]) -> "Checkpoint":
        """Returns the same model with its `needed` tensors stored in other places."""
        load_from = self.load_from
        assert load_from is not None
        files = tuple(sorted({tensor.path for tensor in stored.values()}))
        return replace(self, load_weights=lambda: load_from(stored), weight_files=files)

    def load(self, prefix: str = "") -> Weights:
        """Maps and checks every tensor whose name begins with `prefix`.

        Raises a `ConfigError` that names a tensor with NaN or infinity.
        """
        mapped = self.load_weights().tensors
        weights = Weights({name: t for name, t in mapped.items() if name.startswith(prefix)})
        for tensor in weights.tensors.values():
            if tensor.unchecked is not None and not tensor.is_finite():
                refuse_values(tensor.unchecked)
        return weights

    def map(self) -> Weights:
        """Maps every tensor; the caller must check the values of tensors that are still unchecked."""
        return self.load_weights()


@dataclass(frozen=True, slots=True)
class _WatchedValues:
    """Values that report their number of elements each time they are read."""

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
    """Watched values that may be read in their stored format."""

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
