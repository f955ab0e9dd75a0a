"""vLLM's `SamplingParams`: Weft's, which may be changed, with names of older releases."""

import msgspec

from weft.core.beam_search import BeamSearchParams
from weft.core.values.types import OutputKind as RequestOutputKind
from weft.core.values.types import RepetitionDetectionParams, StructuredOutputsParams
from weft.core.values.types import SamplingParams as _Own

__all__ = [
    "BeamSearchParams",
    "GuidedDecodingParams",
    "RepetitionDetectionParams",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
]

GuidedDecodingParams = StructuredOutputsParams


class SamplingParams(_Own, frozen=False, kw_only=True):
    """`guided_decoding` is the older name of `structured_outputs`; a `best_of` has to be `n`."""

    best_of: int | None = None
    guided_decoding: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        if self.best_of not in (None, self.n):
            raise ValueError(f"best_of={self.best_of}: there is none; take n answers and choose")
        self.best_of = None
        if self.guided_decoding is not None:
            if self.structured_outputs is not None:
                raise ValueError("guided_decoding is structured_outputs; give one of them")
            self.structured_outputs, self.guided_decoding = self.guided_decoding, None

    def clone(self) -> "SamplingParams":
        """A copy."""
        return msgspec.structs.replace(self)


# Programs choose by these which of their settings to hand on.
SamplingParams.__annotations__ = {**_Own.__annotations__, **SamplingParams.__annotations__}
