"""`Checkpoint`: a model that was found and checked, before its weights are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from weft.model.card import ModelCard
from weft.model.encoders.spec import EncoderSpec
from weft.model.spec import DecoderSpec, EchoSpec
from weft.model.weights import LoadWeights, Weights, refuse_values


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`tokenizer_files` holds, by file name, all that is needed to rebuild the tokenizer elsewhere.

    `parsed_tokenizer` is what was built from them to check them: to build it again would take most of a start.
    """

    card: ModelCard
    spec: DecoderSpec | EncoderSpec | EchoSpec
    chat_template: str | None
    tokenizer_files: Mapping[str, bytes]
    load_weights: LoadWeights = field(repr=False)
    parsed_tokenizer: Tokenizer | None = field(default=None, repr=False)

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
