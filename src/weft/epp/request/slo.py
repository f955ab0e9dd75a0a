"""`Slo`: the latency objectives that a request sets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft.epp.request.values import Refused

# The current header name, then the older one.
_TTFT_HEADERS: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
_TPOT_HEADERS: Final = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objectives of a request: seconds to the first token, and seconds per token after it; None without
    an objective.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None


def read_slo(headers: Mapping[str, str]) -> Slo:
    """Returns the latency objectives in the request's headers. Raises `Refused`."""
    return Slo(_seconds(headers, _TTFT_HEADERS), _seconds(headers, _TPOT_HEADERS))


def _seconds(headers: Mapping[str, str], names: tuple[str, str]) -> float | None:
    for name in names:
        text = headers.get(name)
        if not text:
            continue
        try:
            milliseconds = float(text)
        except ValueError:
            milliseconds = math.nan
        if not 0 <= milliseconds < math.inf:
            raise Refused(
                400, f"{name}: must be milliseconds, 0 for no objective, got {text[:40]!r}"
            )
        return milliseconds / 1000 or None
    return None
