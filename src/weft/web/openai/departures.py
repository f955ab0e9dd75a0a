"""Where OpenAI's API sets limits that other engines do not have: taken all the same, and told."""

from collections.abc import Iterable

from weft.core.types import SamplingParams
from weft.core.validate import LOGIT_BIAS_CLAMP, MAX_STOP_STRINGS
from weft.schema.sampling import SamplingFields
from weft.web.http.endpoint import Departure

MAX_STOPS = 4


def beyond_openai(fields: SamplingFields | SamplingParams) -> Iterable[Departure]:
    """Four stop strings, and biases from -100 to 100."""
    stop, bias = fields.stop, fields.logit_bias
    if isinstance(stop, list) and len(stop) > MAX_STOPS:
        yield Departure(
            "stop",
            f"stop has {len(stop)} strings; OpenAI's API takes {MAX_STOPS}, this server "
            f"{MAX_STOP_STRINGS}",
        )
    if bias and any(abs(value) > LOGIT_BIAS_CLAMP for value in bias.values()):
        limit = f"{LOGIT_BIAS_CLAMP:g}"
        yield Departure("logit_bias", f"logit_bias beyond {limit} or -{limit} counts as that")
