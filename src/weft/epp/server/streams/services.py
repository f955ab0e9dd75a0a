"""Objects that all ext_proc streams of a server share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.core.observe.tracing import Tracer
from weft.epp.decision.director import Director
from weft.epp.request.parsers.table import ParserTable
from weft.epp.server.body_reader import BodyReader
from weft.epp.server.limits import Held, PickerLimits
from weft.epp.server.streams.stream_metrics import WireMetrics

Explain = Callable[[str], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Services:
    """Objects that all streams of a server share."""

    director: Director
    parsers: ParserTable
    limits: PickerLimits
    held: Held
    metrics: WireMetrics
    reader: BodyReader
    explain: Explain | None = None  # if set, describes recent decisions in a response header
    tracer: Tracer | None = None
