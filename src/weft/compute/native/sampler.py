"""`NativeSampler`: a C++ `Sampler` for logits in the host's memory. A step is one call, without the GIL."""

import numpy as np

from weft.compute.native import _core
from weft.compute.protocols.runner import FloatArray
from weft.compute.protocols.sampler import Choices, Outcome, SampledOnHost, Scores
from weft.core.values.logprobs import LogprobsMode

_PROCESSED = (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)
_NORMALISED = (LogprobsMode.RAW_LOGPROBS, LogprobsMode.PROCESSED_LOGPROBS)


class NativeSampler:
    """Samples rows on the core's threads: as many threads as the last loaded model uses."""

    @staticmethod
    def sample(
        logits: FloatArray, choices: Choices, mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS
    ) -> SampledOnHost:
        token_ids, is_finite, scores = _core.sample(
            np.ascontiguousarray(logits), choices, mode in _PROCESSED, mode in _NORMALISED
        )
        return SampledOnHost(Outcome(token_ids, is_finite, scores and Scores(*scores)))
