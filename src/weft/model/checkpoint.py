"""`Checkpoint`: a model that was found and checked, before its weights are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.model.card import ModelCard
from weft.model.encoders.spec import EncoderSpec
from weft.model.spec import DecoderSpec, EchoSpec
from weft.model.weights import LoadWeights, Weights


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`tokenizer_files` holds, by file name, all that is needed to rebuild the tokenizer elsewhere."""

    card: ModelCard
    spec: DecoderSpec | EncoderSpec | EchoSpec
    chat_template: str | None
    tokenizer_files: Mapping[str, bytes]
    load_weights: LoadWeights = field(repr=False)

    def load(self) -> Weights:
        """Map and check every tensor; a `ConfigError` names the one that cannot be served."""
        return self.load_weights()
