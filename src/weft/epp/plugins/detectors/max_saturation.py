"""`max-saturation-detector`: the highest saturation of several detectors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from weft.epp.config.parameters import Kind, Parameters, Reference
from weft.epp.decision.plugin import Detector, Surroundings, plugin
from weft.epp.pool.endpoint import Endpoint

_Stages = Annotated[tuple[Literal["prefill", "decode"], ...], msgspec.Meta(min_length=1)]


class MaxSaturationParameters(Parameters, frozen=True, kw_only=True):
    """The detectors to combine, and the detectors that are used for one stage only."""

    detectors: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    stages: Mapping[str, _Stages] = {}

    def __post_init__(self) -> None:
        if len(set(self.detectors)) < len(self.detectors):
            raise ValueError("detectors: each may be named once")
        for name in self.stages:
            if name not in self.detectors:
                raise ValueError(f"stages: {name!r} is not among the detectors")

    def references(self) -> Iterable[Reference]:
        """Yields references to the detectors."""
        return tuple(Reference("detectors", name, Kind.DETECTOR) for name in self.detectors)


@plugin("max-saturation-detector", Kind.DETECTOR, MaxSaturationParameters)
class MaxSaturationDetector:
    """The highest saturation of several detectors; 0 for a stage that no detector covers."""

    def __init__(self, parameters: MaxSaturationParameters, around: Surroundings) -> None:
        self._detectors: dict[str, Detector] = {
            name: around.plugin(name) for name in parameters.detectors
        }
        self._stages = parameters.stages
        self._found: dict[tuple[str, str], float] = {}  # last value by detector and stage
        self._gauge = around.metrics.gauge(
            "flow_control_detector_saturation",
            "Last saturation reported by each detector of a max-saturation-detector, by stage.",
            ("detector", "stage"),
        )
        around.metrics.before_text(self._update_gauge)

    def saturation(
        self, endpoints: Sequence[Endpoint], now: float, stage: str | None = None
    ) -> float:
        return max(
            (each.saturation(endpoints, now, stage) for _, each in self._of(stage)), default=0.0
        )

    def expected_saturation(
        self, endpoints: Sequence[Endpoint], now: float, stage: str | None = None
    ) -> float:
        greatest = 0.0
        for name, each in self._of(stage):
            found = each.expected_saturation(endpoints, now, stage)
            self._found[name, stage or ""] = found
            greatest = max(greatest, found)
        return greatest

    def _of(self, stage: str | None) -> Iterable[tuple[str, Detector]]:
        for name, each in self._detectors.items():
            if stage is None or stage in self._stages.get(name, (stage,)):
                yield name, each

    def _update_gauge(self) -> None:
        for (name, stage), found in self._found.items():
            self._gauge.labels(name, stage).set(found)
