"""`Parts`: the plugins of a director, by their function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.epp.decision.plugin import (
    Admitter,
    Detector,
    FollowsResponse,
    Handler,
    Identity,
    Learner,
    Preparer,
    Producer,
    Profile,
    Reporter,
)
from weft.epp.flow.policies import FlowParts
from weft.epp.metrics.series import PickerMetrics, Timer
from weft.epp.pool.pool import Pool


@dataclass(frozen=True, slots=True)
class ProducerStep:
    """A data producer and its name in the configuration."""

    name: str
    plugin: Producer
    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The plugins of a director, created from a configuration."""

    pool: Pool
    producers: Sequence[ProducerStep]
    profiles: Mapping[str, Profile]
    handler: Handler
    detector: Detector
    detector_name: str
    metrics: PickerMetrics
    preparers: Sequence[Preparer]  # producers that await a result
    learners: Sequence[Learner]  # plugins that are called after every decision
    followers: Sequence[FollowsResponse]  # plugins that are called at the end of every response
    identities: Sequence[Identity] = ()
    admitters: Sequence[Admitter] = ()
    reporters: Sequence[Reporter] = ()
    # None: no request waits; a saturated pool refuses requests of negative priority.
    flow: FlowParts | None = None
